// SPDX-License-Identifier: Apache-2.0 - The arguments of one operator call, without torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/hlo/type.h"

namespace torch_tpu::graph {

using hlo::Dims;
using hlo::DType;

// A Python number. Its kind takes part in type promotion and is part of the key; its value is a
// run-time input of the program unless the entry asks for it (Call::known, Call::real).
struct Number {
  enum Kind : uint8_t { Bool, Int, Float, Complex } kind = Int;
  int64_t i = 0;
  double re = 0, im = 0;  // Float and Complex

  static Number of(bool v) { return {Bool, v, 0, 0}; }
  static Number of(int64_t v) { return {Int, v, 0, 0}; }
  static Number of(double v) { return {Float, 0, v, 0}; }
  double as_double() const { return kind >= Float ? re : static_cast<double>(i); }
  int64_t as_int() const { return kind >= Float ? static_cast<int64_t>(re) : i; }
};

// A tensor as an op sees it: a strided window on a base value. `host` marks a 0-dim CPU tensor,
// whose value travels as a number; `wrapped` one that PyTorch made from a Python number.
struct TensorArg {
  DType dtype = DType::F32;
  Dims sizes, strides;
  int64_t offset = 0;  // in elements of dtype
  hlo::Type base;      // of the storage's value
  bool host = false, wrapped = false;
  // Tensor arguments of one call that share a storage have equal numbers here (only calls that
  // write care); -1: not known to share.
  int32_t alias = -1;
  bool uninitialized = false;  // the storage has no value yet; reads give zeros
  Number number;               // when host
  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  int64_t elements() const { return hlo::element_count(sizes); }
};

struct Arg {
  enum Kind : uint8_t {
    None,
    Tensor,
    TensorList,  // elements of kind Tensor or None
    Scalar,      // schema type Scalar or float: a Number
    ScalarList,
    Int,  // schema types int, bool and the enums that are ints
    IntList,
    Text,
    Type,       // dtype
    Generator,  // contents live in the generator
    Ignored,    // device, layout, pin_memory
  };
  Kind kind = None;
  TensorArg tensor;
  std::vector<Arg> list;  // TensorList
  Number number;
  std::vector<Number> numbers;
  int64_t i = 0;
  Dims ints;
  std::string text;
  DType dtype = DType::F32;
};
using Args = std::vector<Arg>;

}  // namespace torch_tpu::graph
