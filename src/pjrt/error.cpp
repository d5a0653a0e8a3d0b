// SPDX-License-Identifier: Apache-2.0 - turns a plugin's PJRT_Error into Error.
#include "src/pjrt/error.h"

#include <array>
#include <cstring>

#include "src/pjrt/call.h"

namespace torch_tpu::pjrt {

const char* error_code_name(int code) {
  static constexpr std::array<const char*, 17> names = {"OK",
                                                        "CANCELLED",
                                                        "UNKNOWN",
                                                        "INVALID_ARGUMENT",
                                                        "DEADLINE_EXCEEDED",
                                                        "NOT_FOUND",
                                                        "ALREADY_EXISTS",
                                                        "PERMISSION_DENIED",
                                                        "RESOURCE_EXHAUSTED",
                                                        "FAILED_PRECONDITION",
                                                        "ABORTED",
                                                        "OUT_OF_RANGE",
                                                        "UNIMPLEMENTED",
                                                        "INTERNAL",
                                                        "UNAVAILABLE",
                                                        "DATA_LOSS",
                                                        "UNAUTHENTICATED"};
  return code >= 0 && code < static_cast<int>(names.size()) ? names[code] : "UNKNOWN";
}

bool Error::is_out_of_memory() const {
  // Some paths of XLA wrap the allocator's error in INTERNAL and keep its text.
  return code_ == kResourceExhausted || std::strstr(what(), "RESOURCE_EXHAUSTED") != nullptr ||
         std::strstr(what(), "Out of memory") != nullptr;
}

Error take_error(const PJRT_Api* api, PJRT_Error* error, std::string_view function) {
  auto message = sized<PJRT_Error_Message_Args>();
  message.error = error;
  api->PJRT_Error_Message(&message);
  auto code = sized<PJRT_Error_GetCode_Args>();
  code.error = error;
  code.code = PJRT_Error_Code_UNKNOWN;
  auto destroy = sized<PJRT_Error_Destroy_Args>();
  if (PJRT_Error* other = api->PJRT_Error_GetCode(&code)) {
    destroy.error = other;
    api->PJRT_Error_Destroy(&destroy);
  }
  std::string text(function);
  text += ": ";
  text += error_code_name(number(code.code));
  text += ": ";
  text.append(message.message, message.message_size);
  destroy.error = error;
  api->PJRT_Error_Destroy(&destroy);
  return Error(number(code.code), text);
}

void raise(const PJRT_Api* api, PJRT_Error* error, std::string_view function) {
  throw take_error(api, error, function);
}

void raise_missing(const PJRT_Api* api, std::string_view function) {
  throw Error(kUnimplemented,
              std::string(function) +
                  ": the loaded plugin doesn't have this function (its PJRT C API is " +
                  std::to_string(api->pjrt_api_version.major_version) + "." +
                  std::to_string(api->pjrt_api_version.minor_version) + ")");
}

}  // namespace torch_tpu::pjrt
