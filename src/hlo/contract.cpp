// SPDX-License-Identifier: Apache-2.0 - Contractions: matrix products and convolutions.
#include <algorithm>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

// "[b, f, 0, 1]": what each dimension of an operand of a convolution is.
std::string layout(const char* op, int64_t first, char first_letter, int64_t second,
                   char second_letter, const Dims& spatial) {
  const size_t rank = spatial.size() + 2;
  std::vector<std::string> names(rank);
  const auto put = [&](int64_t at, std::string name) {
    if (at < 0 || at >= static_cast<int64_t>(rank) || !names[at].empty()) {
      fail(op, "dimension numbers are not a permutation of the dimensions");
    }
    names[at] = std::move(name);
  };
  put(first, {first_letter});
  put(second, {second_letter});
  for (size_t i = 0; i < spatial.size(); ++i) put(spatial[i], std::to_string(i));
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  return text + "]";
}

}  // namespace

Value dot_general(const Value& lhs, const Value& rhs, const Dims& lhs_batch, const Dims& rhs_batch,
                  const Dims& lhs_contract, const Dims& rhs_contract,
                  std::optional<DType> result_dtype, Precision precision) {
  constexpr const char* kOp = "stablehlo.dot_general";
  Builder& b = builder_of(kOp, lhs);
  builder_of(kOp, rhs);
  const std::string types = lhs.type().str() + " and " + rhs.type().str();
  if (lhs.dtype() != rhs.dtype()) fail(kOp, "operands " + types + " differ in element type");
  if (lhs.dtype() == DType::C32) {
    const Value l = convert(lhs, DType::C64), r = convert(rhs, DType::C64);
    return convert(
        dot_general(l, r, lhs_batch, rhs_batch, lhs_contract, rhs_contract, {}, precision),
        result_dtype.value_or(DType::C32));
  }
  check_size(kOp, "rhs_batch", rhs_batch.size(), lhs_batch.size());
  check_size(kOp, "rhs_contract", rhs_contract.size(), lhs_contract.size());
  Dims result;
  const auto wrap = [&](const Value& x, const Dims& dims) {
    Dims wrapped;
    for (int64_t d : dims) wrapped.push_back(check_dim(kOp, d, x.rank()));
    return wrapped;
  };
  const Dims lb = wrap(lhs, lhs_batch), rb = wrap(rhs, rhs_batch);
  const Dims lc = wrap(lhs, lhs_contract), rc = wrap(rhs, rhs_contract);
  const auto pair = [&](const Dims& l, const Dims& r, const char* what) {
    for (size_t i = 0; i < l.size(); ++i) {
      if (lhs.dims()[l[i]] != rhs.dims()[r[i]]) {
        fail(kOp, std::string(what) + " dimensions " + list_text(l) + " and " + list_text(r) +
                      " of " + types + " differ in size");
      }
    }
  };
  pair(lb, rb, "batch");
  pair(lc, rc, "contracting");
  for (int64_t d : lb) result.push_back(lhs.dims()[d]);
  const auto rest = [&](const Value& x, const Dims& batch, const Dims& contract) {
    Dims used = batch;
    used.insert(used.end(), contract.begin(), contract.end());
    used = check_dims(kOp, used, x.rank());
    for (int64_t d = 0; d < x.rank(); ++d) {
      if (!std::binary_search(used.begin(), used.end(), d)) result.push_back(x.dims()[d]);
    }
  };
  rest(lhs, lb, lc);
  rest(rhs, rb, rc);
  std::string numbers = "#stablehlo.dot<";
  const auto list = [&](const char* name, const Dims& dims) {
    if (dims.empty()) return;
    if (numbers.back() != '<') numbers += ", ";
    numbers += name;
    numbers += " = " + list_text(dims);
  };
  list("lhs_batching_dimensions", lb);
  list("rhs_batching_dimensions", rb);
  list("lhs_contracting_dimensions", lc);
  list("rhs_contracting_dimensions", rc);
  numbers += '>';
  const Value operands[] = {lhs, rhs};
  return b.append1(
      kOp, operands,
      Attributes().raw("dot_dimension_numbers", numbers).precision(precision, lhs.dtype()).take(),
      {result_dtype.value_or(lhs.dtype()), std::move(result)});
}

Value convolution(const Value& lhs, const Value& rhs, const ConvDims& dims,
                  const ConvConfig& config, std::optional<DType> result_dtype) {
  constexpr const char* kOp = "stablehlo.convolution";
  Builder& b = builder_of(kOp, lhs);
  builder_of(kOp, rhs);
  const std::string types = lhs.type().str() + " and " + rhs.type().str();
  if (lhs.dtype() != rhs.dtype()) fail(kOp, "operands " + types + " differ in element type");
  if (lhs.dtype() == DType::C32) {
    const Value l = convert(lhs, DType::C64), r = convert(rhs, DType::C64);
    return convert(convolution(l, r, dims, config), result_dtype.value_or(DType::C32));
  }
  const size_t n = dims.input_spatial.size();
  check_size(kOp, "kernel_spatial", dims.kernel_spatial.size(), n);
  check_size(kOp, "output_spatial", dims.output_spatial.size(), n);
  if (lhs.rank() != static_cast<int64_t>(n) + 2 || rhs.rank() != static_cast<int64_t>(n) + 2) {
    fail(kOp, "operands " + types + " do not have " + std::to_string(n) + " spatial dimensions");
  }
  const std::string numbers =
      "#stablehlo.conv<" +
      layout(kOp, dims.input_batch, 'b', dims.input_feature, 'f', dims.input_spatial) + "x" +
      layout(kOp, dims.kernel_output_feature, 'o', dims.kernel_input_feature, 'i',
             dims.kernel_spatial) +
      "->" + layout(kOp, dims.output_batch, 'b', dims.output_feature, 'f', dims.output_spatial) +
      ">";
  const auto filled = [&](const Dims& given, int64_t value, const char* what) {
    Dims result = given.empty() ? Dims(n, value) : given;
    check_size(kOp, what, result.size(), n);
    if (std::any_of(result.begin(), result.end(), [&](int64_t d) { return value == 1 && d < 1; })) {
      fail(kOp, std::string(what) + " " + list_text(result) + " must be positive");
    }
    return result;
  };
  const Dims strides = filled(config.window_strides, 1, "window_strides");
  const Dims low = filled(config.pad_low, 0, "pad_low");
  const Dims high = filled(config.pad_high, 0, "pad_high");
  const Dims base = filled(config.lhs_dilation, 1, "lhs_dilation");
  const Dims dilation = filled(config.rhs_dilation, 1, "rhs_dilation");
  std::vector<bool> reversal = config.window_reversal;
  if (reversal.empty()) reversal.assign(n, false);
  check_size(kOp, "window_reversal", reversal.size(), n);

  const int64_t groups = config.feature_group_count;
  const int64_t batch_groups = config.batch_group_count;
  const int64_t batch = lhs.dims()[dims.input_batch];
  const int64_t features = rhs.dims()[dims.kernel_output_feature];
  if (groups < 1 || batch_groups < 1 || (groups > 1 && batch_groups > 1) ||
      lhs.dims()[dims.input_feature] != rhs.dims()[dims.kernel_input_feature] * groups ||
      features % groups != 0 || features % batch_groups != 0 || batch % batch_groups != 0) {
    fail(kOp, "operands " + types + " do not fit " + numbers + " in " + std::to_string(groups) +
                  " feature and " + std::to_string(batch_groups) + " batch groups");
  }
  Dims result(n + 2);
  result[dims.output_batch] = batch / batch_groups;
  result[dims.output_feature] = features;
  for (size_t i = 0; i < n; ++i) {
    result[dims.output_spatial[i]] =
        window_count(lhs.dims()[dims.input_spatial[i]], rhs.dims()[dims.kernel_spatial[i]],
                     strides[i], base[i], dilation[i], low[i] + high[i]);
  }
  const Value operands[] = {lhs, rhs};
  return b.append1(kOp, operands,
                   Attributes()
                       .i64("batch_group_count", batch_groups)
                       .raw("dimension_numbers", numbers)
                       .i64("feature_group_count", groups)
                       .ints("lhs_dilation", base)
                       .padding(low, high)
                       .precision(config.precision, lhs.dtype())
                       .ints("rhs_dilation", dilation)
                       .bools("window_reversal", reversal)
                       .ints("window_strides", strides)
                       .take(),
                   {result_dtype.value_or(lhs.dtype()), std::move(result)});
}

}  // namespace torch_tpu::hlo
