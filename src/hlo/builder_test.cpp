// SPDX-License-Identifier: Apache-2.0 - Tests of recording, dead code, scopes, inlining and misuse.
#include "src/hlo/builder.h"

#include <gtest/gtest.h>

namespace torch_tpu::hlo {
namespace {

const Type kVector{DType::F32, {3}};

// The message of the BuildError that fn throws; fails the test when it throws none.
template <class Fn>
std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const BuildError& e) {
    return e.what();
  }
  ADD_FAILURE() << "no BuildError";
  return "";
}

std::vector<std::string> names(const std::vector<Instr>& body) {
  std::vector<std::string> result;
  for (const Instr& instr : body) result.push_back(instr.name);
  return result;
}

Function finish1(Builder& b, const Value& x) { return b.finish({&x, 1}); }

TEST(Builder, DropsDeadInstructionsButNotParameters) {
  Builder b;
  const Value x = b.param(kVector);
  b.param(kVector);
  tanh(x);
  const Value kept = exponential(x);
  add(kept, x);
  const Function fn = finish1(b, kept);
  EXPECT_EQ(names(fn.body), std::vector<std::string>{"stablehlo.exponential"});
  EXPECT_EQ(fn.params.size(), 2u);
  EXPECT_EQ(fn.types.size(), 3u);
  EXPECT_EQ(fn.results, std::vector<int32_t>{2});
}

TEST(Builder, TellsWhatMadeAValue) {
  Builder b;
  const Value x = b.param(kVector);
  const Value y = tanh(x);
  add(y, x);
  ASSERT_NE(b.source(y), nullptr);
  EXPECT_EQ(b.source(y)->name, "stablehlo.tanh");
  EXPECT_EQ(b.source(y)->operands, std::vector<int32_t>{x.id()});
  EXPECT_EQ(b.source(x), nullptr);
}

TEST(Builder, CapturedValuesAreAlive) {
  Builder b;
  const Value x = b.param({DType::F32, {}});
  const Value captured = tanh(x);
  const Value init[] = {x};
  const Value out = while_loop(
      init, [](const Values& s) { return lt(s[0], 1.0); },
      [&](const Values& s) {
        exponential(s[0]);  // dead inside the region
        return Values{s[0] + captured};
      })[0];
  const Function fn = finish1(b, out);
  EXPECT_EQ(names(fn.body), (std::vector<std::string>{"stablehlo.tanh", "stablehlo.while"}));
  EXPECT_EQ(names(fn.body[1].regions[1].body), std::vector<std::string>{"stablehlo.add"});
}

TEST(Builder, SideEffectsStay) {
  Builder b;
  const Value x = b.param(kVector);
  custom_call(b, "log", {&x, 1}, {}, "", 1, true);
  custom_call(b, "pure", {&x, 1}, {kVector});
  const Function fn = finish1(b, x);
  ASSERT_EQ(fn.body.size(), 1u);
  EXPECT_EQ(fn.body[0].result_count, 0);
}

TEST(Builder, TypesStayWhereTheyAre) {
  Builder b;
  const Value x = b.param(kVector);
  const Dims& dims = x.dims();
  for (int i = 0; i < 1000; ++i) exponential(x);
  EXPECT_EQ(dims, Dims{3});
  EXPECT_EQ(&dims, &x.dims());
}

TEST(Builder, IdentitiesCostNothing) {
  Builder b;
  const Value x = b.param({DType::F32, {2, 1, 3}});
  const auto same = [&](const Value& y) { return y.id() == x.id(); };
  EXPECT_TRUE(same(convert(x, DType::F32)));
  EXPECT_TRUE(same(bitcast_convert(x, DType::F32)));
  EXPECT_TRUE(same(reshape(x, {2, 1, 3})));
  EXPECT_TRUE(same(transpose(x, {0, 1, 2})));
  EXPECT_TRUE(same(broadcast_to(x, {2, 1, 3})));
  EXPECT_TRUE(same(slice(x, {0, 0, 0}, {2, 1, 3}, {1, 7, 1})));
  EXPECT_TRUE(same(pad(x, scalar(b, DType::F32, 0), {0, 0, 0}, {0, 0, 0}, {0, 5, 0})));
  EXPECT_TRUE(same(concatenate({&x, 1}, 0)));
  EXPECT_TRUE(same(reverse(x, {1})));
  EXPECT_TRUE(same(reduce(x, {}, Reduce::Add)));
  EXPECT_TRUE(same(real(x)));
}

TEST(Builder, FailedRegionLeavesTheBuilderUsable) {
  Builder b;
  const Value x = b.param(kVector);
  const Value init[] = {x};
  EXPECT_THROW(while_loop(
                   init, [](const Values&) -> Value { throw std::runtime_error("stop"); },
                   [](const Values& s) { return s; }),
               std::runtime_error);
  const Function fn = finish1(b, exponential(x));
  EXPECT_EQ(names(fn.body), std::vector<std::string>{"stablehlo.exponential"});
}

TEST(Builder, InlineCallRenumbers) {
  Builder inner;
  const Value p = inner.param(kVector);
  const Value q = inner.param(kVector);
  const Value out[] = {p * q, q};
  const Function callee = inner.finish(out);

  Builder b;
  const Value x = b.param(kVector);
  const Value args[] = {exponential(x), x};
  const Values results = b.inline_call(callee, args);
  EXPECT_EQ(results[1].id(), x.id());
  const Function fn = finish1(b, results[0]);
  ASSERT_EQ(fn.body.size(), 2u);
  EXPECT_EQ(fn.body[1].operands, (std::vector<int32_t>{fn.body[0].first_result, fn.params[0]}));

  Builder other;
  const Value wrong[] = {other.param({DType::F32, {4}}), other.param(kVector)};
  EXPECT_NE(error_of([&] {
              other.inline_call(callee, wrong);
            }).find("argument 0 is tensor<4xf32>, expected tensor<3xf32>"),
            std::string::npos);
}

TEST(Builder, ValuesDoNotLeaveTheirRegion) {
  Builder b;
  const Value pred = b.param({DType::Pred, {}});
  const Value x = b.param(kVector);
  Value leaked;
  if_else(
      pred,
      [&] {
        leaked = exponential(x);
        return Values{leaked};
      },
      [&] { return Values{x}; });
  EXPECT_NE(error_of([&] { finish1(b, leaked); }).find("already closed"), std::string::npos);

  Builder c;
  const Value p = c.param({DType::Pred, {}});
  const Value y = c.param(kVector);
  const Value kept = if_else(
      p,
      [&] {
        leaked = exponential(y);
        return Values{leaked};
      },
      [&] { return Values{y}; })[0];
  EXPECT_NE(error_of([&] { finish1(c, kept + leaked); }).find("already closed"), std::string::npos);
}

TEST(Builder, ClosedRegionsCaptureOnlyConstants) {
  const auto build = [](bool capture_param) {
    Builder b;
    const Value x = b.param(kVector);
    const Value factor = capture_param ? b.param({DType::F32, {}}) : scalar(b, DType::F32, 0.5);
    const Value zero = scalar(b, DType::F32, 0);
    return finish1(
        b, reduce_general({&x, 1}, {&zero, 1}, {0}, [&](const Values& acc, const Values& v) {
          return Values{if_else(
              lt(v[0], acc[0]), [&] { return Values{acc[0] + v[0] * factor}; },
              [&] { return Values{v[0]}; })};
        })[0]);
  };
  EXPECT_EQ(build(false).body.back().name, "stablehlo.reduce");
  EXPECT_NE(error_of([&] { build(true); }).find("make it an operand"), std::string::npos);
}

TEST(Builder, RefusesForeignAndEmptyValues) {
  Builder a, b;
  const Value x = a.param(kVector);
  const Value y = b.param(kVector);
  EXPECT_EQ(error_of([&] { add(x, y); }), "stablehlo.add: an operand belongs to another Builder");
  EXPECT_EQ(error_of([&] { clamp(y, x, x); }),
            "stablehlo.clamp: an operand belongs to another Builder");
  EXPECT_EQ(error_of([&] { a.finish({&y, 1}); }), "finish: a result belongs to another Builder");
  EXPECT_NE(error_of([&] { add(x, Value()); }).find("empty Value"), std::string::npos);
  EXPECT_NE(error_of([&] { exponential(Value()); }).find("empty Value"), std::string::npos);
  EXPECT_NE(error_of([&] { concatenate({}, 0); }).find("at least one"), std::string::npos);
}

TEST(Builder, ErrorsNameTheOpAndTheTypes) {
  Builder b;
  const Value f = b.param({DType::F32, {2, 3}});
  const Value i = b.param({DType::S64, {3}});
  const Value w = b.param({DType::F32, {4}});
  EXPECT_EQ(error_of([&] { add(f, i); }),
            "stablehlo.add: operands tensor<2x3xf32> and tensor<3xi64> have different element "
            "types; convert one of them first");
  EXPECT_EQ(error_of([&] { multiply(f, w); }),
            "stablehlo.multiply: operands tensor<2x3xf32> and tensor<4xf32> do not broadcast to a "
            "common shape");
  EXPECT_EQ(error_of([&] { exponential(i); }),
            "stablehlo.exponential: got tensor<3xi64>, takes float, complex");
  EXPECT_EQ(error_of([&] { and_(f, f); }),
            "stablehlo.and: got tensor<2x3xf32>, takes bool, signed integer, unsigned integer");
  EXPECT_EQ(error_of([&] { reshape(f, {4}); }),
            "stablehlo.reshape: tensor<2x3xf32> has 6 elements, which do not fill [4]");
  EXPECT_EQ(error_of([&] { select(f, f, f); }),
            "stablehlo.select: got tensor<2x3xf32>, takes bool");
  EXPECT_EQ(error_of([&] { reduce(f, {2}, Reduce::Add); }),
            "stablehlo.reduce: dimension 2 is out of range for rank 2");
  EXPECT_EQ(error_of([&] { reduce(f, {0, -2}, Reduce::Add); }),
            "stablehlo.reduce: dimensions [0, -2] repeat one");
  EXPECT_EQ(error_of([&] { lt(complex(f, f), complex(f, f)); }),
            "stablehlo.compare: complex numbers have no order");
}

TEST(Builder, RefusesWhatDoesNotFit) {
  Builder b;
  const Value f = b.param({DType::F32, {2, 3}});
  const Value i = b.param({DType::S64, {3}});
  const Value s = b.param({DType::F32, {}});
  const Value start = b.param({DType::S64, {}});
  const Value starts[] = {start, start};
  const Value mixed[] = {f, s};
  EXPECT_THROW(b.param({DType::F32, {-1}}), BuildError);
  EXPECT_THROW(transpose(f, {0, 0}), BuildError);
  EXPECT_THROW(transpose(f, {0}), BuildError);
  EXPECT_THROW(broadcast_in_dim(f, {2, 4}, {0, 1}), BuildError);
  EXPECT_THROW(broadcast_to(f, {3}), BuildError);
  EXPECT_THROW(squeeze(f, 0), BuildError);
  EXPECT_THROW(slice(f, {0, 2}, {2, 1}, {1, 1}), BuildError);
  EXPECT_THROW(slice(f, {0, 0}, {2, 4}, {1, 1}), BuildError);
  EXPECT_THROW(slice_dim(f, 1, 0, 3, 0), BuildError);
  EXPECT_THROW(dynamic_slice(f, starts, {3, 3}), BuildError);
  EXPECT_THROW(dynamic_slice(f, {&start, 1}, {1, 1}), BuildError);
  EXPECT_THROW(dynamic_update_slice(f, b.param({DType::F32, {3, 3}}), starts), BuildError);
  EXPECT_THROW(pad(f, s, {0, -4}, {0, 0}), BuildError);
  EXPECT_THROW(pad(f, i, {0, 0}, {0, 0}), BuildError);
  EXPECT_THROW(concatenate(mixed, 0), BuildError);
  EXPECT_THROW(clamp(f, s, s), BuildError);
  EXPECT_THROW(bitcast_convert(f, DType::F64), BuildError);
  EXPECT_THROW(take(f, s, 0), BuildError);
  EXPECT_THROW(
      gather(f, i, {.collapsed_slice_dims = {0}, .start_index_map = {0}, .index_vector_dim = 1},
             {1, 3}),
      BuildError);
  EXPECT_THROW(scatter(f, i, b.param({DType::F32, {3, 4}}),
                       {.update_window_dims = {1},
                        .inserted_window_dims = {0},
                        .scatter_dims_to_operand_dims = {0},
                        .index_vector_dim = 1},
                       add),
               BuildError);
  EXPECT_THROW(dot_general(f, f, {}, {}, {1}, {0}), BuildError);
  EXPECT_THROW(dot_general(f, i, {}, {}, {1}, {0}), BuildError);
  EXPECT_THROW(reduce_window(f, s, {.size = {2}}, Reduce::Add), BuildError);
  EXPECT_THROW(reduce_window(f, s, {.size = {2, 0}}, Reduce::Add), BuildError);
  EXPECT_THROW(fft(f, Fft::FFT, {3}), BuildError);
  EXPECT_THROW(fft(f, Fft::RFFT, {4}), BuildError);
  EXPECT_THROW(cholesky(f, true), BuildError);
  EXPECT_THROW(top_k(f, 4), BuildError);
  EXPECT_THROW(
      sort(mixed, 0, true, [](const Values& l, const Values& r) { return lt(l[0], r[0]); }),
      BuildError);
  EXPECT_THROW(sort({&f, 1}, 0, true, [](const Values& l, const Values&) { return l[0]; }),
               BuildError);
  EXPECT_THROW(while_loop(
                   {&f, 1}, [&](const Values&) { return eq(s, 0); },
                   [&](const Values&) { return Values{s}; }),
               BuildError);
  EXPECT_THROW(if_else(eq(s, 0), [&] { return Values{f}; }, [&] { return Values{s}; }), BuildError);
  EXPECT_THROW(nan_of(b, DType::S32), BuildError);
  EXPECT_THROW(constant_ints(b, {DType::S32, {2}}, std::vector<int64_t>{1}), BuildError);
}

TEST(Builder, Shapes) {
  Builder b;
  const Value x = b.param({DType::BF16, {4, 1, 6}});
  const Value y = b.param({DType::BF16, {5, 1}});
  EXPECT_EQ((x + y).type().str(), "tensor<4x5x6xbf16>");
  EXPECT_EQ(lt(x, y).type().str(), "tensor<4x5x6xi1>");
  EXPECT_EQ(broadcast_dims({3, 1}, {0}), (Dims{3, 0}));
  EXPECT_EQ(unsqueeze(y, -1).dims(), (Dims{5, 1, 1}));
  EXPECT_EQ(squeeze(x, 1).dims(), (Dims{4, 6}));
  EXPECT_EQ(slice(x, {1, 0, 0}, {4, 1, 5}, {2, 1, 2}).dims(), (Dims{2, 1, 3}));
  EXPECT_EQ(reduce(x, {0, -1}, Reduce::Add).dims(), Dims{1});
  EXPECT_EQ(reduce(x, {0, -1}, Reduce::Add, true).dims(), (Dims{1, 1, 1}));
  EXPECT_EQ(take(x, b.param({DType::S32, {7, 8}}), 1).dims(), (Dims{4, 7, 8, 6}));
  EXPECT_EQ(bitcast_convert(x, DType::U8).dims(), (Dims{4, 1, 12}));
  EXPECT_EQ(bitcast_convert(x, DType::F32).dims(), (Dims{4, 1, 3}));
  EXPECT_EQ(convert(x, DType::C64).type().str(), "tensor<4x1x6xcomplex<f32>>");
  const Value m = b.param({DType::BF16, {4, 6, 9}});
  EXPECT_EQ(dot_general(x, m, {0}, {0}, {2}, {1}, DType::F32).type().str(), "tensor<4x1x9xf32>");
  const Values top = top_k(x, 2);
  EXPECT_EQ(top[1].type().str(), "tensor<4x1x2xi32>");
  const Value real_signal = b.param({DType::F32, {3, 8}});
  EXPECT_EQ(fft(real_signal, Fft::RFFT, {8}).type().str(), "tensor<3x5xcomplex<f32>>");
  const Value low = scalar(b, DType::F32, 0);
  EXPECT_EQ(reduce_window(
                real_signal, low,
                {.size = {1, 3}, .strides = {1, 2}, .window_dilation = {1, 2}, .pad_high = {0, 1}},
                Reduce::Add)
                .dims(),
            (Dims{3, 3}));
}

}  // namespace
}  // namespace torch_tpu::hlo
