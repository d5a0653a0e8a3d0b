// SPDX-License-Identifier: Apache-2.0 - keeps a plugin's log off the terminal.
#pragma once

#include <string>

namespace torch_tpu::pjrt {

// While one of these lives, file descriptor 2 of the process goes to a temporary file. At the end
// the lines that look like a plugin's log are kept (for an Error to quote) and everything else -
// another thread's progress bar - is written to the real stderr after all. Captures in several
// threads share one file; it is only looked at when the last of them ends.
class StderrCapture {
 public:
  explicit StderrCapture(bool enabled);
  ~StderrCapture();
  StderrCapture(const StderrCapture&) = delete;
  StderrCapture& operator=(const StderrCapture&) = delete;

  // What has been logged since the capture began, at most its last 4,000 characters.
  std::string text() const;

 private:
  bool enabled_;
  long start_ = 0;
};

// Whether a logger of an XLA plugin (absl's, TensorFlow's, libtpu's) could have written this line.
bool is_log_line(const std::string& line);

}  // namespace torch_tpu::pjrt
