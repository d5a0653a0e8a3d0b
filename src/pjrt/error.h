// SPDX-License-Identifier: Apache-2.0 - the one exception that everything in src/pjrt throws.
#pragma once

#include <stdexcept>
#include <string>

namespace torch_tpu::pjrt {

// Values of PJRT_Error_Code that callers tell apart (all are listed in pjrt_c_api.h).
enum ErrorCode : int {
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kNotFound = 5,
  kAlreadyExists = 6,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}

  int code() const { return code_; }
  bool is_out_of_memory() const;
  bool is_unimplemented() const { return code_ == kUnimplemented; }

 private:
  int code_;
};

// "INVALID_ARGUMENT" for 3, and so on.
const char* error_code_name(int code);

}  // namespace torch_tpu::pjrt
