// SPDX-License-Identifier: Apache-2.0 - read_view and write_view, compiled and run, against a model on the host.
#include "src/graph/view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/pjrt/test_plugin.h"

namespace torch_tpu::graph {
namespace {

using hlo::Type;
using hlo::Value;
using pjrt::testing::test_client;

int64_t product(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// Element numbers of the window in the base, in the window's order.
std::vector<int64_t> elements(const TensorArg& t) {
  std::vector<int64_t> at = {t.offset};
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t base : at)
      for (int64_t i = 0; i < t.sizes[d]; ++i) next.push_back(base + i * t.strides[d]);
    at = std::move(next);
  }
  return at;
}

TensorArg window(Dims base, Dims sizes, Dims strides, int64_t offset) {
  TensorArg t;
  t.dtype = DType::S32;
  t.base = {DType::S32, std::move(base)};
  t.sizes = std::move(sizes);
  t.strides = std::move(strides);
  t.offset = offset;
  return t;
}

ViewKind kind_of(const TensorArg& t) {
  const Window w{t.sizes.data(), t.strides.data(), t.rank(), t.offset};
  return classify(w, t.base.dims.data(), t.base.rank());
}

std::vector<int32_t> read(const pjrt::Buffer& buffer) {
  std::vector<int32_t> values(buffer.host_nbytes() / sizeof(int32_t));
  buffer.to_host(values.data(), values.size() * sizeof(int32_t));
  return values;
}

pjrt::Buffer upload(const std::vector<int32_t>& values, const Dims& dims) {
  return test_client()->from_host(values.data(), pjrt::kS32, dims, test_client()->device(0));
}

// One program that reads and writes through a window whose position is a run-time input.
class Program {
 public:
  explicit Program(const TensorArg& t) : kind_(kind_of(t)) {
    hlo::Builder b;
    Value base = b.param(t.base);
    Value update = b.param({DType::S32, t.sizes});
    const StartSource start = [&](int64_t divisor, int64_t modulus) {
      for (size_t i = 0; i < starts_.size(); ++i)
        if (starts_[i] == std::pair(divisor, modulus)) return values_[i];
      starts_.emplace_back(divisor, modulus);
      values_.push_back(b.param({DType::S32, {}}));
      return values_.back();
    };
    Value seen = read_view(base, t, start);
    EXPECT_EQ(seen.dims(), t.sizes);
    Value written = write_view(base, t, update, start);
    EXPECT_EQ(written.dims(), t.base.dims);
    const std::vector<Value> results = {seen, written};
    text_ = hlo::write_module(b.finish(results));
    executable_ = std::make_unique<pjrt::Executable>(test_client()->compile(text_, {}));
  }

  // t: what the program was made for, perhaps at another offset.
  void check(const TensorArg& t) const {
    SCOPED_TRACE(text_);
    ASSERT_EQ(kind_of(t), kind_);
    std::vector<int32_t> base(product(t.base.dims)), update(product(t.sizes));
    std::iota(base.begin(), base.end(), 100);
    std::iota(update.begin(), update.end(), -500);
    std::vector<int32_t> seen, written = base;
    const std::vector<int64_t> at = elements(t);
    for (int64_t i : at) seen.push_back(base[i]);
    for (size_t i = 0; i < at.size(); ++i) written[at[i]] = update[i];
    std::vector<pjrt::Buffer> in;
    in.push_back(upload(base, t.base.dims));
    in.push_back(upload(update, t.sizes));
    for (const auto& [divisor, modulus] : starts_)
      in.push_back(upload({static_cast<int32_t>((t.offset / divisor) % modulus)}, {}));
    std::vector<PJRT_Buffer*> raw, out(2);
    for (pjrt::Buffer& buffer : in) raw.push_back(buffer.raw());
    executable_->execute(raw, {}, out);
    pjrt::Buffer first(test_client()->api(), out[0]), second(test_client()->api(), out[1]);
    EXPECT_EQ(read(first), seen);
    if (std::set<int64_t>(at.begin(), at.end()).size() == at.size())
      EXPECT_EQ(read(second), written);
  }

  const std::string& text() const { return text_; }

 private:
  ViewKind kind_;
  std::vector<std::pair<int64_t, int64_t>> starts_;
  std::vector<Value> values_;
  std::string text_;
  std::unique_ptr<pjrt::Executable> executable_;
};

void check(const TensorArg& t) { Program(t).check(t); }

TEST(View, KindsOfWindows) {
  EXPECT_EQ(kind_of(window({4, 6}, {4, 6}, {6, 1}, 0)), ViewKind::Identity);
  EXPECT_EQ(kind_of(window({4, 6}, {6, 4}, {1, 6}, 0)), ViewKind::BaseDims);
  EXPECT_EQ(kind_of(window({4, 6}, {2, 3}, {12, 2}, 7)), ViewKind::BaseDims);
  EXPECT_EQ(kind_of(window({4, 6}, {3, 4, 6}, {0, 6, 1}, 0)), ViewKind::BaseDims);
  EXPECT_EQ(kind_of(window({4, 6}, {24}, {1}, 0)), ViewKind::Strides);
  EXPECT_EQ(kind_of(window({24}, {2, 3, 4}, {12, 4, 1}, 0)), ViewKind::Strides);
  EXPECT_EQ(kind_of(window({4, 6}, {2, 7}, {7, 1}, 1)), ViewKind::Flat);
  EXPECT_EQ(kind_of(window({4, 6}, {5, 3}, {1, 1}, 0)), ViewKind::Gather);
}

TEST(View, ReadsAndWritesOfEveryKind) {
  check(window({4, 6}, {4, 6}, {6, 1}, 0));
  check(window({4, 6}, {6, 4}, {1, 6}, 0));
  check(window({4, 6}, {2, 3}, {12, 2}, 7));  // steps that divide the dimensions
  check(window({5, 7}, {2, 3}, {14, 3}, 7));  // and that do not
  check(window({4, 6}, {3, 4, 6}, {0, 6, 1}, 0));
  check(window({4, 6}, {24}, {1}, 0));
  check(window({24}, {2, 3, 4}, {12, 4, 1}, 0));
  check(window({4, 6}, {2, 7}, {7, 1}, 1));
  check(window({4, 6}, {5, 3}, {1, 1}, 0));      // overlapping
  check(window({2, 3, 4}, {}, {}, 17));          // one element
  check(window({2, 3, 4}, {1, 1}, {99, 7}, 5));  // strides of single elements do not matter
  check(window({2, 3, 4}, {3}, {5}, 2));         // a diagonal
  check(window({}, {1, 1}, {1, 1}, 0));
}

TEST(View, OneProgramServesEveryPlace) {
  Program rows(window({6, 4}, {4}, {1}, 0));
  for (int64_t i = 0; i < 6; ++i) rows.check(window({6, 4}, {4}, {1}, 4 * i));
  Program columns(window({6, 4}, {3}, {8}, 0));
  for (int64_t i : {0, 1, 3, 4, 7}) columns.check(window({6, 4}, {3}, {8}, i));
  Program flat(window({24}, {2, 5}, {7, 1}, 0));
  for (int64_t i = 0; i + 12 <= 24; ++i) flat.check(window({24}, {2, 5}, {7, 1}, i));
}

TEST(View, AStepThatDividesItsDimensionIsAPlainSlice) {
  const std::string text = Program(window({4, 6}, {4, 3}, {6, 2}, 1)).text();
  EXPECT_NE(text.find("dynamic_update_slice"), std::string::npos);
  EXPECT_EQ(text.find("stablehlo.pad"), std::string::npos);
  EXPECT_EQ(text.find("stablehlo.gather"), std::string::npos);
}

TEST(View, RandomWindows) {
  std::mt19937 random(7);
  auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const std::vector<Dims> bases = {{24}, {4, 6}, {2, 3, 4}, {1, 24, 1}};
  for (int round = 0; round < 40; ++round) {
    TensorArg t = window(bases[draw(0, 3)], {}, {}, 0);
    int64_t room = 23;
    for (int64_t d = draw(0, 3); d-- > 0;) {
      const int64_t stride = draw(0, 8);
      const int64_t most = stride == 0 ? 3 : std::min<int64_t>(4, 1 + room / stride);
      t.sizes.push_back(draw(1, most));
      t.strides.push_back(stride);
      room -= (t.sizes.back() - 1) * stride;
    }
    t.offset = draw(0, room);
    check(t);
    if (HasFailure()) break;
  }
}

TEST(View, OverwritesOnlyWhatItCovers) {
  EXPECT_TRUE(overwrites(window({4, 6}, {4, 6}, {6, 1}, 0), {DType::S32, {4, 6}}));
  EXPECT_TRUE(overwrites(window({4, 6}, {6, 4}, {1, 6}, 0), {DType::S32, {4, 6}}));
  EXPECT_FALSE(overwrites(window({4, 6}, {4, 5}, {6, 1}, 0), {DType::S32, {4, 6}}));
  // As many elements as the base, all of them its first ones.
  EXPECT_FALSE(overwrites(window({4}, {2, 2}, {0, 1}, 0), {DType::S32, {4}}));
}

TEST(View, BytesAsAnotherType) {
  EXPECT_EQ(reinterpreted({DType::F32, {2, 3}}, DType::U8).dims, (Dims{2, 12}));
  EXPECT_EQ(reinterpreted({DType::U8, {2, 12}}, DType::F32).dims, (Dims{2, 3}));
  EXPECT_EQ(reinterpreted({DType::U8, {2, 6}}, DType::F32).dims, (Dims{3}));
  EXPECT_EQ(reinterpreted({DType::S64, {2, 3}}, DType::F64).dims, (Dims{2, 3}));
  EXPECT_EQ(reinterpreted({DType::F32, {}}, DType::S16).dims, (Dims{2}));
  EXPECT_EQ(reinterpreted({DType::U8, {10}}, DType::F32).dims, (Dims{2}));  // two bytes are left
}

}  // namespace
}  // namespace torch_tpu::graph
