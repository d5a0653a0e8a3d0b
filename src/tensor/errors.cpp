// SPDX-License-Identifier: Apache-2.0 - The table of error kinds.
#include "src/tensor/errors.h"

#include "src/graph/call.h"
#include "src/hlo/builder.h"
#include "src/pjrt/error.h"

namespace torch_tpu::tensor {

void rethrow_as_torch() {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  try {
    throw;
  } catch (const graph::UserError& e) {
    using Kind = graph::UserError::Kind;
    switch (e.kind()) {
      case Kind::Index:
        throw c10::IndexError(here, e.what());
      case Kind::Value:
        throw c10::ValueError(here, e.what());
      case Kind::Type:
        throw c10::TypeError(here, e.what());
      case Kind::NotImplemented:
        throw c10::NotImplementedError(here, e.what());
      case Kind::OutOfMemory:
        throw c10::OutOfMemoryError(here, e.what());
      case Kind::LinAlg:
        throw c10::LinAlgError(here, e.what());
      case Kind::Runtime:
        break;
    }
    throw c10::Error(here, e.what());
  } catch (const pjrt::Error& e) {
    if (e.is_out_of_memory()) throw c10::OutOfMemoryError(here, e.what());
    throw c10::Error(here, e.what());
  }
}

}  // namespace torch_tpu::tensor
