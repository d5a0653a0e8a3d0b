// SPDX-License-Identifier: Apache-2.0 - read_view and write_view: a strided window on a base value, as StableHLO.
//
// A tensor is sizes, strides and an offset on a base value. A plan says how that window maps to the
// base; whether a plan fits depends on metadata only, so its kind is part of the key, while the
// window's position is a run-time input: x[i] in a loop over i is one program.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "src/graph/args.h"
#include "src/hlo/builder.h"

namespace torch_tpu::graph {

enum class ViewKind : uint8_t {
  Identity,  // the whole base, in order
  BaseDims,  // each dimension is a stepped range of one of the base's own dimensions
  Strides,   // the same after the flat base is split at the window's own strides
  Flat,      // a flat slice first, then as Strides
  Gather,    // anything else, by element indices
};

// Metadata of a window; pointers are borrowed.
struct Window {
  const int64_t* sizes;
  const int64_t* strides;
  int64_t rank;
  int64_t offset;
};

// base: dims of the base, already in the window's element type.
ViewKind classify(const Window& window, const int64_t* base, int64_t base_rank);

// Dims of a base when its bytes are read as another element type: the last dimension absorbs the
// ratio, or the base is flat when it can't.
hlo::Type reinterpreted(const hlo::Type& base, DType dtype);
// The same in a program.
hlo::Value reinterpret(const hlo::Value& base, DType dtype);

// Gives the run-time start (S32 or S64, 0-dim) of an axis: (offset / divisor) % modulus.
using StartSource = std::function<hlo::Value(int64_t divisor, int64_t modulus)>;

// base is in the window's element type. The result has the window's sizes.
hlo::Value read_view(const hlo::Value& base, const TensorArg& tensor, const StartSource& start);
// value has the window's sizes and the base's element type. Returns the new base.
hlo::Value write_view(const hlo::Value& base, const TensorArg& tensor, const hlo::Value& value,
                      const StartSource& start);
// True when write_view does not look at the old base.
bool overwrites(const TensorArg& tensor, const hlo::Type& base);

}  // namespace torch_tpu::graph
