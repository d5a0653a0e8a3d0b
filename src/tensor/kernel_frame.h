// SPDX-License-Identifier: Apache-2.0 - One call of an operator as the kernel sees it: the words of its key, its tensors and numbers.
#pragma once

#include <cstring>

#include "src/tensor/kernel.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

inline graph::Number to_number(const c10::Scalar& s) {
  graph::Number n;
  if (s.isBoolean()) {
    n.kind = graph::Number::Bool;
    n.i = s.toBool();
  } else if (s.isIntegral(false)) {
    n.kind = graph::Number::Int;
    n.i = s.type() == at::kUInt64 ? static_cast<int64_t>(s.toUInt64()) : s.toLong();
  } else if (s.isComplex()) {
    auto c = s.toComplexDouble();
    n.kind = graph::Number::Complex;
    n.re = c.real();
    n.im = c.imag();
  } else {
    n.kind = graph::Number::Float;
    n.re = s.toDouble();
  }
  return n;
}

inline uint64_t bits(double v) {
  uint64_t w;
  std::memcpy(&w, &v, 8);
  return w;
}

// Words of a key; nearly always on the stack.
class Words {
 public:
  void push(uint64_t w) {
    if (n_ < kInline) {
      inline_[n_++] = w;
    } else {
      more_.push_back(w);
    }
  }
  bool equal(const std::vector<uint64_t>& other) const {
    return other.size() == n_ + more_.size() && std::memcmp(other.data(), inline_, n_ * 8) == 0 &&
           std::equal(more_.begin(), more_.end(), other.begin() + static_cast<std::ptrdiff_t>(n_));
  }
  void copy_to(std::vector<uint64_t>& other) const {
    other.assign(inline_, inline_ + n_);
    other.insert(other.end(), more_.begin(), more_.end());
  }
  graph::Key key() const {
    graph::KeyHasher h;
    h.words(inline_, n_);
    h.words(more_.data(), more_.size());
    return h.finish();
  }

 private:
  static constexpr size_t kInline = 192;
  uint64_t inline_[kInline];
  size_t n_ = 0;
  std::vector<uint64_t> more_;
};

inline bool is_number(const graph::ScalarSource& s) {
  return s.kind == graph::ScalarSource::NumberRe || s.kind == graph::ScalarSource::NumberIm ||
         s.kind == graph::ScalarSource::NumberFlag;
}

struct OpKernel::Frame {
  struct Site {
    uint16_t arg, element;
    const c10::TensorImpl* tensor;  // on the device
    Slot* slot;
    int64_t offset;
  };
  struct NumberSite {
    uint16_t arg, element;
    c10::Scalar number;
  };
  Words words;
  c10::SmallVector<Site, 8> sites;
  c10::SmallVector<NumberSite, 4> numbers;
  c10::SmallVector<at::Tensor, 2> moved;  // keeps materialized conj/neg tensors alive
  const at::Generator* generator = nullptr;
  at::Generator generator_holder;
  const c10::IValue* args = nullptr;
  bool lazy = false;     // an argument has the conj or neg bit
  bool aliased = false;  // two arguments share a storage, and this op writes
};

}  // namespace torch_tpu::tensor
