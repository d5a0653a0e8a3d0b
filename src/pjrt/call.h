// SPDX-License-Identifier: Apache-2.0 - the one way to call a PJRT function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "src/pjrt/api.h"
#include "src/pjrt/error.h"

namespace torch_tpu::pjrt {

// Throws what `error` says, after freeing it. `function` names the call that failed.
[[noreturn]] void raise(const PJRT_Api* api, PJRT_Error* error, std::string_view function);
[[noreturn]] void raise_missing(const PJRT_Api* api, std::string_view function);
// Error with what the plugin's PJRT_Error says; frees it.
Error take_error(const PJRT_Api* api, PJRT_Error* error, std::string_view function);

namespace internal {

// "PJRT_Buffer_Delete" for &PJRT_Api::PJRT_Buffer_Delete, from the compiler's own spelling of it.
template <auto Function>
constexpr std::string_view function_name() {
  std::string_view text = __PRETTY_FUNCTION__;
  const std::size_t start = text.rfind("PJRT_Api::") + std::string_view("PJRT_Api::").size();
  std::size_t end = start;
  while (end < text.size() && text[end] != ']' && text[end] != ';') ++end;
  return text.substr(start, end - start);
}

}  // namespace internal

// Whether the plugin has the function: its table may end before, or leave the entry empty.
template <auto Function>
bool has(const PJRT_Api* api) {
  const auto* entry = reinterpret_cast<const std::byte*>(&(api->*Function));
  const auto* start = reinterpret_cast<const std::byte*>(api);
  return static_cast<std::size_t>(entry - start) + sizeof(void*) <= api->struct_size &&
         api->*Function != nullptr;
}

// call<&PJRT_Api::PJRT_Buffer_Delete>(api, args): sizes args, calls, turns a PJRT_Error into ours.
template <auto Function, typename Args>
inline void call(const PJRT_Api* api, Args& args) {
  args.struct_size = kStructSize<Args>;
  if (!has<Function>(api)) [[unlikely]]
    raise_missing(api, internal::function_name<Function>());
  if (PJRT_Error* error = (api->*Function)(&args)) [[unlikely]]
    raise(api, error, internal::function_name<Function>());
}

// The same where a plugin may do without: false when it has no such function or says UNIMPLEMENTED.
template <auto Function, typename Args>
inline bool try_call(const PJRT_Api* api, Args& args) {
  if (!has<Function>(api)) return false;
  try {
    call<Function>(api, args);
    return true;
  } catch (const Error& error) {
    if (error.is_unimplemented()) return false;
    throw;
  }
}

// The same for destructors: whatever the plugin has to say then, there is nobody to tell.
template <auto Function, typename Args>
inline void call_quietly(const PJRT_Api* api, Args& args) noexcept {
  args.struct_size = kStructSize<Args>;
  PJRT_Error* error = (api->*Function)(&args);
  if (error != nullptr) [[unlikely]] {
    auto destroy = sized<PJRT_Error_Destroy_Args>();
    destroy.error = error;
    api->PJRT_Error_Destroy(&destroy);
  }
}

}  // namespace torch_tpu::pjrt
