// SPDX-License-Identifier: Apache-2.0 - The boxed kernel behind every operator: arguments to key, key to record, record to submit().
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/graph/key.h"
#include "src/graph/trace.h"
#include "src/run/array.h"

namespace torch_tpu::tensor {

// One form of one operator. Remembers every call shape it has seen.
class OpKernel final : public c10::OperatorKernel {
 public:
  OpKernel(const c10::FunctionSchema& schema, const graph::OpEntry* entry,
           graph::Variant::Form form, bool foreach);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
  // The same without dispatch, for our own C++ callers.
  void call(torch::jit::Stack* stack);
  // The same without boxing, for an op whose arguments are tensors and then numbers and whose
  // result is one tensor (out; null for in-place forms). False: not a call shape seen before, or
  // not a plain one; call() does it.
  bool call_known(c10::ArrayRef<const at::Tensor*> tensors,
                  c10::ArrayRef<const c10::Scalar*> scalars, at::Tensor* out);
  // For an op that takes a list of tensors and a list of ints, whose results' tensors the caller
  // makes: submits the call and gives one array per result of the record.
  using Results = c10::SmallVector<run::ArrayPtr, 8>;
  const graph::Record& call_graph(c10::ArrayRef<at::Tensor> tensors, c10::IntArrayRef ints,
                                  Results& results);
  // How many tensors and numbers such an op takes; nothing for others.
  std::optional<std::pair<int, int>> plain_arguments() const;

  // A lowering made at run time instead of the entry's body.
  void set_body(std::function<hlo::Values(graph::Call&)> body) { variant_.body = std::move(body); }
  const graph::Variant& variant() const { return variant_; }
  // Writes of its records are told by nobody but the records; which arguments share storages does
  // not matter.
  void ignore_aliases() { ignore_aliases_ = true; }
  template <typename F>
  void for_each_record(F&& f) const {
    for (const auto& [key, site] : sites_) f(site.record);
  }

 private:
  enum class Kind : uint8_t {
    Tensor,
    TensorList,
    Scalar,
    ScalarList,
    Float,
    FloatList,
    Int,
    Bool,
    IntList,
    BoolList,
    Text,
    DType,
    Device,
    Generator,
    Ignored,
  };
  struct CallSite {
    graph::RecordPtr record;
    std::vector<const hlo::Type*> result_types;
    std::vector<c10::ScalarType> output_types;
    int64_t new_bytes = 0;  // of the results that are new tensors
    // Where in the frame the record's inputs, writes and scalars find what they are about.
    std::vector<uint32_t> input_sites, write_sites, scalar_sites;
  };
  struct Frame;

  void push_argument(Frame& frame, size_t i, const c10::IValue& value);
  void push_tensor(Frame& frame, size_t i, size_t element, const at::TensorBase& tensor);
  void check_generator(const Frame& frame, const c10::TensorImpl& tensor) const;
  void push_number(Frame& frame, size_t i, const c10::Scalar& number);
  // Everything about a call that its record depends on, as words in frame.words.
  void describe(Frame& frame, const c10::IValue* args);
  void begin_words(Frame& frame) const;
  void end_words(Frame& frame) const;
  const CallSite* find_site(const Frame& frame);
  void launch(Frame& frame, const CallSite& site, std::unique_lock<std::mutex>& lock,
              const run::Origin* origin, Results& results);
  const CallSite& trace_site(std::optional<Frame>& frame, c10::IValue* args,
                             std::unique_lock<std::mutex>& lock,
                             std::optional<run::Origin>& origin);
  std::shared_ptr<graph::Args> arguments(const Frame& frame, const c10::IValue* args) const;
  void prepare_outs(graph::Variant& variant, c10::IValue* args, std::unique_lock<std::mutex>& lock);
  void check_written(const c10::IValue* args, bool all) const;
  void resolve_lazy(c10::IValue* args) const;
  static void find_sites(CallSite& site, const Frame& frame);
  void run(torch::jit::Stack* stack, std::optional<run::Origin> origin = {});

  std::vector<Kind> kinds_;
  std::vector<bool> list_return_;
  // The argument that each result is, when the entry of a mutating schema states its writes itself;
  // -1: a new tensor.
  std::vector<int> returned_argument_;
  size_t returns_ = 0;
  bool returns_tensor_ = false;  // one tensor and nothing else
  bool optional_ = false;        // some argument may be None
  bool writes_ = false;          // keys tell which tensors share storages
  bool ignore_aliases_ = false;
  // Which calls may fail at run time, of those seen.
  enum class Checked : uint8_t { None, Some, All };
  std::atomic<Checked> checked_{Checked::None};
  graph::Variant variant_;
  std::unordered_map<graph::Key, CallSite, graph::KeyHash> sites_;
  const CallSite* last_site_ = nullptr;
  std::vector<uint64_t> last_words_;
};

graph::TraceOptions trace_options();

// Lets go of the GIL if this thread holds it (null otherwise), and takes it back; set by the Python
// layer.
void set_gil_hooks(void* (*release)(), void (*restore)(void*));

}  // namespace torch_tpu::tensor
