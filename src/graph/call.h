// SPDX-License-Identifier: Apache-2.0 - The context in which an operator entry runs: arguments in, graph values out.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/graph/args.h"
#include "src/graph/record.h"
#include "src/hlo/builder.h"

namespace torch_tpu::graph {

using hlo::Value;
using hlo::Values;

// A mistake of the user. Becomes the PyTorch exception of that kind at the boundary.
class UserError : public std::runtime_error {
 public:
  enum Kind : uint8_t { Runtime, Index, Value, Type, NotImplemented, OutOfMemory, LinAlg };
  UserError(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// How the strides of results are chosen. Contiguous unless said otherwise.
enum class OutputRule : uint8_t {
  Contiguous,
  Pointwise,  // TensorIterator's rule: the inputs' common memory order
  // As Contiguous, and out= shares no memory with an input: PyTorch wants it of ops that read
  // elements elsewhere than they write them.
  Apart,
};

struct OpEntry;

// What an entry may have asked of the values of numbers; part of the key from then on.
struct Specialization {
  bool whole = false;           // value itself
  std::vector<double> matches;  // equality with one of these
};

using Derivation = int64_t (*)(const Number* numbers);

class Call {
 public:
  // ---- arguments, by the schema's names -------------------------------------------------------
  bool has(std::string_view name) const;  // given and not None
  // The tensor's logical value (read through its view) in its own dtype.
  Value tensor(std::string_view name);
  // The same converted to dtype; numbers (Scalar arguments, wrapped numbers, 0-dim CPU tensors) are
  // converted on the host and arrive as run-time 0-dim inputs of that dtype.
  Value tensor(std::string_view name, DType dtype);
  Values tensors(std::string_view name);  // a list of tensors, each in its own dtype
  Values tensors(std::string_view name, DType dtype);
  std::vector<std::optional<Value>> optional_tensors(std::string_view name);
  const TensorArg& meta(std::string_view name) const;  // sizes, strides, dtype of a tensor
  const TensorArg* meta_or_null(std::string_view name) const;
  std::vector<const TensorArg*> metas(std::string_view name) const;  // null: None in the list
  DType dtype_of(std::string_view name) const { return meta(name).dtype; }
  int64_t integer(std::string_view name) const;
  std::optional<int64_t> integer_or_none(std::string_view name) const;
  bool flag(std::string_view name) const { return integer(name) != 0; }
  Dims ints(std::string_view name) const;  // empty when None
  std::string text(std::string_view name) const;
  std::optional<DType> dtype(std::string_view name) const;  // dtype argument
  // A Scalar or float argument as a run-time 0-dim input: a new value never compiles anew.
  Value scalar(std::string_view name, DType dtype);
  Values scalars(std::string_view name, DType dtype);
  // Its value where the lowering itself depends on it. Every new value compiles anew.
  double real(std::string_view name);
  int64_t whole_number(std::string_view name);
  std::vector<double> reals(std::string_view name);
  // Whether it equals `value`; only the answer becomes part of the key.
  bool equals(std::string_view name, double value);
  Number::Kind number_kind(std::string_view name) const;
  // What a function makes of the call's numbers: the number of elements of arange, whether a
  // probability is one. The result becomes part of the key, the numbers do not. fn gets one Number
  // per argument, of value 0 where the argument is not a Scalar or float.
  int64_t derive(Derivation fn);

  // ---- dtype rules -----------------------------------------------------------------------------
  // torch.result_type of tensors and numbers by name (PyTorch's categories: dimensioned tensors,
  // 0-dim tensors, wrapped numbers).
  DType result_type(std::initializer_list<std::string_view> names) const;
  DType result_type(const std::vector<std::string_view>& names) const;
  // The same, with integers and bool promoted to the default float type.
  DType float_result_type(std::initializer_list<std::string_view> names) const;
  DType default_float() const { return default_float_; }

  // ---- dimensions ------------------------------------------------------------------------------
  // Wraps a negative dim; IndexError in PyTorch's words when out of range. 0-dim counts as 1-dim.
  int64_t wrap(int64_t dim, int64_t rank) const;
  // The dims argument of a reduction: wrapped, no duplicates; all dims when None or empty.
  Dims reduce_dims(std::string_view name, int64_t rank) const;
  Dims broadcast(std::initializer_list<const Dims*> shapes) const;  // RuntimeError on mismatch

  // ---- effects ---------------------------------------------------------------------------------
  // Writes through the tensor argument's view (converted to its dtype, broadcast to its sizes).
  void write(std::string_view name, const Value& value);
  void write(std::string_view name, int64_t element, const Value& value);  // list element
  // A run-time check: raises when the host next waits if any element of `bad` is true. "{}" in the
  // message becomes the value of `culprit`, integers that are not zero where `bad` is true, there.
  void fail_if(const Value& bad, CheckSpec::Error error, std::string message,
               const Value& culprit = {});
  void fail_if(const Value& bad, CheckSpec check, const Value& culprit);
  // Around a region (a branch, a loop's body), whose checks leave it as its results: puts other
  // error words (0-dim S64: the failed check's number and the culprit; or none) in the place of the
  // function's and returns those.
  std::pair<Value, Value> exchange_error_words(const Value& check, const Value& culprit);
  void merge_error_words(const Value& check, const Value& culprit);
  bool has_checks() const { return !record_->checks.empty(); }
  // `count` independent uniform 32-bit words from the call's generator (Philox 4x32-10),
  // U32[count]. The stream depends only on seed, offset and count's position, never on mode or
  // plugin.
  Value random_bits(int64_t count, std::string_view generator = "generator");
  // out= tensors must have the results' dtypes; otherwise PyTorch's rules for casts hold.
  void exact_outs() { exact_outs_ = true; }
  // Strides of result i, when not the rule's.
  void output_strides(int64_t i, Dims strides);

  // ---- errors ----------------------------------------------------------------------------------
  template <typename... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (!condition) fail(UserError::Runtime, join(parts...));
  }
  template <typename... Parts>
  void check_index(bool condition, const Parts&... parts) const {
    if (!condition) fail(UserError::Index, join(parts...));
  }
  template <typename... Parts>
  void check_value(bool condition, const Parts&... parts) const {
    if (!condition) fail(UserError::Value, join(parts...));
  }
  template <typename... Parts>
  void check_supported(bool condition, const Parts&... parts) const {
    if (!condition) fail(UserError::NotImplemented, join(parts...));
  }
  // Message gets "<op>(): " in front.
  [[noreturn]] void fail(UserError::Kind kind, const std::string& message) const;

  hlo::Builder& builder() { return *builder_; }
  Platform platform() const { return platform_; }
  bool host_kernels() const { return host_kernels_; }
  // One program will serve a range of sizes: the lowering's form must not depend on them.
  bool open_sizes() const { return open_sizes_; }
  hlo::Precision precision();
  std::string op_name() const;

  // ---- for lowerings that are made at run time, by position ------------------------------------
  size_t arg_count() const;
  const Arg& arg_at(size_t i) const;
  Value read_at(size_t i, size_t element = 0);
  void write_at(size_t i, size_t element, const Value& value);
  Value scalar_input(const ScalarSource& source);
  uint64_t& random_increment();
  void want_all_values();  // the values of all numbers become part of the key
  std::vector<GraphOutput>& graph_outputs() { return record_->graph_outputs; }
  void make_whole() { record_->whole = true; }

 private:
  friend class Tracer;
  Call() = default;

  const Arg& arg(std::string_view name) const;
  int index_of(std::string_view name) const;
  static std::string str(const std::string& s) { return s; }
  static std::string str(std::string_view s) { return std::string(s); }
  static std::string str(const char* s) { return s; }
  static std::string str(const Dims& dims);
  static std::string str(DType dtype) { return std::string(hlo::torch_name(dtype)); }
  template <typename T>
    requires std::is_arithmetic_v<T>
  static std::string str(T v) {
    return std::to_string(v);
  }
  template <typename... Parts>
  static std::string join(const Parts&... parts) {
    std::string out;
    ((out += str(parts)), ...);
    return out;
  }

  Value read(const Arg& arg, TensorRef ref, std::optional<DType> dtype);
  void ask_whole(std::string_view name);

  const OpEntry* entry_ = nullptr;
  std::vector<TensorRef> refs_;   // per entry argument: where it comes from in the call
  std::vector<const Arg*> args_;  // per entry argument
  hlo::Builder* builder_ = nullptr;
  class Tracer* tracer_ = nullptr;
  Record* record_ = nullptr;
  Platform platform_ = Platform::Cpu;
  bool host_kernels_ = false;
  bool open_sizes_ = false;
  bool exact_outs_ = false;
  hlo::Precision precision_ = hlo::Precision::Highest;
  DType default_float_ = DType::F32;
  std::vector<std::optional<Dims>> strides_;
};

// torch.promote_types.
DType promote(DType a, DType b);
// True when PyTorch lets a result of dtype `from` be written into a tensor of dtype `to`.
bool can_cast(DType from, DType to);

}  // namespace torch_tpu::graph
