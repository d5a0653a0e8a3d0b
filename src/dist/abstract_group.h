// SPDX-License-Identifier: Apache-2.0 - The process group of devices that are not here: its collectives are written down, never run.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>
#include <vector>

namespace torch_tpu::dist {

// One device's view of a group of `ranks`, in ascending order, among `world` devices. Collectives
// of tensors on the device become calls of the entries in src/ops/collectives.cpp; those of CPU
// tensors, with which libraries set themselves up, are left to `host`.
class AbstractGroup final : public c10d::Backend {
 public:
  // Throws c10::ValueError where the group's counterparts do not divide the world.
  AbstractGroup(int rank, const std::vector<int64_t>& ranks, int64_t world,
                c10::intrusive_ptr<c10d::Backend> host);

  // The group and its counterparts, as the entries want it. Throws where nothing is traced.
  const std::string& groups() const;

  const std::string getBackendName() const override { return "abstract"; }
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs,
               const c10d::ScatterOptions& options) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

  // A device's split sizes as the first device of the group has them, if all send everything on to
  // some place; otherwise as they are.
  std::vector<int64_t> from_first(std::vector<int64_t> sizes) const;

 private:
  std::string groups_;
  c10::intrusive_ptr<c10d::Backend> host_;
};

// PyTorch's functional collectives for tensors on the device: those of abstract groups are calls of
// entries, all others take PyTorch's own way. Called once, when the extension is loaded.
void register_functional_collectives();

}  // namespace torch_tpu::dist
