// SPDX-License-Identifier: Apache-2.0 - Functions of StableHLO instructions and the builders that make them.
//
// A Builder records one function. Every builder function below infers its result type (its shape
// rule) and throws BuildError when the operands do not fit, so running an operator's body is also
// its shape function. Ids are local to the function; the writer renumbers them when functions are
// put together into a module.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "src/hlo/type.h"

namespace torch_tpu::hlo {

// A mistake in an operator's lowering (not in the user's input): operands that do not fit.
class BuildError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Instr;

// A function that was written before and is kept as text, one `func.func private @name(...)`.
struct TextFunction {
  std::string name, text;
};

struct Region {
  std::vector<int32_t> args;
  std::vector<Instr> body;
  std::vector<int32_t> results;
  bool operator==(const Region&) const = default;
};

struct Instr {
  std::string name;               // "stablehlo.add"
  std::vector<int32_t> operands;  // value ids
  std::string attributes;         // printed body of the attribute dictionary
  std::vector<Region> regions;
  int32_t first_result = 0;
  int32_t result_count = 1;
  std::shared_ptr<const TextFunction> callee = {};   // of call_text
  std::shared_ptr<const std::string> location = {};  // what stands in MLIR's loc(...)
  bool operator==(const Instr&) const = default;
};

// A straight-line function: parameters, instructions, results; types by value id.
struct Function {
  std::vector<Type> types;
  std::vector<int32_t> params;
  std::vector<Instr> body;
  std::vector<int32_t> results;
};

// The values that an instruction needs: its operands, and then what its regions use from outside,
// each once.
std::vector<int32_t> used_values(const Instr& instr);
bool has_side_effect(const Instr& instr);

class Builder;

// A handle on one value of the function under construction. Cheap to copy.
class Value {
 public:
  Value() = default;
  Value(Builder* builder, int32_t id) : builder_(builder), id_(id) {}
  explicit operator bool() const { return builder_ != nullptr; }
  Builder& builder() const { return *builder_; }
  int32_t id() const { return id_; }
  const Type& type() const;
  DType dtype() const { return type().dtype; }
  const Dims& dims() const { return type().dims; }
  int64_t rank() const { return type().rank(); }
  int64_t dim(int64_t i) const { return type().dims[i < 0 ? i + rank() : i]; }
  int64_t elements() const { return type().elements(); }

 private:
  Builder* builder_ = nullptr;
  int32_t id_ = -1;
};
using Values = std::vector<Value>;

class Builder {
 public:
  Builder() = default;
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  Value param(Type type);
  // Appends an instruction to the innermost open region.
  Values append(std::string name, std::span<const Value> operands, std::string attributes,
                std::vector<Type> results, std::vector<Region> regions = {},
                std::shared_ptr<const TextFunction> callee = {});
  Value append1(std::string name, std::span<const Value> operands, std::string attributes,
                Type result);
  // Builds a region: fn gets the region's arguments and returns its results. Regions of while and
  // if may use values of the enclosing function; those of reduce, reduce_window, scatter and sort
  // only its constants (XLA's rule; finish() checks it).
  Region region(const std::vector<Type>& args, const std::function<Values(const Values&)>& fn);
  // Inlines another function; returns its results.
  Values inline_call(const Function& fn, std::span<const Value> args);
  // A copy of an instruction of fn with these values in place of what used_values() names.
  Values copy(const Function& fn, const Instr& instr, std::span<const Value> uses);
  // The same with other attributes and other types of the results.
  Values copy(const Function& fn, const Instr& instr, std::span<const Value> uses,
              std::string attributes, std::vector<Type> results);
  // Where the instructions to come are from: what location_text() gives; null: nobody asks.
  void set_location(std::shared_ptr<const std::string> location) {
    location_ = std::move(location);
  }
  // Drops what the results do not need (instructions with side effects stay), numbers the values
  // densely, and leaves the builder empty: its Values are no longer good for anything.
  Function finish(std::span<const Value> results);

  // The instruction of the innermost open region that the value is a result of, or null. Valid
  // until the next one is appended.
  const Instr* source(const Value& x) const;

  // Stays valid while more instructions are appended.
  const Type& type(int32_t id) const { return types_[id]; }

 private:
  int32_t new_value(Type type);

  std::deque<Type> types_;  // by value id; a deque, so that references survive growth
  std::vector<int32_t> params_;
  std::vector<Instr> body_;
  std::vector<std::vector<Instr>*> open_;  // innermost last; empty means body_
  std::shared_ptr<const std::string> location_;
};

// MLIR's form of a location that has a name ("aten::add") and a line ("file.py:12", or words).
std::string location_text(std::string_view name, std::string_view line);

inline const Type& Value::type() const { return builder_->type(id_); }

// ---- constants ---------------------------------------------------------------------------------
// Splat of one number. Integers are exact over the whole 64-bit range; bool is 0/1.
Value constant(Builder& b, const Type& type, double value);
Value constant_int(Builder& b, const Type& type, int64_t value);
Value constant_complex(Builder& b, const Type& type, double re, double im);
// Dense list of integers / doubles, row major.
Value constant_ints(Builder& b, const Type& type, std::span<const int64_t> values);
Value constant_doubles(Builder& b, const Type& type, std::span<const double> values);
Value full_like(const Value& x, double value);
inline Value zeros_like(const Value& x) { return full_like(x, 0); }
Value scalar(Builder& b, DType dtype, double value);  // 0-dim
Value zeros(Builder& b, const Type& type);
// Largest/smallest finite value, and +-infinity where the type has it (integers: max/min).
Value max_finite(Builder& b, DType dtype);
Value min_finite(Builder& b, DType dtype);
Value highest(Builder& b, DType dtype);  // +inf or integer max
Value lowest(Builder& b, DType dtype);   // -inf or integer min
Value nan_of(Builder& b, DType dtype);
Value iota(Builder& b, const Type& type, int64_t dim);

// ---- elementwise -------------------------------------------------------------------------------
// Binary builders broadcast their operands NumPy-style (so a 0-dim operand is a scalar); the
// element types must be equal. Overloads with a double make a splat constant of the other's type.
// clang-format off
#define TORCH_TPU_HLO_UNARY(X)                                                             \
  X(abs) X(cbrt) X(ceil) X(cosine) X(count_leading_zeros) X(exponential)                   \
  X(exponential_minus_one) X(floor) X(imag) X(is_finite) X(log) X(log_plus_one)            \
  X(logistic) X(negate) X(not_) X(popcnt) X(real) X(round_nearest_afz)                     \
  X(round_nearest_even) X(rsqrt) X(sign) X(sine) X(sqrt) X(tan) X(tanh)
#define TORCH_TPU_CHLO_UNARY(X)                                                            \
  X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(bessel_i1e) X(cosh) X(digamma)      \
  X(erf) X(erf_inv) X(erfc) X(is_inf) X(is_neg_inf) X(is_pos_inf) X(lgamma) X(sinh)
#define TORCH_TPU_HLO_BINARY(X)                                                            \
  X(add) X(and_) X(atan2) X(divide) X(maximum) X(minimum) X(multiply) X(or_) X(power)      \
  X(remainder) X(shift_left) X(shift_right_arithmetic) X(shift_right_logical)              \
  X(subtract) X(xor_)
#define TORCH_TPU_CHLO_BINARY(X) X(next_after) X(polygamma) X(zeta)
// clang-format on
#define X(name) Value name(const Value& x);
TORCH_TPU_HLO_UNARY(X)
TORCH_TPU_CHLO_UNARY(X)
#undef X
#define X(name) Value name(const Value& a, const Value& b);
TORCH_TPU_HLO_BINARY(X)
TORCH_TPU_CHLO_BINARY(X)
#undef X
inline Value operator+(const Value& a, const Value& b) { return add(a, b); }
inline Value operator-(const Value& a, const Value& b) { return subtract(a, b); }
inline Value operator*(const Value& a, const Value& b) { return multiply(a, b); }
inline Value operator/(const Value& a, const Value& b) { return divide(a, b); }
inline Value operator-(const Value& a) { return negate(a); }
inline Value operator&(const Value& a, const Value& b) { return and_(a, b); }
inline Value operator|(const Value& a, const Value& b) { return or_(a, b); }
inline Value operator~(const Value& a) { return not_(a); }
Value operator+(const Value& a, double b);
Value operator-(const Value& a, double b);
Value operator*(const Value& a, double b);
Value operator/(const Value& a, double b);
Value operator+(double a, const Value& b);
Value operator-(double a, const Value& b);
Value operator*(double a, const Value& b);
Value operator/(double a, const Value& b);
Value maximum(const Value& a, double b);
Value minimum(const Value& a, double b);

enum class Compare : uint8_t { EQ, NE, GE, GT, LE, LT };
// Floats compare IEEE-like (NaN != NaN). Result Pred.
Value compare(const Value& a, const Value& b, Compare how);
Value compare_total(const Value& a, const Value& b, Compare how);  // total order, for sorting
inline Value eq(const Value& a, const Value& b) { return compare(a, b, Compare::EQ); }
inline Value ne(const Value& a, const Value& b) { return compare(a, b, Compare::NE); }
inline Value ge(const Value& a, const Value& b) { return compare(a, b, Compare::GE); }
inline Value gt(const Value& a, const Value& b) { return compare(a, b, Compare::GT); }
inline Value le(const Value& a, const Value& b) { return compare(a, b, Compare::LE); }
inline Value lt(const Value& a, const Value& b) { return compare(a, b, Compare::LT); }
Value eq(const Value& a, double b);
Value ne(const Value& a, double b);
Value ge(const Value& a, double b);
Value gt(const Value& a, double b);
Value le(const Value& a, double b);
Value lt(const Value& a, double b);
Value is_nan(const Value& x);
// Broadcasts all three; predicate is Pred.
Value select(const Value& pred, const Value& on_true, const Value& on_false);
Value select(const Value& pred, const Value& on_true, double on_false);
Value select(const Value& pred, double on_true, const Value& on_false);
Value clamp(const Value& low, const Value& x, const Value& high);  // low/high same type or 0-dim
Value complex(const Value& re, const Value& im);
// Value-changing conversion with PyTorch's meaning: to Pred is "!= 0" (NaN is true), float to
// integer truncates, complex to real drops the imaginary part. Identity when equal.
Value convert(const Value& x, DType dtype);
// Same bits, other type (equal widths, or the last dimension absorbs the ratio, as Tensor.view
// does; a 0-dim value gets a dimension for it).
Value bitcast_convert(const Value& x, DType dtype);
Value reduce_precision(const Value& x, int exponent_bits, int mantissa_bits);
Value optimization_barrier(const Value& x);

// ---- shapes ------------------------------------------------------------------------------------
Value reshape(const Value& x, Dims dims);
Value transpose(const Value& x, const Dims& permutation);
Value broadcast_in_dim(const Value& x, Dims dims, const Dims& broadcast_dimensions);
Value broadcast_to(const Value& x, const Dims& dims);  // NumPy rule: aligned at the right
Dims broadcast_dims(const Dims& a, const Dims& b);     // throws BuildError when they do not fit
Value unsqueeze(const Value& x, int64_t dim);
Value squeeze(const Value& x, int64_t dim);
Value slice(const Value& x, const Dims& start, const Dims& limit, const Dims& strides);
Value slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit, int64_t stride = 1);
Value dynamic_slice(const Value& x, std::span<const Value> starts, const Dims& sizes);
Value dynamic_update_slice(const Value& x, const Value& update, std::span<const Value> starts);
Value pad(const Value& x, const Value& value, const Dims& low, const Dims& high,
          const Dims& interior = {});
Value concatenate(std::span<const Value> xs, int64_t dim);
Value reverse(const Value& x, const Dims& dims);

// ---- indexing ----------------------------------------------------------------------------------
struct GatherDims {
  Dims offset_dims = {}, collapsed_slice_dims = {}, operand_batching_dims = {},
       start_indices_batching_dims = {}, start_index_map = {};
  int64_t index_vector_dim = 0;
};
Value gather(const Value& operand, const Value& indices, const GatherDims& dims,
             const Dims& slice_sizes, bool indices_are_sorted = false);
struct ScatterDims {
  Dims update_window_dims = {}, inserted_window_dims = {}, input_batching_dims = {},
       scatter_indices_batching_dims = {}, scatter_dims_to_operand_dims = {};
  int64_t index_vector_dim = 0;
};
using Combiner = std::function<Value(const Value& old_value, const Value& update)>;
Value scatter(const Value& operand, const Value& indices, const Value& updates,
              const ScatterDims& dims, const Combiner& combine, bool indices_are_sorted = false,
              bool unique_indices = false);
// x[..., i, ...] along one dimension for every element of indices (any rank): result dims are
// x.dims[:dim] + indices.dims + x.dims[dim+1:]. Indices must be in range.
Value take(const Value& x, const Value& indices, int64_t dim);

// ---- reductions --------------------------------------------------------------------------------
enum class Reduce : uint8_t { Add, Multiply, Maximum, Minimum, And, Or };
// Without the reduced dimensions, or keeping them as 1. Element type unchanged: convert to opmath()
// first where sums are meant. Maximum/Minimum propagate NaN. Add on Pred is Or.
Value reduce(const Value& x, const Dims& dims, Reduce how, bool keepdim = false);
Values reduce_general(std::span<const Value> xs, std::span<const Value> inits, const Dims& dims,
                      const std::function<Values(const Values& acc, const Values& x)>& fn);
struct Window {
  Dims size = {}, strides = {}, base_dilation = {}, window_dilation = {};  // empty = ones
  Dims pad_low = {}, pad_high = {};                                        // empty = zeros
};
Value reduce_window(const Value& x, const Value& init, const Window& window, Reduce how);
Values reduce_window_general(std::span<const Value> xs, std::span<const Value> inits,
                             const Window& window,
                             const std::function<Values(const Values&, const Values&)>& fn);
// Identity element of a reduction for a type, 0-dim.
Value reduce_identity(Builder& b, DType dtype, Reduce how);

// ---- contractions ------------------------------------------------------------------------------
// Precision as PyTorch's float32 matmul precision means it: highest is the default everywhere.
enum class Precision : uint8_t { Default, High, Highest };
// Result dims: batch, lhs rest, rhs rest. result_dtype may be wider than the operands' (half
// operands accumulate in and return F32 when asked).
Value dot_general(const Value& lhs, const Value& rhs, const Dims& lhs_batch, const Dims& rhs_batch,
                  const Dims& lhs_contract, const Dims& rhs_contract,
                  std::optional<DType> result_dtype = {}, Precision precision = Precision::Highest);
struct ConvDims {
  // Dimension numbers: positions in each operand.
  int64_t input_batch, input_feature;
  Dims input_spatial;
  int64_t kernel_output_feature, kernel_input_feature;
  Dims kernel_spatial;
  int64_t output_batch, output_feature;
  Dims output_spatial;
};
struct ConvConfig {
  Dims window_strides, pad_low, pad_high, lhs_dilation, rhs_dilation;
  std::vector<bool> window_reversal;
  int64_t feature_group_count = 1, batch_group_count = 1;
  Precision precision = Precision::Highest;
};
Value convolution(const Value& lhs, const Value& rhs, const ConvDims& dims,
                  const ConvConfig& config, std::optional<DType> result_dtype = {});

// ---- the rest ----------------------------------------------------------------------------------
// Sorts all operands together along dim; less(a_i..., b_i...) gets one scalar pair per operand:
// lhs values in the first half, rhs values in the second.
Values sort(std::span<const Value> xs, int64_t dim, bool stable,
            const std::function<Value(const Values& lhs, const Values& rhs)>& less);
Values while_loop(std::span<const Value> init, const std::function<Value(const Values&)>& condition,
                  const std::function<Values(const Values&)>& body);
Values if_else(const Value& pred, const std::function<Values()>& on_true,
               const std::function<Values()>& on_false);
enum class Fft : uint8_t { FFT, IFFT, RFFT, IRFFT };
// Transforms the last length.size() dimensions.
Value fft(const Value& x, Fft how, const Dims& length);
Value cholesky(const Value& x, bool lower);
Value triangular_solve(const Value& a, const Value& b, bool left_side, bool lower,
                       bool unit_diagonal, std::string_view transpose /* NO_TRANSPOSE, ... */);
Values top_k(const Value& x, int64_t k);  // CHLO: values and S32 indices along the last dimension
// api_version 4 is XLA's typed FFI (backend_config is a dictionary, as in "{n = 1 : i64}"), 1 the
// old interface (backend_config is any string).
Values custom_call(Builder& b, std::string_view target, std::span<const Value> operands,
                   std::vector<Type> results, std::string backend_config = "", int api_version = 1,
                   bool has_side_effect = false);

// Calls a function that exists as text; the results' types are the caller's word.
Values call_text(Builder& b, std::shared_ptr<const TextFunction> callee,
                 std::span<const Value> operands, std::vector<Type> results);

// ---- modules -----------------------------------------------------------------------------------
struct ModuleOptions {
  std::string name = "program";
  // For each parameter: empty, or an attribute such as `tf.aliasing_output = 0 : i32`.
  std::vector<std::string> param_attributes;
};
// The only printer: one module with one public function "main" (and the text functions it calls).
std::string write_module(const Function& main, const ModuleOptions& options = {});
// The text of such a module as a function to call. Throws BuildError for other texts.
TextFunction text_function(std::string_view module, std::string name);

}  // namespace torch_tpu::hlo
