// SPDX-License-Identifier: Apache-2.0 - One function for a range of sizes, made of its traces at a few sizes.
//
// A lowering is run at the upper bounds of the sizes and at a few other sizes. What differs between
// the functions tells which dimensions are dynamic and how constants depend on the sizes; the
// function at the bounds is then written anew so that it computes with the sizes as run-time
// numbers. Values keep their dimensions at the bounds; what lies behind the real size is anything,
// and whatever combines elements masks it first. So a dependence on sizes that is not understood is
// an error (NotBounded), never a wrong value.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/hlo/builder.h"

namespace torch_tpu::graph {

// The function cannot be made for a range of sizes; the message says why, for people.
class NotBounded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct BoundedTraces {
  // The same function traced at different sizes; the first is at the bounds, which are the largest
  // sizes that the result is good for.
  std::vector<const hlo::Function*> functions;
  std::vector<hlo::Dims> sizes;  // of each trace: the value of each dynamic size
};

// How many random words an operator draws, whatever the sizes: `factor` times a product of sizes,
// rounded up to a multiple of four.
struct DrawnWords {
  int64_t factor = 0;
  std::vector<size_t> of;  // which sizes; one may come several times

  int64_t at(const hlo::Dims& sizes) const;
};
// From the sizes of each trace and what was drawn there. None if that is not understood.
std::optional<DrawnWords> fit_drawn_words(const std::vector<hlo::Dims>& sizes,
                                          const hlo::Dims& drawn);

// Writes the function into b. sizes: 0-dim S32, the real value of each dynamic size. param(i) gives
// parameter i: if it has dynamic dimensions, its elements in row-major order without gaps, at the
// front of a 1-dim value that is as large as the bounds need; else the parameter itself. Results
// are given in the same form.
hlo::Values bounded_call(hlo::Builder& b, const BoundedTraces& traces, const hlo::Values& sizes,
                         const std::function<hlo::Value(size_t)>& param);

}  // namespace torch_tpu::graph
