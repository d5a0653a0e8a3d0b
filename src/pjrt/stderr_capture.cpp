// SPDX-License-Identifier: Apache-2.0 - redirects stderr and sorts what was written.
#include "src/pjrt/stderr_capture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <mutex>

namespace torch_tpu::pjrt {

namespace {

// Shared by all captures of the process, as the file descriptor is.
std::mutex g_mutex;
int g_depth = 0;
int g_real_stderr = -1;
int g_file = -1;

void write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, data, size);
    if (written <= 0) return;
    data += written;
    size -= static_cast<size_t>(written);
  }
}

std::string read_from(int fd, long start) {
  std::string text;
  const off_t end = lseek(fd, 0, SEEK_END);
  if (end <= start) return text;
  text.resize(static_cast<size_t>(end - start));
  const ssize_t got = pread(fd, text.data(), text.size(), start);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

bool digits(const std::string& text, size_t start, size_t count) {
  if (text.size() < start + count) return false;
  for (size_t i = start; i < start + count; ++i) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) return false;
  }
  return true;
}

void replay_what_is_not_log(const std::string& text) {
  size_t start = 0;
  while (start < text.size()) {
    size_t end = text.find('\n', start);
    end = end == std::string::npos ? text.size() : end + 1;
    if (!is_log_line(text.substr(start, end - start))) {
      write_all(STDERR_FILENO, text.data() + start, end - start);
    }
    start = end;
  }
}

}  // namespace

bool is_log_line(const std::string& line) {
  // "W0000 00:00:1764525255.2 file.cc:12] ..." and "I1130 17:54:15.2 ..."
  if (!line.empty() && std::string("IWEF").find(line[0]) != std::string::npos &&
      digits(line, 1, 4) && line.size() > 5 && line[5] == ' ') {
    return line.find("] ") != std::string::npos;
  }
  // "2026-11-30 17:54:15.123456: I file.cc:12] ..."
  if (digits(line, 0, 4) && digits(line, 5, 2) && digits(line, 8, 2) && line[4] == '-' &&
      line.find(".cc:") != std::string::npos) {
    return true;
  }
  // What libtpu prints before its logger is up.
  if (line.starts_with("WARNING: All log messages before absl::InitializeLog()") ||
      line.starts_with("WARNING: Logging before InitGoogle()") ||
      line.starts_with("=== Source Location Trace: ===") ||
      line.find("could not determine TPU accelerator type") != std::string::npos) {
    return true;
  }
  // "learning/.../libtpu_init_utils.cc:370", the line after "Source Location Trace".
  return line.find(' ') == std::string::npos && line.find('/') != std::string::npos &&
         line.find(".cc:") != std::string::npos;
}

StderrCapture::StderrCapture(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  const std::lock_guard lock(g_mutex);
  if (g_depth == 0) {
    g_file = memfd_create("plugin_log", MFD_CLOEXEC);
    g_real_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (g_file < 0 || g_real_stderr < 0 || dup2(g_file, STDERR_FILENO) < 0) {
      // Out of descriptors: the plugin's log goes where it wants.
      if (g_file >= 0) close(g_file);
      if (g_real_stderr >= 0) close(g_real_stderr);
      enabled_ = false;
      return;
    }
  }
  ++g_depth;
  start_ = lseek(g_file, 0, SEEK_END);
}

StderrCapture::~StderrCapture() {
  if (!enabled_) return;
  const std::lock_guard lock(g_mutex);
  if (--g_depth > 0) return;
  std::fflush(stderr);
  dup2(g_real_stderr, STDERR_FILENO);
  close(g_real_stderr);
  replay_what_is_not_log(read_from(g_file, 0));
  close(g_file);
}

std::string StderrCapture::text() const {
  if (!enabled_) return {};
  const std::lock_guard lock(g_mutex);
  std::fflush(stderr);
  std::string text = read_from(g_file, start_);
  constexpr size_t kLimit = 4000;
  if (text.size() > kLimit) text.erase(0, text.size() - kLimit);
  return text;
}

}  // namespace torch_tpu::pjrt
