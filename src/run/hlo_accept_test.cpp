// SPDX-License-Identifier: Apache-2.0 - Every builder function, compiled and run by a plugin, with its values checked.
//
// With TORCH_TPU_TEST_TOPOLOGY (for instance v5e:1x1x1) libtpu compiles every module as well.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numbers>
#include <string>

#include "src/hlo/builder.h"
#include "src/pjrt/client.h"
#include "src/pjrt/plugin.h"
#include "src/pjrt/test_plugin.h"
#include "src/pjrt/topology.h"

namespace torch_tpu::hlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using pjrt::testing::test_client;

// One module: inputs given as doubles (so nothing is folded at compile time), outputs compared as
// doubles.
class Module {
 public:
  Builder b;
  bool for_tpu = true;  // false: TPUs have no such thing for 64-bit floats

  Value in(const Type& type, std::vector<double> values) {
    EXPECT_EQ(static_cast<int64_t>(values.size()), type.elements());
    inputs_.push_back(std::move(values));
    return convert(b.param({DType::F64, type.dims}), type.dtype);
  }
  // Exact when tolerance is 0, signs of zeros included.
  void out(const std::string& name, const Value& x, std::vector<double> expected,
           double tolerance = 0) {
    EXPECT_EQ(x.elements(), static_cast<int64_t>(expected.size())) << name << x.type().str();
    names_.push_back(name);
    outputs_.push_back(convert(x, DType::F64));
    expected_.push_back(std::move(expected));
    tolerances_.push_back(tolerance);
  }
  void out_complex(const std::string& name, const Value& x, std::vector<double> re,
                   std::vector<double> im, double tolerance = 0) {
    out(name + ".real", real(x), std::move(re), tolerance);
    out(name + ".imag", imag(x), std::move(im), tolerance);
  }

  void run() {
    const Function fn = b.finish(outputs_);
    const std::string text = write_module(fn);
    SCOPED_TRACE(text);
    pjrt::CompileOptions options;
    options.env_overrides.emplace_back("xla_cpu_enable_fast_min_max", false);
    pjrt::Executable program = test_client()->compile(text, options);
    std::vector<pjrt::Buffer> buffers;
    std::vector<PJRT_Buffer*> raw_inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Dims& dims = fn.types[fn.params[i]].dims;
      buffers.push_back(
          test_client()->from_host(inputs_[i].data(), pjrt::kF64, dims, test_client()->device(0)));
      raw_inputs.push_back(buffers.back().raw());
    }
    std::vector<PJRT_Buffer*> raw_outputs(names_.size());
    program.execute(raw_inputs, {}, raw_outputs);
    for (size_t i = 0; i < names_.size(); ++i) {
      pjrt::Buffer buffer(test_client()->api(), raw_outputs[i]);
      std::vector<double> got(expected_[i].size());
      buffer.to_host(got.data(), got.size() * sizeof(double));
      compare(names_[i], got, expected_[i], tolerances_[i]);
    }
    const char* topology = std::getenv("TORCH_TPU_TEST_TOPOLOGY");
    if (for_tpu && topology != nullptr) {
      pjrt::Plugin::set_search_paths({pjrt::testing::site_packages()});
      static const auto libtpu = pjrt::Plugin::load(pjrt::Plugin::find("libtpu"));
      pjrt::Topology::create(libtpu, topology).compile(text);
    }
  }

 private:
  static void compare(const std::string& name, const std::vector<double>& got,
                      const std::vector<double>& expected, double tolerance) {
    for (size_t i = 0; i < got.size(); ++i) {
      const double g = got[i];
      const double e = expected[i];
      bool equal = std::isnan(e) ? std::isnan(g) : g == e;
      if (tolerance == 0 && e == 0) equal = equal && std::signbit(g) == std::signbit(e);
      if (!equal && tolerance > 0)
        equal = std::abs(g - e) <= tolerance * std::max(1.0, std::abs(e));
      EXPECT_TRUE(equal) << name << "[" << i << "]: got " << g << ", expected " << e;
    }
  }

  std::vector<std::vector<double>> inputs_;
  std::vector<std::string> names_;
  Values outputs_;
  std::vector<std::vector<double>> expected_;
  std::vector<double> tolerances_;
};

std::vector<double> map(const std::vector<double>& xs, const std::function<double(double)>& f) {
  std::vector<double> result;
  for (double x : xs) result.push_back(f(x));
  return result;
}

TEST(HloAccept, UnaryFloat) {
  const std::vector<double> xs = {-0.5, 0.25, 0.75};
  const std::vector<double> over_one = {1.5, 2.25, 3.0};
  for (DType dtype : {DType::F32, DType::F64}) {
    Module m;
    const double tolerance = dtype == DType::F32 ? 2e-6 : 1e-12;
    const Value x = m.in({dtype, {3}}, xs);
    const Value y = m.in({dtype, {3}}, over_one);
#define CHECK_AT(name, operand, values, f) \
  m.out(#name, name(operand), map(values, [](double v) -> double { return f; }), tolerance)
    CHECK_AT(abs, x, xs, std::abs(v));
    CHECK_AT(cbrt, x, xs, std::cbrt(v));
    CHECK_AT(ceil, x, xs, std::ceil(v));
    CHECK_AT(cosine, x, xs, std::cos(v));
    CHECK_AT(exponential, x, xs, std::exp(v));
    CHECK_AT(exponential_minus_one, x, xs, std::expm1(v));
    CHECK_AT(floor, x, xs, std::floor(v));
    CHECK_AT(log, y, over_one, std::log(v));
    CHECK_AT(log_plus_one, x, xs, std::log1p(v));
    CHECK_AT(logistic, x, xs, 1 / (1 + std::exp(-v)));
    CHECK_AT(negate, x, xs, -v);
    CHECK_AT(rsqrt, y, over_one, 1 / std::sqrt(v));
    CHECK_AT(sign, x, xs, v < 0 ? -1 : 1);
    CHECK_AT(sine, x, xs, std::sin(v));
    CHECK_AT(sqrt, y, over_one, std::sqrt(v));
    CHECK_AT(tan, x, xs, std::tan(v));
    CHECK_AT(tanh, x, xs, std::tanh(v));
    CHECK_AT(acos, x, xs, std::acos(v));
    CHECK_AT(acosh, y, over_one, std::acosh(v));
    CHECK_AT(asin, x, xs, std::asin(v));
    CHECK_AT(asinh, x, xs, std::asinh(v));
    CHECK_AT(atan, x, xs, std::atan(v));
    CHECK_AT(atanh, x, xs, std::atanh(v));
    CHECK_AT(cosh, x, xs, std::cosh(v));
    CHECK_AT(erf, x, xs, std::erf(v));
    CHECK_AT(erfc, x, xs, std::erfc(v));
    CHECK_AT(lgamma, y, over_one, std::lgamma(v));
    CHECK_AT(sinh, x, xs, std::sinh(v));
    m.out("erf(erf_inv)", erf(erf_inv(x)), xs, tolerance);
    m.out("bessel_i1e", bessel_i1e(y), {0.219039387421, 0.211216616008, 0.196826713297}, tolerance);
    m.out("digamma", digamma(y), {0.0364899739786, 0.572546466624, 0.922784335098}, tolerance);
#undef CHECK_AT
    const Value special = m.in({dtype, {5}}, {kInf, -kInf, kNaN, 2.5, -0.0});
    m.out("is_finite", is_finite(special), {0, 0, 0, 1, 1});
    m.out("is_inf", is_inf(special), {1, 1, 0, 0, 0});
    m.out("is_pos_inf", is_pos_inf(special), {1, 0, 0, 0, 0});
    m.out("is_neg_inf", is_neg_inf(special), {0, 1, 0, 0, 0});
    m.out("is_nan", is_nan(special), {0, 0, 1, 0, 0});
    m.out("sign", sign(special), {1, -1, kNaN, 1, -0.0});
    m.out("round_nearest_even", round_nearest_even(special), {kInf, -kInf, kNaN, 2, -0.0});
    m.out("round_nearest_afz", round_nearest_afz(special), {kInf, -kInf, kNaN, 3, -0.0});
    m.out("optimization_barrier", optimization_barrier(x), xs);
    m.run();
  }
  Module m;
  m.out("reduce_precision", reduce_precision(m.in({DType::F32, {1}}, {1.0078125}), 8, 3), {1});
  m.run();
}

TEST(HloAccept, UnaryInteger) {
  for (DType dtype : {DType::S8, DType::S16, DType::S32, DType::S64}) {
    Module m;
    const Value x = m.in({dtype, {3}}, {-7, 0, 5});
    m.out("abs", abs(x), {7, 0, 5});
    m.out("negate", negate(x), {7, 0, -5});
    m.out("not_", not_(x), {6, -1, -6});
    m.out("sign", sign(x), {-1, 0, 1});
    m.out("popcnt", popcnt(x), {static_cast<double>(bit_width(dtype) - 2), 0, 2});
    const double bits = bit_width(dtype);
    m.out("count_leading_zeros", count_leading_zeros(x), {0, bits, bits - 3});
    m.run();
  }
  Module m;
  const Value u = m.in({DType::U8, {2}}, {0, 200});
  m.out("abs", abs(u), {0, 200});
  m.out("sign", sign(u), {0, 1});
  m.out("not_", not_(m.in({DType::Pred, {2}}, {0, 1})), {1, 0});
  m.run();
}

TEST(HloAccept, Binary) {
  Module m;
  const Value a = m.in({DType::F32, {2, 1}}, {1, -2});
  const Value b = m.in({DType::F32, {3}}, {4, 0.5, -0.0});
  m.out("add", a + b, {5, 1.5, 1, 2, -1.5, -2});
  m.out("subtract", a - b, {-3, 0.5, 1, -6, -2.5, -2});
  m.out("multiply", a * b, {4, 0.5, -0.0, -8, -1, 0.0});
  m.out("divide", a / b, {0.25, 2, -kInf, -0.5, -4, kInf});
  m.out("atan2", atan2(a, a), {std::numbers::pi / 4, -3 * std::numbers::pi / 4}, 1e-6);
  m.out("power", power(a, m.in({DType::F32, {}}, {3})), {1, -8}, 1e-6);
  m.out("remainder", remainder(m.in({DType::F32, {2}}, {5.5, -5.5}), m.in({DType::F32, {}}, {2})),
        {1.5, -1.5});
  const Value nan = m.in({DType::F32, {}}, {kNaN});
  m.out("maximum", maximum(b, m.in({DType::F32, {}}, {0.25})), {4, 0.5, 0.25});
  m.out("maximum NaN", maximum(b, nan), {kNaN, kNaN, kNaN});
  m.out("minimum NaN", minimum(nan, b), {kNaN, kNaN, kNaN});
  m.out("double on the right", (a + 1) * 2 - 3, {1, -5});
  m.out("double on the left", 1 - (2 * (3 + (4 / a))), {-13, -1});
  m.out("maximum double", maximum(b, 1.0), {4, 1, 1});
  m.out("minimum double", minimum(b, 0.0), {0.0, 0.0, -0.0}, 1e-9);
  m.out("next_after", next_after(m.in({DType::F32, {}}, {1}), m.in({DType::F32, {}}, {2})),
        {1.00000011920928955078125});
  m.out("polygamma", polygamma(m.in({DType::F32, {}}, {1}), m.in({DType::F32, {}}, {1})),
        {std::numbers::pi * std::numbers::pi / 6}, 1e-5);
  m.out("zeta", zeta(m.in({DType::F32, {}}, {2}), m.in({DType::F32, {}}, {1})),
        {std::numbers::pi * std::numbers::pi / 6}, 1e-5);

  const Value i = m.in({DType::S32, {2}}, {-7, 6});
  const Value j = m.in({DType::S32, {}}, {2});
  m.out("divide s32", i / j, {-3, 3});
  m.out("remainder s32", remainder(i, j), {-1, 0});
  m.out("power s32", power(i, j), {49, 36});
  m.out("and s32", i & j, {0, 2});
  m.out("or s32", i | j, {-5, 6});
  m.out("xor s32", xor_(i, j), {-5, 4});
  m.out("shift_left", shift_left(i, j), {-28, 24});
  m.out("shift_right_arithmetic", shift_right_arithmetic(i, j), {-2, 1});
  m.out("shift_right_logical", shift_right_logical(i, j), {1073741822, 1});
  const Value p = m.in({DType::Pred, {2}}, {0, 1});
  const Value q = m.in({DType::Pred, {}}, {1});
  m.out("and pred", p & q, {0, 1});
  m.out("or pred", p | q, {1, 1});
  m.out("xor pred", xor_(p, q), {1, 0});
  m.out("add pred", p + q, {1, 1});
  m.out("multiply pred", p * q, {0, 1});
  m.out("maximum pred", maximum(p, q), {1, 1});
  m.out("minimum pred", minimum(p, q), {0, 1});
  m.run();
}

TEST(HloAccept, CompareSelectClamp) {
  Module m;
  const Value x = m.in({DType::F32, {4}}, {1, kNaN, -0.0, 2});
  const Value y = m.in({DType::F32, {4}}, {1, kNaN, 0.0, 1});
  m.out("eq", eq(x, y), {1, 0, 1, 0});
  m.out("ne", ne(x, y), {0, 1, 0, 1});
  m.out("ge", ge(x, y), {1, 0, 1, 1});
  m.out("gt", gt(x, y), {0, 0, 0, 1});
  m.out("le", le(x, y), {1, 0, 1, 0});
  m.out("lt", lt(x, y), {0, 0, 0, 0});
  m.out("lt double", lt(x, 1.5), {1, 0, 1, 0});
  m.out("total", compare_total(x, y, Compare::LT), {0, 0, 1, 0});
  m.out("total with NaN", compare_total(m.in({DType::F32, {}}, {kInf}), abs(x), Compare::LT),
        {0, 1, 0, 0});
  m.out("u64", gt(constant_int(m.b, {DType::U64, {}}, -1), m.in({DType::U64, {}}, {5})), {1});
  m.out("s64", gt(constant_int(m.b, {DType::S64, {}}, -1), m.in({DType::S64, {}}, {5})), {0});
  m.out("pred", lt(m.in({DType::Pred, {}}, {0}), m.in({DType::Pred, {}}, {1})), {1});
  const Value c = complex(x, y);
  m.out("complex eq", eq(c, c), {1, 0, 1, 1});
  m.out_complex("complex", c, {1, kNaN, -0.0, 2}, {1, kNaN, 0.0, 1});
  m.out("abs complex", abs(complex(m.in({DType::F64, {}}, {3}), m.in({DType::F64, {}}, {4}))), {5},
        1e-12);
  m.out("select",
        select(m.in({DType::Pred, {2, 1}}, {1, 0}), m.in({DType::S32, {2}}, {1, 2}),
               m.in({DType::S32, {}}, {9})),
        {1, 2, 9, 9});
  m.out("select 0-dim", select(m.in({DType::Pred, {}}, {1}), x, y), {1, kNaN, -0.0, 2});
  m.out("select double", select(gt(x, 0), x, -1), {1, -1, -1, 2});
  m.out("select double first", select(gt(x, 0), -1, y), {-1, kNaN, 0.0, -1});
  m.out("clamp", clamp(m.in({DType::F32, {}}, {0.5}), x, m.in({DType::F32, {4}}, {0.75, 9, 9, 9})),
        {0.75, kNaN, 0.5, 2});
  m.run();
}

TEST(HloAccept, Convert) {
  struct Case {
    DType from;
    double value;
    DType to;
    double expected;
  };
  const std::vector<Case> cases = {
      {DType::F32, -1.9, DType::S32, -1},
      {DType::F32, 2.9, DType::S64, 2},
      {DType::F64, -1.0, DType::U8, 255},
      {DType::F32, 300.7, DType::U8, 44},
      {DType::F32, 300.7, DType::S8, 44},
      {DType::F32, -1.5, DType::U16, 65535},
      {DType::F32, -2.0, DType::U32, 4294967294.0},
      {DType::F64, 18446744073709549568.0, DType::U64, 18446744073709549568.0},
      {DType::F32, -1.0, DType::U64, 18446744073709551616.0},  // 2^64 - 1, as a double
      {DType::F16, -1.0, DType::U64, 18446744073709551616.0},
      {DType::F16, -1.5, DType::U32, 4294967295.0},
      {DType::F64, -4294967299.0, DType::U32, 4294967293.0},
      {DType::F64, -0.5, DType::U64, 0},
      {DType::BF16, -1.0, DType::U8, 255},
      {DType::F32, 0.25, DType::Pred, 1},
      {DType::F32, -0.0, DType::Pred, 0},
      {DType::F32, kNaN, DType::Pred, 1},
      {DType::S32, 256, DType::Pred, 1},
      {DType::S32, 257, DType::U8, 1},
      {DType::S32, -1, DType::U64, 18446744073709551616.0},
      {DType::U8, 200, DType::S8, -56},
      {DType::Pred, 1, DType::F16, 1},
      {DType::Pred, 1, DType::S64, 1},
      {DType::Pred, 1, DType::F8E4M3FN, 1},
      {DType::S64, 2049, DType::F16, 2048},
      // Just above the middle of two halves; float32 rounds it to the middle, then to even.
      {DType::F64, 1 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40), DType::F16, 1},
      {DType::F32, 3.14159, DType::BF16, 3.140625},
      {DType::F32, 70000, DType::F16, kInf},
      {DType::F32, 0.3, DType::F8E4M3FN, 0.3125},
      {DType::F32, 0.3, DType::F8E5M2, 0.3125},
      {DType::F32, 0.3, DType::F8E4M3FNUZ, 0.3125},
      {DType::F32, 0.3, DType::F8E5M2FNUZ, 0.3125},
      {DType::F32, 4, DType::F8E8M0FNU, 4},
      {DType::F32, 2.9, DType::F4E2M1FN, 3},
      {DType::F8E4M3FN, 1.5, DType::S32, 1},
      {DType::F8E5M2, 1.5, DType::F8E4M3FN, 1.5},
      {DType::F8E4M3FN, 0.5, DType::Pred, 1},
      {DType::F4E2M1FN, 1.5, DType::BF16, 1.5},
  };
  Module m;
  for (const Case& c : cases) {
    m.out(std::string(torch_name(c.from)) + " -> " + std::string(torch_name(c.to)) + " of " +
              std::to_string(c.value),
          convert(m.in({c.from, {1}}, {c.value}), c.to), {c.expected});
  }
  m.out_complex("real -> complex", convert(m.in({DType::S32, {}}, {-3}), DType::C64), {-3}, {0});
  const Value z = complex(m.in({DType::F32, {2}}, {1.5, 0}), m.in({DType::F32, {2}}, {-2.5, 1}));
  m.out("complex -> real", convert(z, DType::F64), {1.5, 0});
  m.out("complex -> int", convert(z, DType::S32), {1, 0});
  m.out("complex -> pred", convert(z, DType::Pred), {1, 1});
  m.out_complex("complex64 -> complex128", convert(z, DType::C128), {1.5, 0}, {-2.5, 1});
  m.run();
}

TEST(HloAccept, BitcastConvert) {
  Module m;
  const Value x = m.in({DType::F32, {2}}, {1, -2});
  m.out("f32 -> s32", bitcast_convert(x, DType::S32), {1065353216, -1073741824});
  m.out("f32 -> u16", bitcast_convert(x, DType::U16), {0, 0x3F80, 0, 0xC000});
  m.out("and back", bitcast_convert(bitcast_convert(x, DType::U16), DType::F32), {1, -2});
  m.out("0-dim", bitcast_convert(m.in({DType::F32, {}}, {1}), DType::U8), {0, 0, 0x80, 0x3F});
  m.out("f64 <- f32", bitcast_convert(m.in({DType::F32, {2}}, {0, 1.875}), DType::F64), {1});
  const Value z = complex(x, m.in({DType::F32, {2}}, {3, 4}));
  m.out("complex -> f32", bitcast_convert(z, DType::F32), {1, 3, -2, 4});
  m.out_complex("f32 -> complex",
                bitcast_convert(m.in({DType::F32, {1, 4}}, {1, 2, 3, 4}), DType::C64), {1, 3},
                {2, 4});
  m.out_complex("s64 -> complex64", bitcast_convert(bitcast_convert(z, DType::S64), DType::C64),
                {1, -2}, {3, 4});
  m.out("pred -> u8", bitcast_convert(m.in({DType::Pred, {2}}, {1, 0}), DType::U8), {1, 0});
  m.out("u8 -> pred", bitcast_convert(m.in({DType::U8, {2}}, {1, 0}), DType::Pred), {1, 0});
  m.out("f8", bitcast_convert(m.in({DType::F8E4M3FN, {1}}, {1}), DType::U8), {0x38});
  m.run();
}

TEST(HloAccept, ConstantsAreExact) {
  Module m;
  const Value keep = m.in({DType::F64, {}}, {0});
  const auto bits = [&](const char* name, const Value& x, double expected) {
    m.out(name,
          bitcast_convert(x, bit_width(x.dtype()) == 8    ? DType::U8
                             : bit_width(x.dtype()) == 16 ? DType::U16
                                                          : DType::U32),
          {expected});
  };
  bits("f32 NaN", nan_of(m.b, DType::F32), 0x7FC00000);
  bits("f32 inf", highest(m.b, DType::F32), 0x7F800000);
  bits("f32 -inf", lowest(m.b, DType::F32), 0xFF800000);
  bits("f32 -0.0", scalar(m.b, DType::F32, -0.0), 0x80000000);
  bits("f32 0.1", scalar(m.b, DType::F32, 0.1), 0x3DCCCCCD);
  bits("f32 max", max_finite(m.b, DType::F32), 0x7F7FFFFF);
  bits("f32 denormal", scalar(m.b, DType::F32, 1e-45), 1);
  bits("bf16 NaN", nan_of(m.b, DType::BF16), 0x7FC0);
  bits("bf16 max", max_finite(m.b, DType::BF16), 0x7F7F);
  bits("bf16 -inf", lowest(m.b, DType::BF16), 0xFF80);
  bits("f16 NaN", nan_of(m.b, DType::F16), 0x7E00);
  bits("f16 min", min_finite(m.b, DType::F16), 0xFBFF);
  bits("f16 inf", highest(m.b, DType::F16), 0x7C00);
  bits("f8e4m3fn NaN", nan_of(m.b, DType::F8E4M3FN), 0x7F);
  bits("f8e4m3fn max", highest(m.b, DType::F8E4M3FN), 0x7E);
  bits("f8e4m3fn 0.3", scalar(m.b, DType::F8E4M3FN, 0.3), 0x2A);
  bits("f8e5m2 inf", highest(m.b, DType::F8E5M2), 0x7C);
  bits("f8e5m2 min", min_finite(m.b, DType::F8E5M2), 0xFB);
  bits("f8e4m3fnuz NaN", nan_of(m.b, DType::F8E4M3FNUZ), 0x80);
  bits("f8e4m3fnuz max", max_finite(m.b, DType::F8E4M3FNUZ), 0x7F);
  bits("f8e5m2fnuz max", max_finite(m.b, DType::F8E5M2FNUZ), 0x7F);
  bits("f8e8m0fnu NaN", nan_of(m.b, DType::F8E8M0FNU), 0xFF);
  bits("f8e8m0fnu max", max_finite(m.b, DType::F8E8M0FNU), 0xFE);
  bits("f8e8m0fnu min", min_finite(m.b, DType::F8E8M0FNU), 0);
  bits("f8e8m0fnu 0", scalar(m.b, DType::F8E8M0FNU, 0), 0);
  m.out("f4", constant_doubles(m.b, {DType::F4E2M1FN, {3}}, std::vector<double>{1.5, -6, 0.5}),
        {1.5, -6, 0.5});
  m.out("f4 max", highest(m.b, DType::F4E2M1FN), {6});
  m.out("f64", scalar(m.b, DType::F64, 0.1), {0.1});
  m.out("f64 max", max_finite(m.b, DType::F64), {std::numeric_limits<double>::max()});
  m.out("f64 denormal", eq(bitcast_convert(scalar(m.b, DType::F64, 5e-324), DType::U64), 1), {1});
  m.out("f64 NaN", nan_of(m.b, DType::F64), {kNaN});
  m.out("f64 -0.0", scalar(m.b, DType::F64, -0.0), {-0.0});
  m.out("u64 max", eq(not_(highest(m.b, DType::U64)), 0), {1});
  m.out("s64 max",
        eq(highest(m.b, DType::S64) - constant_int(m.b, {DType::S64, {}}, 0x7FFFFFFFFFFFFFFE), 1),
        {1});
  m.out("s64 min", eq(lowest(m.b, DType::S64) + highest(m.b, DType::S64), -1), {1});
  m.out("2^53 + 1", constant_int(m.b, {DType::S64, {}}, (1LL << 53) + 1) - 9007199254740992.0, {1});
  m.out("s8", lowest(m.b, DType::S8), {-128});
  m.out("u16", highest(m.b, DType::U16), {65535});
  m.out("u8 wraps", constant_int(m.b, {DType::U8, {}}, -1), {255});
  m.out("pred", highest(m.b, DType::Pred), {1});
  m.out("pred list", constant_ints(m.b, {DType::Pred, {3}}, std::vector<int64_t>{1, 0, 5}),
        {1, 0, 1});
  m.out_complex("c64", constant_complex(m.b, {DType::C64, {}}, -0.0, kNaN), {-0.0}, {kNaN});
  m.out_complex("c128", constant_complex(m.b, {DType::C128, {2}}, 0.1, -kInf), {0.1, 0.1},
                {-kInf, -kInf});
  m.out("list", constant_ints(m.b, {DType::S64, {2, 2}}, std::vector<int64_t>{1, 2, -3, 4}),
        {1, 2, -3, 4});
  m.out("doubles",
        constant_doubles(m.b, {DType::F32, {2, 2}}, std::vector<double>{0.5, kInf, -0.0, 1e30}),
        {0.5, kInf, -0.0, static_cast<double>(1e30f)});
  m.out("zero signs in a list",
        constant_doubles(m.b, {DType::F64, {2}}, std::vector<double>{0.0, -0.0}), {0.0, -0.0});
  m.out("iota", iota(m.b, {DType::S32, {2, 3}}, -1), {0, 1, 2, 0, 1, 2});
  m.out("iota bf16", iota(m.b, {DType::BF16, {2}}, 0), {0, 1});
  m.out("full_like", full_like(keep, 7), {7});
  m.run();
}

TEST(HloAccept, Shape) {
  Module m;
  const Value x = m.in({DType::F32, {2, 3}}, {0, 1, 2, 3, 4, 5});
  const Value zero = m.in({DType::S64, {}}, {0});
  const Value five = m.in({DType::S64, {}}, {5});
  m.out("reshape", reshape(x, {3, 2}), {0, 1, 2, 3, 4, 5});
  m.out("transpose", transpose(x, {1, 0}), {0, 3, 1, 4, 2, 5});
  m.out("broadcast_in_dim", broadcast_in_dim(m.in({DType::F32, {2}}, {7, 8}), {2, 2}, {0}),
        {7, 7, 8, 8});
  m.out("broadcast_to", broadcast_to(m.in({DType::F32, {2, 1}}, {7, 8}), {1, 2, 2}), {7, 7, 8, 8});
  m.out("slice", slice(x, {0, 1}, {2, 3}, {1, 1}), {1, 2, 4, 5});
  m.out("slice stride", slice_dim(x, -1, 0, 3, 2), {0, 2, 3, 5});
  const Value starts[] = {five, zero};  // clamped to the last row
  m.out("dynamic_slice", dynamic_slice(x, starts, {1, 2}), {3, 4});
  m.out("dynamic_update_slice", dynamic_update_slice(x, m.in({DType::F32, {1, 2}}, {8, 9}), starts),
        {0, 1, 2, 8, 9, 5});
  m.out("pad", pad(x, m.in({DType::F32, {}}, {-1}), {0, 1}, {1, -1}, {0, 1}),
        {-1, 0, -1, 1, -1, -1, 3, -1, 4, -1, -1, -1, -1, -1, -1});
  const Value parts[] = {x, m.in({DType::F32, {2, 1}}, {8, 9})};
  m.out("concatenate", concatenate(parts, 1), {0, 1, 2, 8, 3, 4, 5, 9});
  m.out("reverse", reverse(x, {1}), {2, 1, 0, 5, 4, 3});
  m.run();
}

TEST(HloAccept, Indexing) {
  Module m;
  const Value x = m.in({DType::F32, {2, 3}}, {0, 1, 2, 3, 4, 5});
  const Value i = m.in({DType::S64, {2, 2}}, {2, 0, 1, 1});
  m.out("take 0-dim", take(x, m.in({DType::S32, {}}, {1}), 0), {3, 4, 5});
  m.out("take", take(x, i, 1), {2, 0, 1, 1, 5, 3, 4, 4});
  GatherDims pairs{
      .collapsed_slice_dims = {0, 1}, .start_index_map = {1, 0}, .index_vector_dim = 1};
  m.out("gather pairs", gather(x, m.in({DType::S32, {2, 2}}, {2, 0, 1, 1}), pairs, {1, 1}), {2, 4});
  GatherDims batched{.collapsed_slice_dims = {1},
                     .operand_batching_dims = {0},
                     .start_indices_batching_dims = {0},
                     .start_index_map = {1},
                     .index_vector_dim = 2};
  m.out("gather batched", gather(x, i, batched, {1, 1}), {2, 0, 4, 4});
  ScatterDims rows{.update_window_dims = {1},
                   .inserted_window_dims = {0},
                   .scatter_dims_to_operand_dims = {0},
                   .index_vector_dim = 1};
  const Value ones = m.in({DType::F32, {2, 3}}, {1, 1, 1, 10, 10, 10});
  m.out("scatter add", scatter(x, m.in({DType::S64, {2}}, {1, 1}), ones, rows, add),
        {0, 1, 2, 14, 15, 16});
  // Out of range in any part: that update is dropped.
  m.out("scatter set",
        scatter(
            x, m.in({DType::S64, {2}}, {0, 7}), ones, rows,
            [](const Value&, const Value& update) { return update; }, false, true),
        {1, 1, 1, 3, 4, 5});
  ScatterDims batched_scatter{.inserted_window_dims = {1},
                              .input_batching_dims = {0},
                              .scatter_indices_batching_dims = {0},
                              .scatter_dims_to_operand_dims = {1},
                              .index_vector_dim = 2};
  m.out("scatter batched",
        scatter(x, i, m.in({DType::F32, {2, 2}}, {10, 20, 30, 40}), batched_scatter, add),
        {20, 1, 12, 3, 74, 5});
  m.run();
}

TEST(HloAccept, Reduce) {
  Module m;
  const Value x = m.in({DType::F32, {2, 3}}, {1, 2, 3, 4, -5, 6});
  m.out("add", reduce(x, {1}, Reduce::Add), {6, 5});
  m.out("add keepdim", reduce(x, {-1}, Reduce::Add, true), {6, 5});
  m.out("all", reduce(x, {0, 1}, Reduce::Multiply), {-720});
  m.out("maximum", reduce(x, {0}, Reduce::Maximum), {4, 2, 6});
  m.out("minimum", reduce(x, {0}, Reduce::Minimum), {1, -5, 3});
  for (DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16}) {
    std::vector<double> long_row(300, 1);
    long_row[137] = kNaN;
    long_row[250] = kInf;
    const Value y = m.in({dtype, {300}}, long_row);
    m.out("maximum NaN", reduce(y, {0}, Reduce::Maximum), {kNaN});
    m.out("minimum NaN", reduce(y, {0}, Reduce::Minimum), {kNaN});
  }
  const Value p = m.in({DType::Pred, {2, 2}}, {0, 1, 1, 1});
  m.out("pred add", reduce(p, {1}, Reduce::Add), {1, 1});
  m.out("pred and", reduce(p, {1}, Reduce::And), {0, 1});
  m.out("pred multiply", reduce(p, {1}, Reduce::Multiply), {0, 1});
  m.out("pred maximum", reduce(p, {0, 1}, Reduce::Maximum), {1});
  m.out("pred minimum", reduce(p, {0, 1}, Reduce::Minimum), {0});
  const Value i = m.in({DType::S32, {3}}, {6, 3, 2});
  m.out("s32 and", reduce(i, {0}, Reduce::And), {2});
  m.out("s32 or", reduce(i, {0}, Reduce::Or), {7});
  m.out("u8 maximum", reduce(m.in({DType::U8, {2}}, {200, 3}), {0}, Reduce::Maximum), {200});
  m.out("s64 minimum", reduce(m.in({DType::S64, {2}}, {-200, 3}), {0}, Reduce::Minimum), {-200});
  const Value z = complex(m.in({DType::F32, {2}}, {1, 2}), m.in({DType::F32, {2}}, {3, 4}));
  m.out_complex("complex add", reduce(z, {0}, Reduce::Add), {3}, {7});
  m.out_complex("complex multiply", reduce(z, {0}, Reduce::Multiply), {-10}, {10});

  const Value both[] = {x, iota(m.b, {DType::S64, {2, 3}}, 1)};
  const Value inits[] = {lowest(m.b, DType::F32), scalar(m.b, DType::S64, 0)};
  const Values arg = reduce_general(both, inits, {1}, [](const Values& acc, const Values& v) {
    const Value take_new = gt(v[0], acc[0]);
    return Values{select(take_new, v[0], acc[0]), select(take_new, v[1], acc[1])};
  });
  m.out("argmax value", arg[0], {3, 6});
  m.out("argmax", arg[1], {2, 2});

  const Value row = m.in({DType::F32, {5}}, {1, 2, 3, 4, 5});
  const Value none = scalar(m.b, DType::F32, 0);
  m.out("reduce_window",
        reduce_window(row, none, {.size = {2}, .strides = {2}, .pad_high = {1}}, Reduce::Add),
        {3, 7, 5});
  m.out("cumulative", reduce_window(row, none, {.size = {5}, .pad_low = {4}}, Reduce::Add),
        {1, 3, 6, 10, 15});
  m.out("dilated",
        reduce_window(row, none, {.size = {2}, .base_dilation = {2}, .window_dilation = {3}},
                      Reduce::Add),
        {1 + 0, 0 + 3, 2 + 0, 0 + 4, 3 + 0, 0 + 5}, 1e-9);
  m.out("window maximum NaN",
        reduce_window(m.in({DType::F32, {3}}, {1, kNaN, 2}), lowest(m.b, DType::F32), {.size = {2}},
                      Reduce::Maximum),
        {kNaN, kNaN});
  m.run();
}

TEST(HloAccept, DotGeneral) {
  Module m;
  const Value a = m.in({DType::F32, {2, 2}}, {1, 2, 3, 4});
  const Value b = m.in({DType::F32, {2, 2}}, {5, 6, 7, 8});
  m.out("matmul", dot_general(a, b, {}, {}, {1}, {0}), {19, 22, 43, 50});
  m.out("default precision", dot_general(a, b, {}, {}, {1}, {0}, {}, Precision::Default),
        {19, 22, 43, 50});
  m.out("high precision", dot_general(a, b, {}, {}, {1}, {0}, {}, Precision::High),
        {19, 22, 43, 50});
  m.out("batched", dot_general(a, b, {0}, {0}, {-1}, {-1}), {17, 53});
  m.out(
      "outer",
      dot_general(m.in({DType::F32, {2}}, {1, 2}), m.in({DType::F32, {2}}, {3, 4}), {}, {}, {}, {}),
      {3, 4, 6, 8});
  m.out("inner",
        dot_general(m.in({DType::F64, {2}}, {1, 2}), m.in({DType::F64, {2}}, {3, 4}), {}, {}, {0},
                    {0}),
        {11});
  m.out("s32",
        dot_general(m.in({DType::S32, {2}}, {1, 2}), m.in({DType::S32, {2}}, {3, 4}), {}, {}, {0},
                    {0}),
        {11});
  m.out("s8 -> s32",
        dot_general(m.in({DType::S8, {2}}, {100, 100}), m.in({DType::S8, {2}}, {100, 100}), {}, {},
                    {0}, {0}, DType::S32),
        {20000});
  for (DType half : {DType::BF16, DType::F16}) {
    const Value h = m.in({half, {1, 300}}, std::vector<double>(300, 1.0078125));
    m.out("half -> f32", dot_general(h, h, {}, {}, {1}, {1}, DType::F32),
          {300 * 1.0078125 * 1.0078125}, 1e-6);
    m.out("half", dot_general(h, h, {}, {}, {1}, {1}), {half == DType::BF16 ? 304 : 304.75}, 1e-9);
  }
  const Value z = complex(m.in({DType::F32, {2}}, {1, 2}), m.in({DType::F32, {2}}, {3, 4}));
  m.out_complex("complex", dot_general(z, z, {}, {}, {0}, {0}), {-20}, {22});
  m.run();
}

TEST(HloAccept, Convolution) {
  Module m;
  const ConvDims nchw{.input_batch = 0,
                      .input_feature = 1,
                      .input_spatial = {2},
                      .kernel_output_feature = 0,
                      .kernel_input_feature = 1,
                      .kernel_spatial = {2},
                      .output_batch = 0,
                      .output_feature = 1,
                      .output_spatial = {2}};
  const Value x = m.in({DType::F32, {1, 2, 4}}, {1, 2, 3, 4, 10, 20, 30, 40});
  const Value k = m.in({DType::F32, {1, 2, 2}}, {1, 2, 3, 4});
  m.out("plain", convolution(x, k, nchw, {}),
        {1 + 4 + 30 + 80, 2 + 6 + 60 + 120, 3 + 8 + 90 + 160});
  ConvConfig config;
  config.window_strides = {2};
  config.pad_low = {1};
  config.pad_high = {2};
  config.rhs_dilation = {2};
  m.out("stride, padding, dilation", convolution(x, k, nchw, config),
        {4 + 80, 2 + 8 + 60 + 160, 4 + 120}, 1e-9);
  ConvConfig transposed;
  transposed.lhs_dilation = {2};
  transposed.window_reversal = {true};
  m.out("transposed", convolution(x, k, nchw, transposed), {42, 62, 84, 93, 126, 124});
  ConvConfig grouped;
  grouped.feature_group_count = 2;
  m.out("groups", convolution(x, m.in({DType::F32, {2, 1, 2}}, {1, 1, 1, -1}), nchw, grouped),
        {3, 5, 7, -10, -10, -10});
  const ConvDims nhwc{.input_batch = 0,
                      .input_feature = 3,
                      .input_spatial = {1, 2},
                      .kernel_output_feature = 3,
                      .kernel_input_feature = 2,
                      .kernel_spatial = {0, 1},
                      .output_batch = 0,
                      .output_feature = 3,
                      .output_spatial = {1, 2}};
  m.out("nhwc",
        convolution(m.in({DType::F64, {1, 2, 2, 1}}, {1, 2, 3, 4}),
                    m.in({DType::F64, {2, 2, 1, 1}}, {1, 10, 100, 1000}), nhwc, {}),
        {4321});
  m.out("bf16 -> f32",
        convolution(convert(x, DType::BF16), convert(k, DType::BF16), nchw, {}, DType::F32),
        {115, 188, 261});
  m.run();
}

TEST(HloAccept, ControlFlow) {
  Module m;
  const Value x = m.in({DType::F32, {5}}, {3, kNaN, -1, 2, -0.0});
  const Value both[] = {x, iota(m.b, {DType::S64, {5}}, 0)};
  const Values sorted = sort(both, 0, true, [](const Values& l, const Values& r) {
    return compare_total(l[0], r[0], Compare::LT);
  });
  m.out("sort", sorted[0], {-1, -0.0, 2, 3, kNaN});
  m.out("argsort", sorted[1], {2, 4, 3, 0, 1});
  const Value one[] = {m.in({DType::S32, {2, 2}}, {1, 2, 4, 3})};
  m.out("descending",
        sort(one, -1, false, [](const Values& l, const Values& r) { return gt(l[0], r[0]); })[0],
        {2, 1, 4, 3});

  const Value limit = m.in({DType::S64, {}}, {4});
  const Value factor = m.in({DType::F64, {2}}, {2, 3});
  const Value init[] = {scalar(m.b, DType::S64, 0), full_like(factor, 1)};
  const Values loop = while_loop(
      init, [&](const Values& s) { return lt(s[0], limit); },
      [&](const Values& s) { return Values{s[0] + 1, s[1] * factor}; });
  m.out("while", loop[1], {16, 81});
  const auto branch = [&](const Value& pred) {
    return if_else(
        pred, [&] { return Values{factor + 1, limit}; },
        [&] {
          const Value inner = if_else(
              lt(limit, 9), [&] { return Values{factor * 10}; }, [&] { return Values{factor}; })[0];
          return Values{inner, limit + 1};
        });
  };
  m.out("if true", branch(gt(limit, 3))[0], {3, 4});
  m.out("if false", branch(gt(limit, 5))[0], {20, 30});
  m.out("if false, second", branch(gt(limit, 5))[1], {5});
  const Value summand[] = {m.in({DType::F64, {3}}, {1, 2, 3})};
  const Value start[] = {scalar(m.b, DType::F64, 0)};
  m.out("region with a constant",
        reduce_general(
            summand, start, {0},
            [](const Values& acc, const Values& v) { return Values{acc[0] + v[0] * 1.0}; })[0],
        {6});
  m.run();
}

TEST(HloAccept, Library) {
  Module m;
  const Value x = m.in({DType::F32, {4}}, {1, 2, 3, 4});
  const Value spectrum = fft(x, Fft::RFFT, {4});
  m.out_complex("rfft", spectrum, {10, -2, -2}, {0, 2, 0}, 1e-6);
  m.out("irfft", fft(spectrum, Fft::IRFFT, {4}), {1, 2, 3, 4}, 1e-6);
  const Value z = convert(m.in({DType::F32, {2, 2}}, {1, 2, 3, 4}), DType::C64);
  m.out_complex("fft", fft(z, Fft::FFT, {2, 2}), {10, -2, -4, 0}, {0, 0, 0, 0}, 1e-6);
  m.out_complex("ifft", fft(z, Fft::IFFT, {2}), {1.5, -0.5, 3.5, -0.5}, {0, 0, 0, 0}, 1e-6);
  const Value s = m.in({DType::F64, {2, 2}}, {4, 2, 2, 5});
  const Value l = cholesky(s, true);
  m.out("cholesky",
        select(constant_ints(m.b, {DType::Pred, {2, 2}}, std::vector<int64_t>{1, 0, 1, 1}), l, 0.0),
        {2, 0, 1, 2}, 1e-12);
  const Value rhs = m.in({DType::F64, {2, 1}}, {4, 8});
  m.out("triangular_solve", triangular_solve(l, rhs, true, true, false, "NO_TRANSPOSE"), {2, 3},
        1e-12);
  m.out("triangular_solve transposed", triangular_solve(l, rhs, true, true, false, "TRANSPOSE"),
        {0, 4}, 1e-12);
  const Values top = top_k(m.in({DType::F32, {2, 3}}, {1, 3, 2, 6, 5, 4}), 2);
  m.out("top_k values", top[0], {3, 2, 6, 5});
  m.out("top_k indices", top[1], {1, 2, 0, 1});
  const Value square[] = {m.in({DType::F32, {2, 2}}, {3, 0, 4, 5})};
  const Values qr = custom_call(m.b, "Qr", square, {{DType::F32, {2, 2}}, {DType::F32, {2}}});
  m.out("custom_call", abs(slice(qr[0], {0, 0}, {1, 1}, {1, 1})), {5}, 1e-6);
  m.run();
}

TEST(HloAccept, DoubleOnHostsOnly) {
  Module m;
  m.for_tpu = false;
  const Value z = convert(m.in({DType::F64, {2, 2}}, {1, 2, 3, 4}), DType::C128);
  m.out_complex("fft", fft(z, Fft::FFT, {2, 2}), {10, -2, -4, 0}, {0, 0, 0, 0}, 1e-12);
  m.out_complex("ifft", fft(z, Fft::IFFT, {2}), {1.5, -0.5, 3.5, -0.5}, {0, 0, 0, 0}, 1e-12);
  const Value one = m.in({DType::F64, {1}}, {1.0078125});
  m.out("reduce_precision", reduce_precision(one, 8, 3), {1});
  m.run();
}

TEST(HloAccept, InlineCall) {
  Builder inner;
  const Value p = inner.param({DType::F32, {2}});
  const Value init[] = {p};
  const Value results[] = {
      while_loop(
          init, [](const Values& s) { return lt(reduce(s[0], {0}, Reduce::Maximum), 10); },
          [&](const Values& s) { return Values{s[0] * p}; })[0],
      p};
  const Function fn = inner.finish(results);
  Module m;
  const Value x = m.in({DType::F32, {2}}, {2, 3});
  const Value args[] = {x + 0.5};
  const Values first = m.b.inline_call(fn, args);
  const Value again[] = {first[1] - 0.5};
  m.out("first", first[0], {6.25, 12.25});
  m.out("second", m.b.inline_call(fn, again)[0], {8, 27});
  m.run();
}

// Tensors without elements and without dimensions, through everything that takes them.
TEST(HloAccept, EmptyAndScalar) {
  Module m;
  const Value e = m.in({DType::F32, {0, 3}}, {});
  const Value s = m.in({DType::F32, {}}, {2});
  m.out("unary", exponential(e), {});
  m.out("chlo", erf(e), {});
  m.out("binary", e + s, {});
  m.out("constant", e * 2, {});
  m.out("complex", real(complex(e, e)), {});
  m.out("convert", convert(e, DType::U64), {});
  m.out("bitcast", convert(bitcast_convert(e, DType::U8), DType::S32), {});
  m.out("empty constants", constant_ints(m.b, {DType::S64, {0}}, {}), {});
  m.out("reduce to zeros", reduce(e, {0}, Reduce::Add), {0, 0, 0});
  m.out("reduce to -inf", reduce(e, {0}, Reduce::Maximum), {-kInf, -kInf, -kInf});
  m.out("reduce to nothing", reduce(e, {1}, Reduce::Add), {});
  m.out("reduce nothing", reduce(s, {}, Reduce::Add), {2});
  m.out("reshape", reshape(e, {3, 0}), {});
  m.out("transpose", transpose(e, {1, 0}), {});
  m.out("broadcast", broadcast_to(s, {0, 2}), {});
  m.out("slice", slice_dim(e, 1, 1, 1), {});
  const Value parts[] = {e, m.in({DType::F32, {1, 3}}, {1, 2, 3})};
  m.out("concatenate", concatenate(parts, 0), {1, 2, 3});
  m.out("pad", pad(e, s, {1, 0}, {0, 0}), {2, 2, 2});
  m.out("reverse", reverse(e, {0}), {});
  m.out("dot", dot_general(e, e, {}, {}, {0}, {0}), {0, 0, 0, 0, 0, 0, 0, 0, 0});
  m.out("dot to nothing", dot_general(e, e, {}, {}, {1}, {1}), {});
  m.out("take nothing", take(e, m.in({DType::S64, {0}}, {}), 0), {});
  m.out("take from something",
        take(m.in({DType::F32, {2}}, {1, 2}), m.in({DType::S64, {0}}, {}), 0), {});
  ScatterDims rows{.update_window_dims = {1},
                   .inserted_window_dims = {0},
                   .scatter_dims_to_operand_dims = {0},
                   .index_vector_dim = 1};
  m.out("scatter nothing", scatter(parts[1], m.in({DType::S64, {0}}, {}), e, rows, add), {1, 2, 3});
  const Value xs[] = {e};
  m.out("sort",
        sort(xs, 0, true, [](const Values& l, const Values& r) { return lt(l[0], r[0]); })[0], {});
  const Value scalars[] = {s};
  m.out("sort a scalar",
        sort(scalars, 0, true, [](const Values& l, const Values& r) { return lt(l[0], r[0]); })[0],
        {2});
  m.out("top_k", top_k(e, 2)[0], {});
  m.out("select", select(lt(e, s), e, e), {});
  m.out("clamp", clamp(s, s, s), {2});
  m.out("window of a scalar", reduce_window(s, scalar(m.b, DType::F32, 1), {}, Reduce::Add), {3});
  m.out("window", reduce_window(e, s, {.size = {1, 2}}, Reduce::Add), {});
  m.out("slice a scalar", slice(s, {}, {}, {}), {2});
  m.out("dynamic_slice a scalar", dynamic_slice(s, {}, {}), {2});
  m.out("scatter into a scalar",
        scatter(s, m.in({DType::S64, {0}}, {}), m.in({DType::F32, {}}, {5}),
                {{}, {}, {}, {}, {}, 0}, add),
        {7});
  m.out("gather from a scalar", gather(s, m.in({DType::S64, {0}}, {}), {{}, {}, {}, {}, {}, 0}, {}),
        {2});
  m.run();
}

}  // namespace
}  // namespace torch_tpu::hlo
