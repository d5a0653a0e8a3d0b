// SPDX-License-Identifier: Apache-2.0 - Random numbers from keys instead of a generator: torch.func's stateless streams.
//
// A key is uint64 [..., 2]: seed and offset of a Philox stream. Block i of four words has the
// counter offset + i. Values agree with PyTorch's CUDA kernels.
#include <array>
#include <cmath>
#include <functional>
#include <numbers>

#include "src/graph/philox.h"
#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {
namespace {

Value u64(hlo::Builder& b, int64_t v) { return hlo::constant_int(b, {DType::U64, {}}, v); }

Value wide_word(const Value& high, const Value& low) {
  Value up = hlo::shift_left(hlo::convert(high, DType::U64), u64(high.builder(), 32));
  return hlo::or_(up, hlo::convert(low, DType::U64));
}

using Words = std::array<Value, 4>;

// One block of each key's stream: seed and offset are U64 of one shape.
Words block_of(const Value& seed, const Value& offset) {
  const auto low = [](const Value& v) { return hlo::convert(v, DType::U32); };
  const auto high = [&](const Value& v) {
    return low(hlo::shift_right_logical(v, u64(v.builder(), 32)));
  };
  Value zero = hlo::zeros(seed.builder(), {DType::U32, seed.dims()});
  return graph::philox::rounds<graph::philox::ProgramWords>({low(offset), high(offset), zero, zero},
                                                            {low(seed), high(seed)});
}

Value part_of(const Value& key, int64_t i) {
  return hlo::squeeze(hlo::slice_dim(key, key.rank() - 1, i, i + 1), key.rank() - 1);
}

Value key_argument(Call& c) {
  const TensorArg& key = c.meta("key");
  c.check(key.rank() >= 1 && key.sizes.back() == 2, "key must have shape (*batch, 2), got shape ",
          key.sizes);
  c.check(key.dtype == DType::U64, "key must have dtype uint64, got ", key.dtype);
  return c.tensor("key");
}

Value derived_key(const Words& words) {
  Value seed = wide_word(words[1], words[0]), offset = wide_word(words[3], words[2]);
  const Value parts[] = {hlo::unsqueeze(seed, seed.rank()), hlo::unsqueeze(offset, seed.rank())};
  return hlo::concatenate(parts, seed.rank());
}

// The elements of self from blocks of `each`. One key fills all of self; each of a batch of keys
// fills what it stands for.
Values filled(Call& c, int64_t each, const std::function<Values(const Words&)>& fn) {
  const TensorArg& self = c.meta("self");
  require_real_float(c, self.dtype);
  Value key = key_argument(c);
  Dims lead;
  int64_t count = self.elements();
  if (key.rank() > 1) {
    c.check(key.rank() == self.rank() + 1,
            "batched key must have ndim == output ndim + 1, got key shape ", key.dims(),
            " with output shape ", self.sizes);
    const Dims batch(key.dims().begin(), key.dims().end() - 1);
    check_expands(c, batch, self.sizes);
    int64_t n = self.rank();
    while (n > 0 && batch[n - 1] == 1) --n;
    lead.assign(self.sizes.begin(), self.sizes.begin() + n);
    count = hlo::element_count(Dims(self.sizes.begin() + n, self.sizes.end()));
    Dims wide = lead;
    wide.insert(wide.end(), self.rank() - n, 1);
    wide.push_back(2);
    key = hlo::broadcast_to(key, wide);
  }
  if (self.elements() == 0) return {c.tensor("self")};
  const int64_t keys = hlo::element_count(lead), blocks = (count + each - 1) / each;
  key = hlo::reshape(key, {keys, 2});
  const Dims dims = {keys, blocks};
  Value seed = hlo::broadcast_to(hlo::slice_dim(key, 1, 0, 1), dims);
  Value offset = hlo::slice_dim(key, 1, 1, 2) + hlo::iota(c.builder(), {DType::U64, dims}, 1);
  Values parts = fn(block_of(seed, offset));
  for (Value& p : parts) p = hlo::unsqueeze(p, 2);
  Value all = hlo::reshape(hlo::concatenate(parts, 2), {keys, blocks * each});
  all = hlo::reshape(hlo::slice_dim(all, 1, 0, count), self.sizes);
  return {hlo::convert(all, self.dtype)};
}

}  // namespace

TPU_OP("aten::_philox_key_split(Tensor key, int num_splits) -> Tensor") {
  Value key = key_argument(c);
  const int64_t n = c.integer("num_splits");
  c.check(n > 0, "num_splits must be positive, got ", n);
  Value seed = part_of(key, 0), offset = part_of(key, 1);
  Dims dims = seed.dims();
  dims.insert(dims.begin(), n);
  Value step = hlo::iota(c.builder(), {DType::U64, dims}, 0);
  return {derived_key(block_of(hlo::broadcast_to(seed, dims), offset + step))};
}

TPU_OP("aten::_philox_key_fold_in(Tensor key, int data) -> Tensor") {
  Value key = key_argument(c);
  Value offset = part_of(key, 1) + u64(c.builder(), c.integer("data"));
  return {derived_key(block_of(part_of(key, 0), offset))};
}

// As many low bits of a word as the type's numbers have: [low, high).
TPU_OP("aten::_philox_uniform(Tensor self, Tensor key, float low=0, float high=1) -> Tensor") {
  const DType dtype = c.dtype_of("self"), compute = hlo::opmath(dtype);
  Value low = c.scalar("low", compute), high = c.scalar("high", compute);
  const auto placed = [&](const Value& word, int digits) {
    const int64_t mask = (int64_t{1} << digits) - 1;
    Value bits = hlo::and_(word, hlo::constant_int(c.builder(), {word.dtype(), {}}, mask));
    return hlo::convert(bits, compute) * std::ldexp(1.0, -digits) * (high - low) + low;
  };
  if (dtype == DType::F64) {
    return filled(c, 2, [&](const Words& w) -> Values {
      return {placed(wide_word(w[0], w[1]), 53), placed(wide_word(w[2], w[3]), 53)};
    });
  }
  const int digits = dtype == DType::BF16 ? 8 : dtype == DType::F16 ? 11 : 24;
  return filled(c, 4, [&](const Words& w) -> Values {
    return {placed(w[0], digits), placed(w[1], digits), placed(w[2], digits), placed(w[3], digits)};
  });
}

// Box-Muller: sqrt(-2 log u) times cosine and sine of 2 pi v.
TPU_OP("aten::_philox_normal(Tensor self, Tensor key, float mean=0, float std=1) -> Tensor") {
  const DType dtype = c.dtype_of("self"), compute = hlo::opmath(dtype);
  Value mean = c.scalar("mean", compute), std = c.scalar("std", compute);
  const auto pair = [&](const Value& u, const Value& v) -> Values {
    Value radius = hlo::sqrt(hlo::log(u) * -2.0), angle = v * (2 * std::numbers::pi);
    return {radius * hlo::cosine(angle) * std + mean, radius * hlo::sine(angle) * std + mean};
  };
  if (dtype == DType::F64) {
    return filled(c, 2, [&](const Words& w) -> Values {
      const auto unit = [&](const Value& a, const Value& b) {
        return hlo::convert(a, DType::F64) * 0x1p-32 + hlo::convert(b, DType::F64) * 0x1p-64 +
               0x1p-65;
      };
      return pair(unit(w[0], w[1]), unit(w[2], w[3]));
    });
  }
  return filled(c, 4, [&](const Words& w) -> Values {
    const auto unit = [](const Value& a) {
      return hlo::convert(a, DType::F32) * 0x1p-32 + 0x1p-33;
    };
    const Values first = pair(unit(w[0]), unit(w[1])), second = pair(unit(w[2]), unit(w[3]));
    return {first[0], first[1], second[0], second[1]};
  });
}

}  // namespace torch_tpu::ops
