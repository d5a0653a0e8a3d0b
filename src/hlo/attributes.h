// SPDX-License-Identifier: Apache-2.0 - Text of attributes, and the checks and errors builders share.
#pragma once

#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "src/hlo/builder.h"

namespace torch_tpu::hlo {

// std::to_chars into a string: the writer and the attributes print millions of small numbers.
template <class Int>
void append_int(std::string& out, Int value) {
  char buffer[24];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, end);
}
void append_type(std::string& out, const Type& type);
std::string list_text(std::span<const int64_t> values);  // "[0, 1]"

// Body of an attribute dictionary; attributes print in the order they are added.
class Attributes {
 public:
  Attributes& raw(std::string_view name, std::string_view value);
  Attributes& i64(std::string_view name, int64_t value);
  Attributes& i32(std::string_view name, int64_t value);
  Attributes& boolean(std::string_view name, bool value);
  Attributes& ints(std::string_view name, std::span<const int64_t> values);  // array<i64: ...>
  Attributes& bools(std::string_view name, const std::vector<bool>& values);
  // dense<[[...], ...]> : tensor<RxCxi64>, of rows of one length.
  Attributes& table(std::string_view name, std::span<const Dims> rows);
  // dense<[[low, high], ...]> : tensor<Nx2xi64>
  Attributes& padding(const Dims& low, const Dims& high);
  Attributes& enumeration(std::string_view name, std::string_view kind, std::string_view value);
  // precision_config, where it means something for operands of this type.
  Attributes& precision(Precision precision, DType dtype);
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string& begin(std::string_view name);
};

// What the body of an attribute dictionary says of a name, and all that follows; "" if nothing.
std::string_view attribute(std::string_view attributes, std::string_view name);
Dims integers(std::string_view text, char close);  // the integers up to the first `close`
Dims ints(std::string_view attributes, std::string_view name);  // array<i64: 1, 2>
// Whether an instruction computes each element of its result from the operands' elements there
// alone.
bool is_pointwise(std::string_view op);

// What combines two 0-dim values.
Region reduce_region(Builder& b, DType dtype, Reduce how);
// Throws BuildError "op: problem".
[[noreturn]] void fail(std::string_view op, const std::string& problem);
// The builder of a value; throws when the value is empty.
Builder& builder_of(std::string_view op, const Value& x);
Builder& builder_of(std::string_view op, std::span<const Value> xs);
// Wraps a negative dimension and checks the range.
int64_t check_dim(std::string_view op, int64_t dim, int64_t rank);
// The same for a list without repetitions; returns it in ascending order.
Dims check_dims(std::string_view op, const Dims& dims, int64_t rank);
void check_size(std::string_view op, std::string_view what, size_t got, size_t expected);
// How many positions a window takes along one dimension (StableHLO's rule for convolution and
// reduce_window); padding is low + high.
int64_t window_count(int64_t size, int64_t window, int64_t stride, int64_t base_dilation,
                     int64_t window_dilation, int64_t padding);

}  // namespace torch_tpu::hlo
