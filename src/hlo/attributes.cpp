// SPDX-License-Identifier: Apache-2.0 - Printing of attributes; the builders' common checks.
#include "src/hlo/attributes.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace torch_tpu::hlo {
namespace {

void append_list(std::string& out, std::span<const int64_t> values) {
  bool first = true;
  for (int64_t v : values) {
    if (!first) out += ", ";
    first = false;
    append_int(out, v);
  }
}

}  // namespace

void append_type(std::string& out, const Type& type) {
  out += "tensor<";
  for (int64_t d : type.dims) {
    append_int(out, d);
    out += 'x';
  }
  out += mlir_name(type.dtype);
  out += '>';
}

std::string list_text(std::span<const int64_t> values) {
  std::string s = "[";
  append_list(s, values);
  s += ']';
  return s;
}

std::string& Attributes::begin(std::string_view name) {
  if (!text_.empty()) text_ += ", ";
  text_ += name;
  text_ += " = ";
  return text_;
}

Attributes& Attributes::raw(std::string_view name, std::string_view value) {
  begin(name) += value;
  return *this;
}

Attributes& Attributes::i64(std::string_view name, int64_t value) {
  append_int(begin(name), value);
  text_ += " : i64";
  return *this;
}

Attributes& Attributes::i32(std::string_view name, int64_t value) {
  append_int(begin(name), value);
  text_ += " : i32";
  return *this;
}

Attributes& Attributes::boolean(std::string_view name, bool value) {
  begin(name) += value ? "true" : "false";
  return *this;
}

Attributes& Attributes::ints(std::string_view name, std::span<const int64_t> values) {
  begin(name) += "array<i64";
  if (!values.empty()) text_ += ": ";
  append_list(text_, values);
  text_ += '>';
  return *this;
}

Attributes& Attributes::bools(std::string_view name, const std::vector<bool>& values) {
  begin(name) += "array<i1";
  for (size_t i = 0; i < values.size(); ++i) {
    text_ += i == 0 ? ": " : ", ";
    text_ += values[i] ? "true" : "false";
  }
  text_ += '>';
  return *this;
}

Attributes& Attributes::table(std::string_view name, std::span<const Dims> rows) {
  begin(name) += "dense<";
  if (!rows.empty()) text_ += '[';
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0) text_ += ", ";
    text_ += '[';
    append_list(text_, rows[i]);
    text_ += ']';
  }
  if (!rows.empty()) text_ += ']';
  text_ += "> : tensor<";
  append_int(text_, rows.size());
  text_ += 'x';
  append_int(text_, rows.empty() ? 0 : rows[0].size());
  text_ += "xi64>";
  return *this;
}

Attributes& Attributes::padding(const Dims& low, const Dims& high) {
  std::vector<Dims> rows;
  for (size_t i = 0; i < low.size(); ++i) rows.push_back({low[i], high[i]});
  if (!rows.empty()) return table("padding", rows);
  return raw("padding", "dense<> : tensor<0x2xi64>");
}

Attributes& Attributes::enumeration(std::string_view name, std::string_view kind,
                                    std::string_view value) {
  begin(name) += "#stablehlo<";
  text_ += kind;
  text_ += ' ';
  text_ += value;
  text_ += '>';
  return *this;
}

Attributes& Attributes::precision(Precision precision, DType dtype) {
  // bfloat16 and narrower types and integers are multiplied exactly whatever is asked.
  const bool matters =
      is_complex(dtype) || dtype == DType::F16 || dtype == DType::F32 || dtype == DType::F64;
  if (precision == Precision::Default || !matters) return *this;
  std::string one = "#stablehlo<precision ";
  one += precision == Precision::High ? "HIGH>" : "HIGHEST>";
  return raw("precision_config", "[" + one + ", " + one + "]");
}

std::string_view attribute(std::string_view attributes, std::string_view name) {
  for (size_t at = attributes.find(name); at != std::string_view::npos;
       at = attributes.find(name, at + 1)) {
    const bool starts = at == 0 || attributes[at - 1] == ' ' || attributes[at - 1] == '<';
    std::string_view rest = attributes.substr(at + name.size());
    if (starts && rest.starts_with(" = ")) return rest.substr(3);
  }
  return {};
}

Dims integers(std::string_view text, char close) {
  Dims out;
  for (size_t i = 0; i < text.size() && text[i] != close;) {
    const bool starts = std::isdigit(static_cast<unsigned char>(text[i])) || text[i] == '-';
    if (!starts) {
      ++i;
      continue;
    }
    int64_t v = 0;
    const char* begin = text.data() + i;
    auto [end, error] = std::from_chars(begin, text.data() + text.size(), v);
    out.push_back(v);
    i += static_cast<size_t>(end - begin);
  }
  return out;
}

Dims ints(std::string_view attributes, std::string_view name) {
  const std::string_view text = attribute(attributes, name);
  const size_t colon = text.find_first_of(":>");
  if (colon == std::string_view::npos || text[colon] == '>') return {};
  return integers(text.substr(colon), '>');
}

bool is_pointwise(std::string_view op) {
  static const std::set<std::string_view> names = {
      "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert",
      "cosine", "count_leading_zeros", "divide", "exponential", "exponential_minus_one", "floor",
      "imag", "is_finite", "log", "logistic", "log_plus_one", "maximum", "minimum", "multiply",
      "negate", "not", "or", "popcnt", "power", "real", "remainder", "round_nearest_afz",
      "round_nearest_even", "rsqrt", "select", "shift_left", "shift_right_arithmetic",
      "shift_right_logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
      "reduce_precision", "optimization_barrier",
      // CHLO
      "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf",
      "erf_inv", "erfc", "is_inf", "is_neg_inf", "is_pos_inf", "lgamma", "sinh", "next_after",
      "polygamma", "zeta"};
  const size_t dot = op.find('.');
  return names.contains(dot == std::string_view::npos ? op : op.substr(dot + 1));
}

void fail(std::string_view op, const std::string& problem) {
  std::string message(op);
  message += ": ";
  message += problem;
  throw BuildError(message);
}

Builder& builder_of(std::string_view op, const Value& x) {
  if (!x) fail(op, "an operand is an empty Value (nothing was assigned to it)");
  return x.builder();
}

Builder& builder_of(std::string_view op, std::span<const Value> xs) {
  if (xs.empty()) fail(op, "needs at least one operand, got none");
  for (const Value& x : xs) builder_of(op, x);
  return xs.front().builder();
}

int64_t check_dim(std::string_view op, int64_t dim, int64_t rank) {
  const int64_t wrapped = dim < 0 ? dim + rank : dim;
  if (wrapped < 0 || wrapped >= rank) {
    fail(op,
         "dimension " + std::to_string(dim) + " is out of range for rank " + std::to_string(rank));
  }
  return wrapped;
}

Dims check_dims(std::string_view op, const Dims& dims, int64_t rank) {
  Dims result;
  result.reserve(dims.size());
  for (int64_t d : dims) result.push_back(check_dim(op, d, rank));
  std::sort(result.begin(), result.end());
  if (std::adjacent_find(result.begin(), result.end()) != result.end()) {
    fail(op, "dimensions " + list_text(dims) + " repeat one");
  }
  return result;
}

void check_size(std::string_view op, std::string_view what, size_t got, size_t expected) {
  if (got == expected) return;
  fail(op, std::string(what) + " has " + std::to_string(got) + " entries, expected " +
               std::to_string(expected));
}

int64_t window_count(int64_t size, int64_t window, int64_t stride, int64_t base_dilation,
                     int64_t window_dilation, int64_t padding) {
  const int64_t padded = (size == 0 ? 0 : (size - 1) * base_dilation + 1) + padding;
  const int64_t reach = window == 0 ? 0 : (window - 1) * window_dilation + 1;
  return padded <= 0 || reach > padded ? 0 : (padded - reach) / stride + 1;
}

}  // namespace torch_tpu::hlo
