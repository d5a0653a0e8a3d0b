// SPDX-License-Identifier: Apache-2.0 - Tests of the printed module: whole texts, which cache keys hang on.
#include <gtest/gtest.h>

#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

// The instructions of main, without the module around them and the indentation.
std::string body(Builder& b, const Values& results) {
  const std::string text = write_module(b.finish(results));
  const size_t begin = text.find('\n', text.find("func.func")) + 1;
  const size_t end = text.find("    \"func.return\"");
  std::string out;
  for (size_t at = begin; at < end;) {
    const size_t next = text.find('\n', at) + 1;
    out += text.substr(at + 4, next - at - 4);
    at = next;
  }
  return out;
}

TEST(Writer, WholeModule) {
  Builder b;
  const Value x = b.param({DType::F32, {8}});
  const Value y = b.param({DType::F32, {8}});
  const Value results[] = {x + y, y};
  ModuleOptions options;
  options.name = "sum";
  options.param_attributes = {"tf.aliasing_output = 0 : i32", ""};
  EXPECT_EQ(write_module(b.finish(results), options),
            R"(module @sum {
  func.func public @main(%0: tensor<8xf32> {tf.aliasing_output = 0 : i32}, %1: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
    %2 = "stablehlo.add"(%0, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    "func.return"(%2, %1) : (tensor<8xf32>, tensor<8xf32>) -> ()
  }
}
)");
}

TEST(Writer, NothingInNothingOut) {
  Builder b;
  EXPECT_EQ(write_module(b.finish({})), R"(module @program {
  func.func public @main() -> () {
    "func.return"() : () -> ()
  }
}
)");
}

TEST(Writer, Broadcasting) {
  Builder b;
  const Value x = b.param({DType::F32, {2, 3}});
  const Value y = b.param({DType::F32, {3}});
  EXPECT_EQ(
      body(b, {x * y - 1}),
      R"(%2 = "stablehlo.broadcast_in_dim"(%1) <{broadcast_dimensions = array<i64: 1>}> : (tensor<3xf32>) -> tensor<2x3xf32>
%3 = "stablehlo.multiply"(%0, %2) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
%4 = "stablehlo.constant"() <{value = dense<1.0> : tensor<2x3xf32>}> : () -> tensor<2x3xf32>
%5 = "stablehlo.subtract"(%3, %4) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
)");
}

TEST(Writer, CompareAndSelect) {
  Builder b;
  const Value x = b.param({DType::U8, {2}});
  const Value y = b.param({DType::U8, {2}});
  EXPECT_EQ(
      body(b, {select(lt(x, y), x, y)}),
      R"(%2 = "stablehlo.compare"(%0, %1) <{compare_type = #stablehlo<comparison_type UNSIGNED>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<2xui8>, tensor<2xui8>) -> tensor<2xi1>
%3 = "stablehlo.select"(%2, %0, %1) : (tensor<2xi1>, tensor<2xui8>, tensor<2xui8>) -> tensor<2xui8>
)");
}

TEST(Writer, Reduce) {
  Builder b;
  const Value x = b.param({DType::F32, {2, 3}});
  EXPECT_EQ(
      body(b, {reduce(x, {1}, Reduce::Maximum, true)}),
      R"(%1 = "stablehlo.constant"() <{value = dense<0xFF800000> : tensor<f32>}> : () -> tensor<f32>
%5 = "stablehlo.reduce"(%0, %1) <{dimensions = array<i64: 1>}> ({
^bb0(%2: tensor<f32>, %3: tensor<f32>):
  %4 = "stablehlo.maximum"(%2, %3) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%4) : (tensor<f32>) -> ()
}) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
%6 = "stablehlo.reshape"(%5) : (tensor<2xf32>) -> tensor<2x1xf32>
)");
}

TEST(Writer, SeveralResultsAndNestedRegions) {
  Builder b;
  const Value p = b.param({DType::Pred, {}});
  const Value x = b.param({DType::F32, {}});
  const Values out = if_else(
      p, [&] { return Values{x, exponential(x)}; },
      [&] {
        return Values{if_else(p, [&] { return Values{x}; }, [&] { return Values{x}; })[0], x};
      });
  EXPECT_EQ(body(b, out), R"(%4, %5 = "stablehlo.if"(%0) ({
  %2 = "stablehlo.exponential"(%1) : (tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%1, %2) : (tensor<f32>, tensor<f32>) -> ()
}, {
  %3 = "stablehlo.if"(%0) ({
    "stablehlo.return"(%1) : (tensor<f32>) -> ()
  }, {
    "stablehlo.return"(%1) : (tensor<f32>) -> ()
  }) : (tensor<i1>) -> tensor<f32>
  "stablehlo.return"(%3, %1) : (tensor<f32>, tensor<f32>) -> ()
}) : (tensor<i1>) -> (tensor<f32>, tensor<f32>)
)");
}

TEST(Writer, GatherAndScatter) {
  Builder b;
  const Value x = b.param({DType::F32, {2, 3}});
  const Value i = b.param({DType::S64, {4}});
  const Value rows = take(x, i, 0);
  ScatterDims dims;
  dims.update_window_dims = {1};
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  EXPECT_EQ(
      body(b, {scatter(x, i, rows, dims, add)}),
      R"(%2 = "stablehlo.gather"(%0, %1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 3>}> : (tensor<2x3xf32>, tensor<4xi64>) -> tensor<4x3xf32>
%6 = "stablehlo.scatter"(%0, %1, %2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
^bb0(%3: tensor<f32>, %4: tensor<f32>):
  %5 = "stablehlo.add"(%3, %4) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  "stablehlo.return"(%5) : (tensor<f32>) -> ()
}) : (tensor<2x3xf32>, tensor<4xi64>, tensor<4x3xf32>) -> tensor<2x3xf32>
)");
}

TEST(Writer, DotAndItsPrecision) {
  Builder b;
  const Value x = b.param({DType::F32, {2, 3}});
  const Value h = b.param({DType::BF16, {3}});
  const Value exact = dot_general(x, x, {}, {}, {1}, {1});
  const Value half = dot_general(h, h, {}, {}, {0}, {0}, DType::F32);
  EXPECT_EQ(
      body(b, {exact, half}),
      R"(%2 = "stablehlo.dot_general"(%0, %0) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
%3 = "stablehlo.dot_general"(%1, %1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]>}> : (tensor<3xbf16>, tensor<3xbf16>) -> tensor<f32>
)");
}

TEST(Writer, Convolution) {
  Builder b;
  const Value x = b.param({DType::F32, {1, 4, 4, 2}});
  const Value k = b.param({DType::F32, {3, 3, 2, 5}});
  const ConvDims dims{0, 3, {1, 2}, 3, 2, {0, 1}, 0, 3, {1, 2}};
  ConvConfig config;
  config.pad_low = {1, 1};
  config.pad_high = {1, 0};
  EXPECT_EQ(
      body(b, {convolution(x, k, dims, config)}),
      R"(%2 = "stablehlo.convolution"(%0, %1) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, lhs_dilation = array<i64: 1, 1>, padding = dense<[[1, 1], [1, 0]]> : tensor<2x2xi64>, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>], rhs_dilation = array<i64: 1, 1>, window_reversal = array<i1: false, false>, window_strides = array<i64: 1, 1>}> : (tensor<1x4x4x2xf32>, tensor<3x3x2x5xf32>) -> tensor<1x4x3x5xf32>
)");
}

TEST(Writer, Sort) {
  Builder b;
  const Value x = b.param({DType::F32, {4}});
  EXPECT_EQ(body(b, sort({&x, 1}, 0, true,
                         [](const Values& l, const Values& r) {
                           return compare_total(l[0], r[0], Compare::LT);
                         })),
            R"(%4 = "stablehlo.sort"(%0) <{dimension = 0 : i64, is_stable = true}> ({
^bb0(%1: tensor<f32>, %2: tensor<f32>):
  %3 = "stablehlo.compare"(%1, %2) <{compare_type = #stablehlo<comparison_type TOTALORDER>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
  "stablehlo.return"(%3) : (tensor<i1>) -> ()
}) : (tensor<4xf32>) -> tensor<4xf32>
)");
}

TEST(Writer, CustomCalls) {
  Builder b;
  const Value x = b.param({DType::F32, {4}});
  const Value typed = custom_call(b, "kernel", {&x, 1}, {x.type()}, "{n = 1 : i64}", 4)[0];
  const Value plain = custom_call(b, "other", {&x, 1}, {x.type()}, "a\"b\n")[0];
  EXPECT_EQ(
      body(b, {typed, plain}),
      R"(%1 = "stablehlo.custom_call"(%0) <{api_version = 4 : i32, backend_config = {n = 1 : i64}, call_target_name = "kernel", has_side_effect = false}> : (tensor<4xf32>) -> tensor<4xf32>
%2 = "stablehlo.custom_call"(%0) <{api_version = 1 : i32, backend_config = "a\22b\0A", call_target_name = "other", has_side_effect = false}> : (tensor<4xf32>) -> tensor<4xf32>
)");
}

}  // namespace
}  // namespace torch_tpu::hlo
