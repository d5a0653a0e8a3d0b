// SPDX-License-Identifier: Apache-2.0 - c10d's collectives of an abstract group, in terms of the functional ones.
#include "src/dist/abstract_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "src/ops/collectives.h"
#include "src/run/runtime.h"
#include "src/tensor/register.h"
#include "src/tensor/storage.h"

namespace torch_tpu::dist {
namespace {

bool on_device(const at::Tensor& t) { return t.device().type() == tensor::device_type(); }
bool on_device(const std::vector<at::Tensor>& list) { return !list.empty() && on_device(list[0]); }

// Of calls that are written down at once.
class Done final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    future->markCompleted();
    return future;
  }
};
c10::intrusive_ptr<c10d::Work> done() { return c10::make_intrusive<Done>(); }

std::string name_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    case c10d::ReduceOp::MIN:
      return "min";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::BAND:
      return "band";
    case c10d::ReduceOp::BOR:
      return "bor";
    case c10d::ReduceOp::BXOR:
      return "bxor";
    default:
      return "premul_sum";
  }
}

at::Tensor call(const char* entry, std::vector<c10::IValue> args) {
  return tensor::call_entry(entry, std::move(args))[0];
}

// c10d's collectives write their outputs unseen by autograd, and look at the order of elements
// only.
void write(const at::Tensor& output, const at::Tensor& result) {
  const at::AutoDispatchBelowAutograd guard;
  output.copy_(result.sizes() == output.sizes() ? result : result.view(output.sizes()));
}

at::Tensor joined(const std::vector<at::Tensor>& parts) {
  const at::AutoDispatchBelowAutograd guard;
  return at::stack(parts);
}

void write_each(const std::vector<at::Tensor>& outputs, const at::Tensor& result) {
  const at::AutoDispatchBelowAutograd guard;
  const auto count = static_cast<int64_t>(outputs.size());
  const std::vector<at::Tensor> parts = result.reshape({count, -1}).unbind();
  for (size_t i = 0; i < outputs.size(); ++i) write(outputs[i], parts[i]);
}

[[noreturn]] void different_programs(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, what,
      ": a message from one device to another needs a program for each; ahead of time one program "
      "is "
      "compiled that all devices run. Send everything the same number of places on "
      "(permute_tensor), or compile each pipeline stage as a program of its own");
}

std::string grouping(int rank, const std::vector<int64_t>& ranks, int64_t world) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < static_cast<int>(ranks.size()), "rank ", rank,
                    " is not in a group of ", ranks.size());
  try {
    return ops::DeviceGroups::from(ranks, world).text();
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(
        false, "the process group of ranks ", c10::IntArrayRef(ranks),
        " cannot be one of a mesh of ", world, " devices: ", error.what(),
        ". In the one program of all devices a collective takes place in all groups of a kind at "
        "once; make groups with torch.distributed.init_device_mesh");
  }
}

}  // namespace

AbstractGroup::AbstractGroup(int rank, const std::vector<int64_t>& ranks, int64_t world,
                             c10::intrusive_ptr<c10d::Backend> host)
    : Backend(rank, static_cast<int>(ranks.size())),
      groups_(grouping(rank, ranks, world)),
      host_(std::move(host)) {}

const std::string& AbstractGroup::groups() const {
  TORCH_CHECK(run::Runtime::instance().abstract(),
              "this process group stands for devices that are not here; it is of use only within "
              "torch_tpu.aot.abstract(topology=...)");
  return groups_;
}

std::vector<int64_t> AbstractGroup::from_first(std::vector<int64_t> sizes) const {
  const auto used = std::count_if(sizes.begin(), sizes.end(), [](int64_t n) { return n != 0; });
  if (used == 1 && static_cast<int>(sizes.size()) == getSize())
    std::rotate(sizes.begin(), sizes.begin() + getRank(), sizes.end());
  return sizes;
}

AbstractGroup::Work AbstractGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) {
  if (!on_device(tensors)) return host_->broadcast(tensors, o);
  for (const at::Tensor& t : tensors)
    write(t, call("_c10d_functional::broadcast", {t, o.rootRank, groups()}));
  return done();
}

AbstractGroup::Work AbstractGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) {
  if (!on_device(tensors)) return host_->allreduce(tensors, o);
  for (const at::Tensor& t : tensors)
    write(t, call("_c10d_functional::all_reduce", {t, name_of(o.reduceOp), groups()}));
  return done();
}

AbstractGroup::Work AbstractGroup::allreduce_coalesced(Tensors& tensors,
                                                       const c10d::AllreduceCoalescedOptions& o) {
  return allreduce(tensors, o);
}

// The others' tensors are undefined afterwards, so they may as well have the result.
AbstractGroup::Work AbstractGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& o) {
  c10d::AllreduceOptions all;
  all.reduceOp = o.reduceOp;
  return allreduce(tensors, all);
}

AbstractGroup::Work AbstractGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& o) {
  if (!on_device(input)) return host_->_allgather_base(output, input, o);
  write(output, call("_c10d_functional::all_gather_into_tensor",
                     {input, static_cast<int64_t>(getSize()), groups()}));
  return done();
}

AbstractGroup::Work AbstractGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& o) {
  if (!on_device(inputs)) return host_->allgather(outputs, inputs, o);
  for (size_t i = 0; i < inputs.size(); ++i)
    write_each(outputs[i], call("_c10d_functional::all_gather_into_tensor",
                                {inputs[i], static_cast<int64_t>(getSize()), groups()}));
  return done();
}

AbstractGroup::Work AbstractGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) {
  for (size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs[i], inputs[i], o);
  return done();
}

AbstractGroup::Work AbstractGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& o) {
  if (!on_device(input)) return host_->_reduce_scatter_base(output, input, o);
  write(output, call("_c10d_functional::reduce_scatter_tensor",
                     {input, name_of(o.reduceOp), static_cast<int64_t>(getSize()), groups()}));
  return done();
}

AbstractGroup::Work AbstractGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ReduceScatterOptions& o) {
  if (!on_device(outputs)) return host_->reduce_scatter(outputs, inputs, o);
  for (size_t i = 0; i < outputs.size(); ++i) {
    at::Tensor all = joined(inputs[i]);
    _reduce_scatter_base(outputs[i], all, o);
  }
  return done();
}

AbstractGroup::Work AbstractGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& o) {
  for (size_t i = 0; i < inputs.size(); ++i) _reduce_scatter_base(outputs[i], inputs[i], o);
  return done();
}

AbstractGroup::Work AbstractGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<int64_t>& output_sizes,
                                                 std::vector<int64_t>& input_sizes,
                                                 const c10d::AllToAllOptions& o) {
  if (!on_device(input)) return host_->alltoall_base(output, input, output_sizes, input_sizes, o);
  write(output, call("_c10d_functional::all_to_all_single",
                     {input, from_first(output_sizes), from_first(input_sizes), groups()}));
  return done();
}

AbstractGroup::Work AbstractGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllToAllOptions& o) {
  if (!on_device(inputs)) return host_->alltoall(outputs, inputs, o);
  const std::vector<int64_t> even;
  write_each(outputs,
             call("_c10d_functional::all_to_all_single", {joined(inputs), even, even, groups()}));
  return done();
}

// All get everything from the source, and pass on to place i what it is to have. Only the source's
// program knows what that is: it is the one to be compiled, which is that of the first device.
AbstractGroup::Work AbstractGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ScatterOptions& o) {
  if (!on_device(outputs)) return host_->scatter(outputs, inputs, o);
  if (inputs.empty() || inputs[0].empty()) {
    if (getRank() == 0) different_programs("scatter from another device than the first");
    write(outputs[0], at::zeros_like(outputs[0]));
    return done();
  }
  const std::vector<int64_t> even;
  const at::Tensor all =
      call("_c10d_functional::broadcast", {joined(inputs[0]), o.rootRank, groups()});
  write(outputs[0], call("_c10d_functional::all_to_all_single", {all, even, even, groups()})[0]);
  return done();
}

AbstractGroup::Work AbstractGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::GatherOptions& o) {
  if (!on_device(inputs)) return host_->gather(outputs, inputs, o);
  if (outputs.empty() || outputs[0].empty()) {
    if (getRank() == 0) different_programs("gather to another device than the first");
    return done();
  }
  return allgather(outputs, inputs, {});
}

AbstractGroup::Work AbstractGroup::barrier(const c10d::BarrierOptions&) { return done(); }

AbstractGroup::Work AbstractGroup::send(Tensors& tensors, int to, int tag) {
  if (on_device(tensors)) different_programs("send");
  return host_->send(tensors, to, tag);
}
AbstractGroup::Work AbstractGroup::recv(Tensors& tensors, int from, int tag) {
  if (on_device(tensors)) different_programs("recv");
  return host_->recv(tensors, from, tag);
}
AbstractGroup::Work AbstractGroup::recvAnysource(Tensors& tensors, int tag) {
  if (on_device(tensors)) different_programs("recv");
  return host_->recvAnysource(tensors, tag);
}

}  // namespace torch_tpu::dist
