// SPDX-License-Identifier: Apache-2.0 - tracing of calls: what becomes an input, a write, a number, a check, and type promotion.
#include "src/graph/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "src/hlo/builder.h"

namespace torch_tpu::graph {
namespace {

Arg tensor(Dims sizes, DType dtype = DType::F32) {
  Arg a;
  a.kind = Arg::Tensor;
  a.tensor.dtype = dtype;
  a.tensor.strides = hlo::contiguous_strides(sizes);
  a.tensor.base = {dtype, sizes};
  a.tensor.sizes = std::move(sizes);
  return a;
}
Arg part(Dims sizes, Dims strides, int64_t offset, Dims base) {
  Arg a = tensor(std::move(base));
  a.tensor.sizes = std::move(sizes);
  a.tensor.strides = std::move(strides);
  a.tensor.offset = offset;
  return a;
}
Arg alias(Arg a, int32_t number) {
  a.tensor.alias = number;
  return a;
}
template <typename T>
Arg number(T v) {
  Arg a;
  a.kind = Arg::Scalar;
  a.number = Number::of(v);
  return a;
}
Arg list(std::vector<Arg> elements) {
  Arg a;
  a.kind = Arg::TensorList;
  a.list = std::move(elements);
  return a;
}

// A form of an entry that is written here, so that the rules are tested and not the operators.
struct Op {
  Op(const char* schema, OpEntry::Body body, OutputRule rule = OutputRule::Contiguous,
     Variant::Form form = Variant::Functional) {
    entry = OpEntry::parse(schema);
    entry.body = body;
    entry.rule = rule;
    variant.entry = &entry;
    variant.op = entry.name;
    variant.form = form;
  }
  std::shared_ptr<Record> operator()(std::vector<Arg> args) {
    return trace(variant, std::make_shared<const Args>(std::move(args)), {});
  }
  std::string error(std::vector<Arg> args) {
    try {
      (*this)(std::move(args));
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  OpEntry entry;
  Variant variant;
};

std::string text(const Record& r) { return hlo::write_module(r.function); }

// One statement a read, as the order of inputs is that of the reads.
hlo::Values axpy(Call& c) {
  Value self = c.tensor("self", DType::F32);
  Value other = c.tensor("other", DType::F32);
  return {self + c.scalar("alpha", DType::F32) * other};
}
constexpr char kAxpy[] = "test::axpy(Tensor self, Tensor other, Scalar alpha) -> Tensor";

TEST(Trace, NumbersAreInputsOfOneFunction) {
  Op op(kAxpy, axpy);
  auto a = op({tensor({2, 3}), tensor({3}), number(0.5)});
  auto b = op({tensor({2, 3}), tensor({3}), number(7.25)});
  EXPECT_EQ(text(*a), text(*b));
  ASSERT_EQ(a->scalars.size(), 1u);
  EXPECT_EQ(a->scalars[0].kind, ScalarSource::NumberRe);
  EXPECT_EQ(a->scalars[0].from.arg, 2);
  ASSERT_EQ(a->inputs.size(), 2u);
  EXPECT_EQ(a->input_types[1], (hlo::Type{DType::F32, {3}}));
  EXPECT_FALSE(op.variant.asked[2].whole);
  EXPECT_TRUE(op.variant.asked[2].matches.empty());
}

TEST(Trace, WhatABodyAsksOfANumberIsRemembered) {
  Op op(kAxpy, [](Call& c) -> hlo::Values {
    if (c.equals("alpha", 1)) return {c.tensor("self") + c.tensor("other")};
    return axpy(c);
  });
  auto one = op({tensor({2}), tensor({2}), number(1.0)});
  auto other = op({tensor({2}), tensor({2}), number(3.0)});
  EXPECT_TRUE(one->scalars.empty());
  EXPECT_EQ(other->scalars.size(), 1u);
  EXPECT_EQ(op.variant.asked[2].matches, std::vector<double>{1});
  EXPECT_FALSE(op.variant.asked[2].whole);

  Op whole(kAxpy, [](Call& c) -> hlo::Values {
    return {c.tensor("self") * hlo::scalar(c.builder(), DType::F32, c.real("alpha"))};
  });
  whole({tensor({2}), tensor({2}), number(3.0)});
  EXPECT_TRUE(whole.variant.asked[2].whole);

  Op derived(kAxpy, [](Call& c) -> hlo::Values {
    const int64_t n =
        c.derive([](const Number* n) { return static_cast<int64_t>(n[2].as_double()); });
    return {hlo::zeros(c.builder(), {DType::F32, {n}})};
  });
  EXPECT_EQ(derived({tensor({2}), tensor({2}), number(3.9)})->outputs[0].sizes, (Dims{3}));
  derived({tensor({2}), tensor({2}), number(4.0)});
  EXPECT_EQ(derived.variant.derived.size(), 1u);
}

TEST(Trace, InputsThatNothingReadsAreNone) {
  Op op(kAxpy, [](Call& c) -> hlo::Values {
    c.tensor("self");
    return {c.tensor("other") + c.tensor("other")};
  });
  auto r = op({tensor({2}), tensor({2}), number(1.0)});
  ASSERT_EQ(r->inputs.size(), 1u);
  EXPECT_EQ(r->inputs[0].arg, 1);
  EXPECT_TRUE(r->scalars.empty());
}

TEST(Trace, AViewsPlaceIsARunTimeInput) {
  Op op(kAxpy, axpy);
  auto first = op({part({3}, {1}, 0, {4, 3}), tensor({3}), number(1.0)});
  auto third = op({part({3}, {1}, 6, {4, 3}), tensor({3}), number(1.0)});
  EXPECT_EQ(text(*first), text(*third));
  size_t starts = 0;
  for (const ScalarSource& s : first->scalars) starts += s.kind == ScalarSource::ViewStart;
  EXPECT_EQ(starts, 1u);
  EXPECT_EQ(first->input_types[0], (hlo::Type{DType::F32, {4, 3}}));
}

TEST(Trace, InPlaceReplacesTheBaseAndDonatesIt) {
  Op op(kAxpy, axpy, OutputRule::Pointwise, Variant::InPlace);
  auto r = op({part({3}, {1}, 6, {4, 3}), tensor({3}), number(1.0)});
  EXPECT_TRUE(r->outputs.empty());
  ASSERT_EQ(r->writes.size(), 1u);
  EXPECT_EQ(r->writes[0].to.arg, 0);
  EXPECT_EQ(r->writes[0].base, (hlo::Type{DType::F32, {4, 3}}));
  EXPECT_TRUE(r->writes[0].donates);
  EXPECT_EQ(r->inputs[r->writes[0].input].arg, 0);
}

TEST(Trace, WritingAllOfATensorDoesNotReadIt) {
  Op op(
      "test::set(Tensor self, Tensor other) -> Tensor",
      [](Call& c) -> hlo::Values { return {c.tensor("other")}; }, OutputRule::Pointwise,
      Variant::InPlace);
  auto r = op({tensor({2, 3}), tensor({2, 3})});
  ASSERT_EQ(r->inputs.size(), 1u);
  EXPECT_EQ(r->inputs[0].arg, 1);
  EXPECT_EQ(r->writes.at(0).input, -1);
}

TEST(Trace, ArgumentsThatShareAStorageAreOneInput) {
  Op op(kAxpy, axpy, OutputRule::Pointwise, Variant::InPlace);
  auto r =
      op({alias(part({3}, {1}, 0, {4, 3}), 0), alias(part({3}, {1}, 9, {4, 3}), 0), number(1.0)});
  EXPECT_EQ(r->inputs.size(), 1u);
  EXPECT_EQ(r->writes.size(), 1u);
}

TEST(Trace, InPlaceRefusesWhatDoesNotFit) {
  Op op(kAxpy, axpy, OutputRule::Pointwise, Variant::InPlace);
  EXPECT_EQ(op.error({tensor({3}), tensor({2, 3}), number(1.0)}),
            "test::axpy(): output with shape [3] doesn't match the broadcast shape [2, 3]");
  EXPECT_EQ(op.error({tensor({3}, DType::S64), tensor({3}), number(1.0)}),
            "test::axpy(): result type Float can't be cast to the desired output type Long");
}

TEST(Trace, ForeachIsTheEntryOncePerElement) {
  Op op(kAxpy, axpy);
  op.variant.foreach = true;
  auto r = op({list({tensor({2}), tensor({3, 4})}), list({tensor({2}), tensor({4})}), number(2.0)});
  ASSERT_EQ(r->outputs.size(), 2u);
  EXPECT_EQ(r->outputs[1].sizes, (Dims{3, 4}));
  ASSERT_EQ(r->inputs.size(), 4u);
  EXPECT_EQ(r->inputs[2].element, 1);
  EXPECT_EQ(r->scalars.size(), 1u);
  EXPECT_NE(op.error({list({tensor({2})}), list({tensor({2}), tensor({2})}), number(2.0)})
                .find("same number of elements, got 1 and 2"),
            std::string::npos);
}

TEST(Trace, PointwiseResultsKeepTheInputsMemoryOrder) {
  Op op(
      "test::neg(Tensor self) -> Tensor",
      [](Call& c) -> hlo::Values { return {hlo::negate(c.tensor("self"))}; },
      OutputRule::Pointwise);
  auto r = op({part({2, 3, 4}, {1, 8, 2}, 0, {3, 4, 2})});
  EXPECT_EQ(r->outputs[0].strides, (Dims{1, 8, 2}));
  EXPECT_EQ(r->outputs[0].base.dims, (Dims{3, 4, 2}));
  EXPECT_FALSE(r->outputs[0].contiguous);
  // Gaps are closed.
  EXPECT_EQ(op({part({2, 3}, {12, 2}, 1, {4, 6})})->outputs[0].strides, (Dims{3, 1}));
}

TEST(Trace, ChecksGiveOneResultOfErrorWords) {
  Op op("test::check(Tensor self) -> Tensor", [](Call& c) -> hlo::Values {
    Value x = c.tensor("self");
    c.fail_if(hlo::eq(x, 0), CheckSpec::Index, "zero");
    c.fail_if(hlo::eq(x, 1), CheckSpec::Value, "one");
    return {x + x};
  });
  auto r = op({tensor({3})});
  ASSERT_EQ(r->checks.size(), 2u);
  EXPECT_EQ(r->checks[1].message, "one");
  ASSERT_EQ(r->error_result, 1);
  EXPECT_EQ(r->result_types[1], (hlo::Type{DType::S64, {2}}));
}

TEST(Trace, ShapesThatDoNotFitAreTheUsersMistake) {
  Op op(kAxpy, axpy);
  EXPECT_NE(op.error({tensor({2}), tensor({3}), number(1.0)}).find("test::axpy()"),
            std::string::npos);
}

// ---- promotion, as torch.promote_types, torch.result_type and torch.can_cast say ----------------

TEST(Promote, PairsAsPyTorch) {
  using enum DType;
  const std::vector<std::tuple<DType, DType, DType>> table = {
      {Pred, Pred, Pred}, {Pred, U8, U8},    {Pred, F16, F16}, {U8, S8, S16},      {U8, S16, S16},
      {S8, S64, S64},     {S16, S32, S32},   {S64, F16, F16},  {S64, BF16, BF16},  {F16, BF16, F32},
      {F16, F32, F32},    {BF16, F64, F64},  {S32, F32, F32},  {S64, C64, C64},    {F64, C64, C128},
      {F32, C64, C64},    {C64, C128, C128}, {F16, C64, C64},  {Pred, C128, C128},
  };
  for (const auto& [a, b, expected] : table) {
    EXPECT_EQ(promote(a, b), expected) << hlo::torch_name(a) << " " << hlo::torch_name(b);
    EXPECT_EQ(promote(b, a), expected) << hlo::torch_name(b) << " " << hlo::torch_name(a);
  }
  EXPECT_THROW(promote(U16, S32), UserError);
  EXPECT_EQ(promote(U16, F32), F32);
}

TEST(Promote, CastsThatLoseAKindAreRefused) {
  using enum DType;
  EXPECT_TRUE(can_cast(F64, F16));
  EXPECT_TRUE(can_cast(S64, U8));
  EXPECT_TRUE(can_cast(Pred, F32));
  EXPECT_FALSE(can_cast(F32, S64));
  EXPECT_FALSE(can_cast(C64, F64));
  EXPECT_FALSE(can_cast(U8, Pred));
}

TEST(Promote, DimensionedTensorsOutrankNumbersOfTheirKind) {
  using enum DType;
  auto result = [](Arg a, Arg b) {
    Op op("test::type(Tensor self, Scalar other) -> Tensor", [](Call& c) -> hlo::Values {
      return {hlo::zeros(c.builder(), {c.result_type({"self", "other"}), {}})};
    });
    return op({std::move(a), std::move(b)})->outputs[0].dtype;
  };
  EXPECT_EQ(result(tensor({2}, F16), number(2.5)), F16);
  EXPECT_EQ(result(tensor({2}, U8), number(int64_t{300})), U8);
  EXPECT_EQ(result(tensor({2}, S32), number(2.5)), F32);
  EXPECT_EQ(result(tensor({2}, Pred), number(int64_t{1})), S64);
  EXPECT_EQ(result(tensor({}, F16), number(2.5)), F16);
  EXPECT_EQ(result(tensor({2}, F16), tensor({}, F64)), F16);
  EXPECT_EQ(result(tensor({2}, S64), tensor({}, F16)), F16);
  EXPECT_EQ(result(tensor({}, S64), tensor({}, F16)), F16);
}

}  // namespace
}  // namespace torch_tpu::graph
