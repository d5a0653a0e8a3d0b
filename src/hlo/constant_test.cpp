// SPDX-License-Identifier: Apache-2.0 - Tests of the text of constants.
#include <gtest/gtest.h>

#include <limits>

#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::string text_of(Builder& b, const Value& x) {
  const Function fn = b.finish({&x, 1});
  return fn.body[0].attributes;
}
std::string text(DType dtype, double value) {
  Builder b;
  return text_of(b, scalar(b, dtype, value));
}
std::string int_text(DType dtype, int64_t value) {
  Builder b;
  return text_of(b, constant_int(b, {dtype, {}}, value));
}

TEST(Constant, Floats) {
  EXPECT_EQ(text(DType::F32, 1), "value = dense<1.0> : tensor<f32>");
  EXPECT_EQ(text(DType::F32, -0.0), "value = dense<-0.0> : tensor<f32>");
  EXPECT_EQ(text(DType::BF16, 0.1), "value = dense<0.1> : tensor<bf16>");
  EXPECT_EQ(text(DType::F64, 1e300), "value = dense<1.0e+300> : tensor<f64>");
  EXPECT_EQ(text(DType::F64, 0.1 + 0.2), "value = dense<0.30000000000000004> : tensor<f64>");
  EXPECT_EQ(text(DType::F32, kNaN), "value = dense<0x7FC00000> : tensor<f32>");
  EXPECT_EQ(text(DType::F64, -kInf), "value = dense<0xFFF0000000000000> : tensor<f64>");
  EXPECT_EQ(text(DType::F16, kInf), "value = dense<0x7C00> : tensor<f16>");
  EXPECT_EQ(text(DType::F8E4M3FN, kInf), "value = dense<0x7F> : tensor<f8E4M3FN>");
  EXPECT_EQ(text(DType::F4E2M1FN, kInf), "value = dense<0x7> : tensor<f4E2M1FN>");
}

TEST(Constant, Integers) {
  EXPECT_EQ(text(DType::S32, -1.9), "value = dense<-1> : tensor<i32>");
  EXPECT_EQ(text(DType::Pred, 0.5), "value = dense<true> : tensor<i1>");
  EXPECT_EQ(int_text(DType::U64, -1), "value = dense<18446744073709551615> : tensor<ui64>");
  EXPECT_EQ(int_text(DType::S64, std::numeric_limits<int64_t>::min()),
            "value = dense<-9223372036854775808> : tensor<i64>");
  EXPECT_EQ(text(DType::U64, 18446744073709549568.0),
            "value = dense<18446744073709549568> : tensor<ui64>");
  EXPECT_EQ(int_text(DType::U8, -1), "value = dense<255> : tensor<ui8>");
  EXPECT_EQ(int_text(DType::S8, 200), "value = dense<-56> : tensor<i8>");
  EXPECT_EQ(int_text(DType::F32, 3), "value = dense<3.0> : tensor<f32>");
}

TEST(Constant, Complex) {
  Builder b;
  EXPECT_EQ(text_of(b, constant_complex(b, {DType::C64, {2}}, 1.5, kNaN)),
            "value = dense<(1.5, 0x7FC00000)> : tensor<2xcomplex<f32>>");
  EXPECT_EQ(text(DType::C128, 2), "value = dense<(2.0, 0.0)> : tensor<complex<f64>>");
}

TEST(Constant, Lists) {
  const std::vector<int64_t> six = {1, 2, 3, 4, 5, 6};
  const std::vector<double> zeros_of_both_signs = {0.0, -0.0};
  Builder b;
  EXPECT_EQ(text_of(b, constant_ints(b, {DType::S64, {2, 3}}, six)),
            "value = dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi64>");
  EXPECT_EQ(text_of(b, constant_ints(b, {DType::S64, {2}}, std::vector<int64_t>{7, 7})),
            "value = dense<7> : tensor<2xi64>");
  EXPECT_EQ(text_of(b, constant_doubles(b, {DType::F32, {2}}, zeros_of_both_signs)),
            "value = dense<[0.0, -0.0]> : tensor<2xf32>");
  EXPECT_EQ(text_of(b, constant_ints(b, {DType::S64, {0, 3}}, {})),
            "value = dense<> : tensor<0x3xi64>");
  EXPECT_EQ(text_of(b, zeros(b, {DType::F32, {3, 0}})), "value = dense<> : tensor<3x0xf32>");
}

}  // namespace
}  // namespace torch_tpu::hlo
