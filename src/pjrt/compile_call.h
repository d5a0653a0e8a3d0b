// SPDX-License-Identifier: Apache-2.0 - what PJRT's two compile functions have in common.
#pragma once

#include <string>
#include <string_view>

#include "src/pjrt/call.h"
#include "src/pjrt/compile_options.h"
#include "src/pjrt/plugin.h"
#include "src/pjrt/stderr_capture.h"

namespace torch_tpu::pjrt {

// Calls PJRT_Client_Compile or PJRT_Compile with StableHLO text. An error tells what was compiled
// for (`purpose`, "" for this process's own devices) and what the compiler logged.
template <auto Function, class Args>
void compile_call(const Plugin& plugin, Args& args, std::string_view module_text,
                  const CompileOptions& options, const std::string& purpose) {
  const std::string encoded = options.encode();
  auto program = sized<PJRT_Program>();
  program.code = const_cast<char*>(module_text.data());  // in/out in the struct, only read here
  program.code_size = module_text.size();
  program.format = "mlir";
  program.format_size = 4;
  args.program = &program;
  args.compile_options = encoded.data();
  args.compile_options_size = encoded.size();
  const StderrCapture capture(plugin.is_libtpu());
  try {
    call<Function>(plugin.api(), args);
  } catch (const Error& error) {
    std::string message = error.what();
    if (!purpose.empty()) message = "compiling for " + purpose + ": " + message;
    if (const std::string log = capture.text(); !log.empty()) {
      message += "\nThe compiler logged:\n" + log;
    }
    throw Error(error.code(), message);
  }
}

}  // namespace torch_tpu::pjrt
