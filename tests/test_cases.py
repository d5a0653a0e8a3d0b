# SPDX-License-Identifier: Apache-2.0 - faults that device backends have had in public, each as a small test with known values.
"""Grouped by what kind of thing goes wrong. Expected values are written out or come from the CPU."""

import copy
import io
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_tpu.conformance.tolerances import allowed

tpu = torch.tpu
INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True, params=list(tpu.EagerMode), ids=lambda m: m.name)
def mode(request):
    with tpu.eager_mode(request.param):
        yield


def t(values, dtype=None):
    return torch.tensor(values, device="tpu", dtype=dtype)


def same(device, host, **tolerance):
    assert device.device.type == "tpu"
    torch.testing.assert_close(device.cpu(), host, equal_nan=True, **tolerance)


# ---- views and programs ------------------------------------------------------------------------


def test_a_view_keeps_its_base_after_a_flush():
    base = torch.zeros(2, 6, device="tpu")
    view = base.view(4, 3)[1:, ::2]
    base.sum().item()
    view[0, 1] = 7
    view += 1
    base.mul_(2)
    assert base.flatten().tolist() == [0, 0, 0, 2, 0, 16, 2, 0, 2, 2, 0, 2]
    assert view.tolist() == [[2, 16], [2, 2], [2, 2]]


def test_equal_shapes_at_other_places_are_other_data():
    x = torch.arange(20.0, device="tpu").view(4, 5)
    assert [(x[i, i:3] * 1).tolist() for i in range(3)] == [[0, 1, 2], [6, 7], [12]]
    assert [x.narrow(1, i, 2).sum().item() for i in range(4)] == [64 + 8 * i for i in range(4)]
    # Same shape and place, other strides.
    assert (x[:2, :2] + 0).tolist() == [[0, 1], [5, 6]]
    assert (x.t()[:2, :2] + 0).tolist() == [[0, 5], [1, 6]]
    assert (x[::2, ::2][:2, :2] + 0).tolist() == [[0, 2], [10, 12]]


@pytest.mark.parametrize("step", [2, 3])
def test_copies_between_host_and_device_leave_gaps_alone(step):
    host = torch.full((12,), -1.0)
    host[1::step].copy_(torch.arange(12.0, device="tpu")[1::step])
    assert host.tolist() == [float(i) if i % step == 1 else -1.0 for i in range(12)]
    device = torch.full((12,), -1.0, device="tpu")
    device[1::step].copy_(torch.arange(12.0)[1::step])
    assert device.tolist() == host.tolist()


def test_a_weight_that_is_a_slice_convolves_as_what_it_shows():
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 6, 6), torch.randn(8, 6, 3, 3)
    for cut in (
        lambda v: v[::2, 1:4],
        lambda v: v.transpose(0, 1)[:4, :3],
        lambda v: v[:4, :3].flip(3),
    ):
        same(F.conv2d(x.to("tpu"), cut(w.to("tpu"))), F.conv2d(x, cut(w)), **allowed("sums"))


# ---- types and precision -----------------------------------------------------------------------


def test_a_number_is_not_rounded_before_it_is_used():
    x = torch.tensor([1.0, 3.0, 100.0, 0.7], dtype=torch.bfloat16)
    for n in (0.1, 1 / math.sqrt(80), 1.003):
        for op in (torch.mul, torch.div, torch.add):
            assert op(x.to("tpu"), n).tolist() == op(x.float(), n).bfloat16().tolist()


def test_result_types_of_tensors_and_numbers():
    dtypes = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16]
    dtypes += [torch.float32, torch.float64, torch.complex64]
    hosts = [torch.ones(2, dtype=d) for d in dtypes] + [torch.ones((), dtype=d) for d in dtypes]
    for a in hosts:
        for b in [*hosts, True, 2, 2.5, 1 + 2j]:
            device = b.to("tpu") if isinstance(b, torch.Tensor) else b
            assert (a.to("tpu") * device).dtype == (a * b).dtype, (a, b)
    # A 0-dim tensor of the host is a number with a type.
    assert (t([1, 2]) * torch.tensor(2.5)).dtype == torch.float32
    assert (t([1.0], torch.float16) * torch.tensor(2.5, dtype=torch.float64)).dtype == torch.float16


def test_float32_products_are_float32():
    torch.manual_seed(0)
    a, b = torch.randn(64, 96), torch.randn(96, 32)
    for device, host in (
        (a.to("tpu") @ b.to("tpu"), a.double() @ b.double()),
        (torch.einsum("ij,jk->ki", a.to("tpu"), b.to("tpu")), (a.double() @ b.double()).t()),
        (F.linear(a.to("tpu"), b.t().to("tpu")), a.double() @ b.double()),
    ):
        assert (device.cpu().double() - host).abs().max() < 2e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_sums_do_not_accumulate_in_half(dtype):
    x = torch.full((4, 4096), 32.0, dtype=dtype, device="tpu")
    assert x.mean().item() == 32
    assert x.sum(dtype=torch.float32).item() == 32 * 4 * 4096
    # More than either type counts to in ones.
    assert (
        torch.ones(3000, dtype=dtype, device="tpu").sum().item()
        == torch.tensor(3000.0, dtype=dtype).item()
    )
    assert x.var(1).tolist() == [0, 0, 0, 0]
    assert torch.ones(2048, dtype=dtype, device="tpu").cumsum(0)[-1].item() == 2048


def test_integers_are_exact():
    big = 2**53 + 1
    assert (t([big]) + 1).tolist() == [big + 1]
    assert t([2**31]).mul(4).tolist() == [2**33]
    assert t([7, -7]).div(2, rounding_mode="floor").tolist() == [3, -4]
    assert t([7, -7]).remainder(-3).tolist() == [-2, -1]
    assert torch.arange(2**40, 2**40 + 3, device="tpu").tolist() == [2**40, 2**40 + 1, 2**40 + 2]


# ---- indexing ----------------------------------------------------------------------------------


def test_accumulating_counts_every_duplicate():
    x = torch.zeros(4, device="tpu")
    x.index_put_((t([1, 1, 3, 1]),), t([1.0, 2.0, 5.0, 4.0]), accumulate=True)
    assert x.tolist() == [0, 7, 0, 5]
    x.index_put_((t([0, 0, 2]),), t(10.0), accumulate=True)  # one value for all
    assert x.tolist() == [20, 7, 10, 5]
    y = torch.zeros(3, 2, device="tpu")
    y.index_put_((t([2, 2]),), t([1.0, 3.0]), accumulate=True)  # a row for all
    assert y.tolist() == [[0, 0], [0, 0], [2, 6]]
    z = torch.zeros(3, dtype=torch.int64, device="tpu").scatter_add_(0, t([0, 0, 2]), t([1, 1, 1]))
    assert z.tolist() == [2, 0, 1]


def test_the_padding_row_gets_no_gradient_and_duplicates_all():
    weight = torch.ones(5, 2, device="tpu", requires_grad=True)
    tokens = t([0, 3, 1, 3, 1, 1] * 500)
    F.embedding(tokens, weight, padding_idx=1).sum().backward()
    assert weight.grad.tolist() == [[500, 500], [0, 0], [0, 0], [1000, 1000], [0, 0]]


def test_an_empty_index_changes_nothing():
    x = torch.arange(4.0, device="tpu")
    empty = torch.empty(0, dtype=torch.int64, device="tpu")
    assert x.scatter(0, empty, torch.empty(0, device="tpu")).tolist() == [0, 1, 2, 3]
    assert x.index_add(0, empty, torch.empty(0, device="tpu")).tolist() == [0, 1, 2, 3]
    x[empty] = 9
    assert x.tolist() == [0, 1, 2, 3]
    assert x[empty].shape == (0,)


def test_boolean_masks_store_in_order():
    x = torch.zeros(2, 3, device="tpu")
    mask = t([[True, False, True], [False, True, False]])
    x[mask] = t([1.0, 2.0, 3.0])
    assert x.tolist() == [[1, 0, 2], [0, 3, 0]]
    assert x[mask].tolist() == [1, 2, 3]
    x[~mask] = -1
    x[t([False, True])] += 10
    assert x.tolist() == [[1, -1, 2], [9, 13, 9]]
    with pytest.raises((RuntimeError, IndexError)):
        x[mask] = t([1.0, 2.0])


def test_empty_and_0d_tensors():
    empty, point = torch.empty(0, 3, device="tpu"), t(2.0)
    assert (empty + 1).shape == (0, 3)
    assert empty.sum().item() == 0
    assert empty.sum(0).tolist() == [0, 0, 0]
    assert torch.cat([empty, torch.ones(1, 3, device="tpu")]).tolist() == [[1, 1, 1]]
    assert (empty @ torch.ones(3, 2, device="tpu")).shape == (0, 2)
    assert (torch.ones(2, 0, device="tpu") @ torch.ones(0, 2, device="tpu")).tolist() == [
        [0, 0],
        [0, 0],
    ]
    assert math.isnan(empty.mean().item())
    assert (point.sum(0).item(), point.max().item(), point.softmax(0).item()) == (2, 2, 1)
    assert point.expand(2).tolist() == [2, 2]
    assert (
        point.index_select(0, t([0])).shape
        == torch.tensor(2.0).index_select(0, torch.tensor([0])).shape
    )
    with pytest.raises(RuntimeError):
        empty.max()
    assert empty.requires_grad_().sum().backward() is None


# ---- networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("ceil", [False, True])
def test_average_pooling_divides_by_the_right_count(ceil, include):
    x = torch.arange(49.0).view(1, 1, 7, 7)
    args = (3, 2, 1, ceil, include)
    same(F.avg_pool2d(x.to("tpu"), *args), F.avg_pool2d(x, *args))
    same(F.avg_pool2d(x.to("tpu"), 2, 2, ceil_mode=ceil), F.avg_pool2d(x, 2, 2, ceil_mode=ceil))
    same(F.avg_pool2d(x.to("tpu"), 2, divisor_override=3), F.avg_pool2d(x, 2, divisor_override=3))


def test_a_block_with_statistics_and_in_place_activations():
    torch.manual_seed(0)
    host = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)
    )
    device = copy.deepcopy(host).to("tpu")
    for _ in range(2):
        x = torch.randn(3, 2, 6, 6)
        y = host(x)
        z = device(x.to("tpu"))
        same(z.detach(), y.detach(), **allowed("layers"))
        y.square().mean().backward()
        z.square().mean().backward()
    for mine, other in zip(device.parameters(), host.parameters(), strict=True):
        same(mine.grad, other.grad, **allowed("training"))
    same(device[1].running_var, host[1].running_var)
    assert device[1].num_batches_tracked.item() == 2
    device.eval()
    same(device(x.to("tpu")).detach(), host.eval()(x).detach(), **allowed("layers"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_causal_attention_never_sees_the_future(dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 8, device="tpu").to(dtype) for _ in range(3))
    before = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    k[:, :, 4:] = 100
    v[:, :, 4:] = 1000
    after = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4:], after[:, :, 4:])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "extra", [{}, {"weight": [1.0, 2.0, 0.5]}, {"label_smoothing": 0.1}], ids=str
)
def test_ignored_targets_count_nowhere(reduction, extra):
    extra = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in extra.items()}
    logits, target = torch.tensor([[1.0, 2, 3], [4, 0, 1], [2, 2, 0]]), torch.tensor([2, -100, 0])
    results = []
    for device in ("cpu", "tpu"):
        x = logits.clone().to(device).requires_grad_()
        on = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in extra.items()}
        loss = F.cross_entropy(x, target.to(device), reduction=reduction, **on)
        (3 * loss.sum()).backward()
        assert x.grad[1].tolist() == [0, 0, 0]
        results.append((loss.detach().cpu(), x.grad.cpu()))
    torch.testing.assert_close(results[1], results[0])


def test_all_targets_ignored_and_targets_out_of_range():
    x = torch.ones(2, 3, device="tpu")
    assert math.isnan(F.cross_entropy(x, t([-100, -100])).item())
    assert F.cross_entropy(x, t([-100, -100]), reduction="sum").item() == 0
    with pytest.raises((IndexError, RuntimeError), match=r"(?i)target|index|range"):
        F.cross_entropy(x, t([0, 3])).item()
    assert (x + 1).sum().item() == 12  # the device goes on


# ---- training ----------------------------------------------------------------------------------


def test_an_optimizer_made_before_the_move_trains_the_moved_parameters():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = [id(p) for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("tpu")
    assert [id(p) for p in model.parameters()] == before
    assert {p.device.type for p in model.parameters()} == {"tpu"}
    weight = model[0].weight.tolist()
    model(torch.randn(4, 2, device="tpu")).square().sum().backward()
    optimizer.step()
    assert model[0].weight.tolist() != weight


def test_accumulated_and_clipped_gradients_are_those_of_one_batch():
    torch.manual_seed(0)
    host = nn.Linear(4, 1)
    x = torch.randn(8, 4)
    whole, parts = copy.deepcopy(host).to("tpu"), copy.deepcopy(host).to("tpu")
    whole(x.to("tpu")).square().mean().backward()
    for piece in x.split(2):
        (parts(piece.to("tpu")).square().mean() / 4).backward()
    host(x).square().mean().backward()
    for model in (whole, parts, host):
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert norm.item() > 0.1
    for a, b, c in zip(whole.parameters(), parts.parameters(), host.parameters(), strict=True):
        same(a.grad, c.grad)
        same(b.grad, c.grad)


def test_a_seed_or_a_state_brings_the_same_numbers_back():
    def draw(generator=None):
        return (
            torch.rand(3, device="tpu", generator=generator).tolist(),
            torch.randn(2, 2, device="tpu", generator=generator).tolist(),
            torch.randint(0, 100, (4,), device="tpu", generator=generator).tolist(),
        )

    torch.manual_seed(5)
    first = draw()
    state = torch.tpu.get_rng_state()
    second = draw()
    assert second != first
    torch.tpu.set_rng_state(state)
    assert draw() == second
    torch.manual_seed(5)
    assert draw() == first
    generator = torch.Generator("tpu").manual_seed(5)
    assert draw(generator) == first
    saved = generator.get_state()
    third = draw(generator)
    generator.set_state(saved)
    assert draw(generator) == third == second


# ---- keeping and copying -----------------------------------------------------------------------


def reload(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def test_a_checkpoint_is_read_where_it_is_wanted():
    model = nn.Linear(3, 2).to("tpu")
    view = torch.arange(12.0, device="tpu").view(3, 4)[1:, ::2]
    special = t([NAN, -0.0, INF, 1e-30])
    saved = {"model": model.state_dict(), "view": view, "half": view.bfloat16(), "special": special}
    for where in ("cpu", "tpu"):
        loaded = reload(saved, map_location=where, weights_only=True)
        assert loaded["view"].device.type == where
        assert loaded["view"].tolist() == [[4, 6], [8, 10]]
        assert loaded["half"].dtype == torch.bfloat16
        assert str(loaded["special"].tolist()) == str(special.tolist())
        nn.Linear(3, 2).load_state_dict(loaded["model"])
    assert reload(saved)["special"].device.type == "tpu"


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_stay_tied():
    model = Tied().to("tpu")
    assert model.head.weight is model.embed.weight
    model.head(model.embed(t([1]))).sum().backward()
    assert model.embed.weight.grad is model.head.weight.grad
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert clone.head.weight is clone.embed.weight
        assert clone.embed.weight is not model.embed.weight
    state = reload(model.state_dict())
    state["embed.weight"].fill_(7)
    assert state["head.weight"].tolist() == [[7.0] * 3] * 4


def test_copies_of_tensors_are_their_own():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    for clone in (
        copy.deepcopy(x),
        pickle.loads(pickle.dumps(x)),
        x.clone(),
        copy.deepcopy(x.t()).t(),
    ):
        assert clone.device == x.device
        assert clone.tolist() == x.tolist()
        clone.add_(1)
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    pair = copy.deepcopy([x, x[1]])
    pair[1].zero_()
    assert pair[0].tolist() == [[0, 1, 2], [0, 0, 0]]  # views stay views of the same copy
    grown = copy.deepcopy(nn.Parameter(x, requires_grad=False))
    assert isinstance(grown, nn.Parameter)


def test_host_memory_may_be_reused_at_once():
    for pin in (False, True):
        staging = torch.zeros(1024)
        staging = staging.pin_memory() if pin else staging
        device = torch.zeros(4, 1024, device="tpu")
        for i in range(4):
            staging.fill_(i)
            device[i].copy_(staging, non_blocking=True)
        assert device[:, 5].tolist() == [0, 1, 2, 3]
        one = staging.to("tpu", non_blocking=True)
        staging.fill_(-1)
        assert one[7].item() == 3
