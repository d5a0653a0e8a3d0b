# SPDX-License-Identifier: Apache-2.0 - Softmax, normalization and class losses against CPU.
import copy
import math

import pytest
import torch
import torch.nn.functional as F

from torch_tpu.conformance.tolerances import allowed


def train(module, x):
    """Output, gradients and buffers after one training step and one evaluation."""
    x = x.detach().requires_grad_()
    y = module(x)
    y.square().sum().backward()
    module.eval()
    z = module(x.detach())
    kept = [y, z, x.grad, *(p.grad for p in module.parameters()), *module.buffers()]
    return [t.detach().cpu() for t in kept]


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_module(momentum, affine, layout):
    torch.manual_seed(0)
    module = torch.nn.BatchNorm2d(3, momentum=momentum, affine=affine)
    x = (torch.randn(4, 3, 5, 6) * 2 + 1).to(memory_format=layout)
    mine = copy.deepcopy(module).to("tpu")
    device_x = x.to("tpu")
    assert mine(device_x).is_contiguous(memory_format=layout)
    mine = copy.deepcopy(module).to("tpu")
    for ours, theirs in zip(train(mine, device_x), train(module, x), strict=True):
        torch.testing.assert_close(ours, theirs, **allowed("sums"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.LayerNorm([4, 5]),
        lambda: torch.nn.LayerNorm(5, elementwise_affine=False),
        lambda: torch.nn.RMSNorm(5),
        lambda: torch.nn.RMSNorm(5, eps=1e-3),
        lambda: torch.nn.GroupNorm(2, 6),
        lambda: torch.nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(5, 3)),
    ],
)
def test_modules(make):
    torch.manual_seed(0)
    module = make()
    x = torch.randn(2, 6, 4, 5)
    mine = copy.deepcopy(module).to("tpu")
    for ours, theirs in zip(train(mine, x.to("tpu")), train(module, x), strict=True):
        torch.testing.assert_close(ours, theirs, **allowed("layers"))


def test_half_norms_keep_float32_inside():
    x = (torch.randn(4, 4096, generator=torch.Generator().manual_seed(0)) + 100).bfloat16()
    exact = F.layer_norm(x.double(), [4096])
    mine = F.layer_norm(x.to("tpu"), [4096]).cpu().double()
    assert (mine - exact).abs().max() < 0.02
    exact = F.rms_norm(x.double(), [4096])
    mine = F.rms_norm(x.to("tpu"), [4096]).cpu().double()
    assert (mine - exact).abs().max() < 0.01


def test_variance_does_not_cancel():
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)) + 1e4
    torch.testing.assert_close(x.to("tpu").var(1).cpu(), x.double().var(1).float())


def test_sync_batch_norm_pieces():
    """Two ranks by hand: their statistics together are those of the whole batch."""
    torch.manual_seed(0)
    x, g = torch.randn(8, 3, 4), torch.randn(8, 3, 4)
    w, b = torch.rand(3) + 0.5, torch.randn(3)
    mean, var = torch.zeros(3), torch.ones(3)
    leaf, weight, bias = (t.clone().requires_grad_() for t in (x, w, b))
    y = F.batch_norm(leaf, mean, var, weight, bias, True, 0.1, 1e-5)
    y.backward(g)
    device = [t.to("tpu") for t in (x, g, w, b, torch.zeros(3), torch.ones(3))]
    dx, dg, dw, db, dmean, dvar = device
    parts = [(0, 3), (3, 8)]
    stats = [torch.batch_norm_stats(dx[lo:hi], 1e-5) for lo, hi in parts]
    counts = torch.tensor([(hi - lo) * 4.0 for lo, hi in parts], device="tpu")
    m, invstd = torch.batch_norm_gather_stats_with_counts(
        dx,
        torch.stack([s[0] for s in stats]),
        torch.stack([s[1] for s in stats]),
        dmean,
        dvar,
        0.1,
        1e-5,
        counts,
    )
    torch.testing.assert_close(dmean.cpu(), mean)
    torch.testing.assert_close(dvar.cpu(), var)
    mine = torch.cat(
        [torch.batch_norm_elemt(dx[lo:hi], dw, db, m, invstd, 1e-5) for lo, hi in parts]
    )
    torch.testing.assert_close(mine.cpu(), y.detach(), **allowed("layers"))
    sums = [
        torch.batch_norm_backward_reduce(dg[lo:hi], dx[lo:hi], m, invstd, dw, True, True, True)
        for lo, hi in parts
    ]
    sum_dy, sum_dy_xmu = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
    back = [
        torch.batch_norm_backward_elemt(
            dg[lo:hi], dx[lo:hi], m, invstd, dw, sum_dy, sum_dy_xmu, counts.to(torch.int32)
        )
        for lo, hi in parts
    ]
    torch.testing.assert_close(torch.cat(back).cpu(), leaf.grad, **allowed("layers"))
    torch.testing.assert_close((sums[0][2] + sums[1][2]).cpu(), weight.grad, **allowed("sums"))
    torch.testing.assert_close((sums[0][3] + sums[1][3]).cpu(), bias.grad, **allowed("sums"))


def test_ignored_targets():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    logits[2, 0] = -math.inf
    target = torch.tensor([1, -100, 3, -100])
    mine = logits.to("tpu").requires_grad_()
    loss = F.cross_entropy(mine, target.to("tpu"))
    torch.testing.assert_close(loss.cpu(), F.cross_entropy(logits, target))
    loss.backward()
    assert mine.grad[1].tolist() == mine.grad[3].tolist() == [0] * 5
    nothing = F.cross_entropy(mine, torch.full((4,), -100, device="tpu"))
    assert math.isnan(nothing.item())


def test_targets_out_of_range():
    x = torch.zeros(2, 3, device="tpu")
    for bad in (3, -1):
        F.nll_loss(x, torch.tensor([0, bad], device="tpu"))
        with pytest.raises(IndexError, match="out of bounds"):
            torch.tpu.synchronize()
    with pytest.raises(RuntimeError, match="Long or Byte"):
        F.nll_loss(x, torch.zeros(2, dtype=torch.float32, device="tpu"))
    assert F.nll_loss(x, torch.tensor([0, 2], device="tpu")).item() == 0


def test_softmax_extremes():
    x = torch.tensor([[1e4, 0.0, -1e4], [-math.inf, 0.0, -math.inf], [-math.inf] * 3], device="tpu")
    assert x.softmax(1)[:2].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert all(math.isnan(v) for v in x.softmax(1)[2].tolist())
    assert torch.ops.aten._safe_softmax(x, 1)[2].tolist() == [0, 0, 0]
    assert x.log_softmax(1)[0].tolist() == [0, -1e4, -2e4]


@pytest.mark.parametrize("zero_infinity", [True, False])
@pytest.mark.parametrize("on_device", [True, False])
def test_ctc_impossible_rows(zero_infinity, on_device):
    torch.manual_seed(0)
    x = torch.randn(6, 3, 5).log_softmax(-1)
    target = torch.tensor([[1, 1, 0], [2, 2, 2], [0, 0, 0]])
    lengths = [6, 4, 5], [2, 3, 0]  # the second row needs 5 steps
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.clone().to(device).detach().requires_grad_()
        wrap = [torch.tensor(n, device=device if on_device else "cpu") for n in lengths]
        loss = F.ctc_loss(
            leaf, target.to(device), *wrap, reduction="none", zero_infinity=zero_infinity
        )
        loss.sum().backward()
        results.append((loss.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(results[1], results[0], equal_nan=True)
