# SPDX-License-Identifier: Apache-2.0 - torch.compile: a graph is one program, and gives what eager gives.
import warnings

import pytest
import torch
import torch.nn.functional as F
from fresh_process import python
from torch import nn

import torch_tpu
from torch_tpu.conformance.tolerances import allowed

DEVICE = "tpu"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def data(*shape, requires_grad=False):
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randn(shape, generator=generator).to(DEVICE).requires_grad_(requires_grad)


def programs(function, *args):
    """How many programs one call runs."""
    torch.tpu.synchronize()
    before = torch.tpu.cache_stats()["programs_run"]
    result = function(*args)
    torch.tpu.synchronize()
    return torch.tpu.cache_stats()["programs_run"] - before, result


def run(function, args, backward):
    args = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    torch.manual_seed(0)
    out = function(*args)
    out = list(out) if isinstance(out, (tuple, list)) else [out]
    if backward:
        sum(o.float().sum() for o in out if o.requires_grad).backward()
    return out + [a.grad for a in args if a.grad is not None] + args


def check(function, *args, backward=False, **options):
    """Values, gradients, written inputs, strides and random state as in eager, twice."""
    options.setdefault("fullgraph", True)
    compiled = torch.compile(function, backend="tpu", **options)
    expected = run(function, args, backward)
    state = torch.tpu.get_rng_state()
    for _ in range(2):
        actual = run(compiled, args, backward)
        assert torch.equal(torch.tpu.get_rng_state(), state)
        assert len(actual) == len(expected)
        for mine, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(mine.detach().cpu(), other.detach().cpu())
            assert mine.stride() == other.stride()
            assert mine.requires_grad == other.requires_grad
    return compiled


# ---- one program --------------------------------------------------------------------------------


def test_a_graph_is_one_program():
    def f(x, y):
        return F.softmax(F.gelu(x @ y) * 0.5 + 1, -1)

    compiled = check(f, data(4, 8), data(8, 8))
    assert programs(compiled, data(4, 8), data(8, 8))[0] == 1


def test_forward_and_backward_are_one_program_each():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)
    compiled = torch.compile(model, backend="tpu")
    x = data(4, 8)
    compiled(x).sum().backward()
    ran, y = programs(compiled, x)
    assert ran == 1
    assert programs(torch.autograd.backward, y, torch.ones_like(y))[0] == 1 + 4  # and grad +=


@pytest.mark.parametrize("mode", list(torch.tpu.EagerMode), ids=lambda m: m.name)
def test_every_eager_mode(mode):
    def f(x, y):
        y.add_(1)
        return (x * y).sum(0)

    with torch.tpu.eager_mode(mode):
        check(f, data(4, 8), data(4, 8))


def test_a_new_size_is_another_program_and_no_error():
    compiled = torch.compile(lambda x: (x * 2).sum(0), backend="tpu", dynamic=True)
    for n in (2, 5, 3):
        x = data(n, 4)
        torch.testing.assert_close(compiled(x).cpu(), (x * 2).sum(0).cpu())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


def test_a_number_that_changes_compiles_nothing():
    compiled = torch.compile(lambda x, rate: x * rate, backend="tpu")
    x = data(3)
    for _ in range(2):
        for rate in (torch.tensor(0.5), torch.tensor(0.25)):  # 0-dim on the CPU
            torch.testing.assert_close(compiled(x, rate).cpu(), x.cpu() * rate)
    before = torch.tpu.cache_stats()
    compiled(x, torch.tensor(7.0)).cpu()
    after = torch.tpu.cache_stats()
    assert after["programs_in_memory"] == before["programs_in_memory"]


# ---- writes, views, layouts ---------------------------------------------------------------------


def test_inputs_are_written_in_place():
    def f(x, y):
        x.add_(1)
        y[:, 1:].mul_(x[:, 1:])
        return x + y

    check(f, data(3, 4), data(3, 4))


def test_a_buffer_updated_in_place_keeps_its_memory():
    buffer = torch.zeros(1 << 20, device=DEVICE)
    compiled = torch.compile(lambda b: b.add_(1), backend="tpu")
    compiled(buffer)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    base = torch.tpu.memory_allocated()
    for _ in range(3):
        compiled(buffer)
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() < base + buffer.nbytes
    assert buffer[0].item() == 4


def test_views_in_and_out():
    def f(x):
        y = x * 2
        return x.t(), x[1:], y.view(-1), y.t(), y, x

    check(f, data(4, 6))
    check(f, data(8, 6)[::2])
    check(lambda x: (x.t(), x[:, 1:], x * 2, (x * 2).t()), data(6, 4).t())
    x = data(4, 6)
    out = torch.compile(f, backend="tpu")(x)
    out[0].add_(1)
    assert out[5] is x and torch.equal(out[0].t().cpu(), x.cpu())
    out[4].zero_()
    assert out[2].abs().sum().item() == 0


def test_gradients_through_views():
    check(
        lambda x: (x[1:].t() * 3, x.expand(2, 4, 6).sin()),
        data(4, 6, requires_grad=True),
        backward=True,
    )


# ---- random numbers, autocast, errors -----------------------------------------------------------


def test_random_numbers_are_those_of_eager():
    def f(x):
        return F.dropout(x, 0.5) + torch.rand_like(x) * torch.randn(6, device=DEVICE)

    check(f, data(4, 6, requires_grad=True), backward=True)


def test_recomputed_dropout_is_the_same():
    def f(x):
        inner = lambda x: F.dropout(torch.sin(x @ x.t()), 0.3).cos()  # noqa: E731
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    check(f, data(4, 6, requires_grad=True), backward=True)


def test_a_generator_of_the_users():
    generator = torch.Generator(DEVICE)
    compiled = torch.compile(
        lambda: torch.rand(5, device=DEVICE, generator=generator), backend="tpu"
    )
    generator.manual_seed(3)
    mine = compiled().cpu()
    generator.manual_seed(3)
    assert torch.equal(mine, torch.rand(5, device=DEVICE, generator=generator).cpu())


def test_autocast():
    layer = nn.Linear(6, 3).to(DEVICE)

    def f(x):
        with torch.autocast("tpu"):
            return layer(x)

    check(f, data(4, 6, requires_grad=True), backward=True)


def test_a_failed_check_names_the_operator_and_the_line():
    table = nn.Embedding(5, 3).to(DEVICE)
    compiled = torch.compile(lambda i: table(i) * 2, backend="tpu")
    compiled(torch.tensor([1, 2], device=DEVICE)).cpu()
    with pytest.raises(
        IndexError, match=r"aten::embedding\(\): index out of range.*test_compile.py"
    ):
        compiled(torch.tensor([1, 7], device=DEVICE)).cpu()
    assert compiled(torch.tensor([1, 2], device=DEVICE)).shape == (2, 3)


# ---- what does not fit into a program -----------------------------------------------------------


def test_a_size_that_depends_on_data_splits_the_graph():
    def f(x):
        chosen = x[x > 0]
        return chosen.sum() * 2, (x > 0).nonzero()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(f, data(4, 6))


def test_values_on_the_cpu():
    def f(x):
        host = torch.arange(6.0) * 2
        return x * host.to(DEVICE) + torch.tensor(3.0), host

    check(f, data(4, 6))


def test_operators_of_other_libraries():
    calls = []

    @torch.library.custom_op("test_compile::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return torch.from_numpy(x.cpu().numpy() * 2).to(x.device)

    double.register_fake(torch.empty_like)
    check(lambda x: double(x + 1) * 3, data(4, 6))
    assert len(calls) == 3


def test_operators_of_other_libraries_that_write_and_have_gradients():
    @torch.library.custom_op("test_compile::fill", mutates_args=("x",))
    def fill(x: torch.Tensor, value: float) -> None:
        x.fill_(value)

    @torch.library.custom_op("test_compile::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_fake(torch.empty_like)
    square.register_autograd(
        lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )

    def f(x):
        y = torch.zeros_like(x)
        fill(y, 3.0)
        return square(x + y) * 2

    check(f, data(4, 6, requires_grad=True), backward=True)


def test_a_graph_break():
    seen = []

    def f(x):
        y = x * 2
        seen.append(y.shape)
        torch._dynamo.graph_break()
        return y.sin() + 1 if y.sum() > 0 else y - 1

    check(f, data(4, 6, requires_grad=True), backward=True, fullgraph=False)
    assert len(seen) == 3


@pytest.mark.parametrize(
    "options",
    [{"mode": "max-autotune"}, {"mode": "reduce-overhead"}, {"dynamic": True}, {"dynamic": False}],
    ids=str,
)
def test_options_of_torch_compile(options):
    check(lambda x: x.sin() @ x.t(), data(4, 6), **options)


def test_a_graph_on_the_cpu_is_left_alone():
    x = torch.ones(3)
    assert torch.equal(torch.compile(lambda x: x + 1, backend="tpu")(x), x + 1)


# ---- higher-order operators ---------------------------------------------------------------------


def test_cond():
    def f(x):
        return torch.cond(x.sum() > 0, torch.sin, lambda x: x[0] + x.cos(), (x,))

    compiled = check(f, data(4, 6))
    x = data(4, 6)
    check(f, -x)
    assert programs(compiled, x)[0] == 1


def test_while_loop():
    from torch._higher_order_ops import while_loop

    def f(x, n):
        return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 1.5), (n * 0, x))[1]

    compiled = check(f, data(4, 6), torch.tensor(3, device=DEVICE))
    assert programs(compiled, data(4, 6), torch.tensor(5, device=DEVICE))[0] == 1


def test_scans():
    from torch._higher_order_ops import associative_scan, scan

    def f(x):
        last, all = scan(lambda c, y: (c + y, c * y), x[0], x, dim=0)
        return last, all, associative_scan(torch.mul, x, 0, combine_mode="generic")

    check(f, data(5, 4))


def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device=DEVICE)

    def flex(q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j) * 0.01, mask)

    def plain(q, k, v):
        place = torch.arange(128, device=DEVICE)
        distance = place[:, None] - place
        bias = torch.where(distance >= 0, distance * 0.01, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, bias)

    args = [data(1, 2, 128, 8 + i, requires_grad=True)[..., :8] for i in range(3)]
    compiled = torch.compile(flex, backend="tpu", fullgraph=True)
    for mine, other in zip(run(compiled, args, True), run(plain, args, True), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach().cpu(), **allowed("layers"))
    assert programs(compiled, *(a.detach() for a in args))[0] == 1


def test_compiled_autograd():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(DEVICE)

    def gradients(backward):
        model.zero_grad()
        backward(model(data(4, 6)).square().sum())
        return [p.grad for p in model.parameters()]

    def backward(loss):
        with torch._dynamo.compiled_autograd._enable(lambda g: torch.compile(g, backend="tpu")):
            loss.backward()

    expected = gradients(torch.Tensor.backward)
    for mine, other in zip(gradients(backward), expected, strict=True):
        torch.testing.assert_close(mine.cpu(), other.cpu())


def test_activations_kept_on_the_cpu():
    def f(x):
        with torch.autograd.graph.save_on_cpu():
            return (x.sin() * x).exp()

    check(f, data(4, 6, requires_grad=True), backward=True, fullgraph=False)


def test_an_exported_program():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(DEVICE)
    program = torch.export.export(model, (data(4, 6),))
    check(program.module(), data(4, 6))


# ---- whole steps --------------------------------------------------------------------------------


def training(capture, **options):
    """Losses and parameters of some steps, and how many programs the last step ran."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses, ran = [], 0

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if len(losses) % 2:  # accumulation
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return loss.detach()

    step = torch_tpu.capture(step) if capture else step
    for _ in range(6):
        ran, loss = programs(step, data(5, 6))
        losses.append(loss)
    return [*losses, *model.parameters()], ran


@pytest.mark.parametrize("mode", ["DEFER_NEVER", "DEFER_AND_FUSE"])
def test_a_captured_step_is_one_program_and_trains_the_same(mode):
    with torch.tpu.eager_mode(torch.tpu.EagerMode[mode]):
        expected, many = training(False)
        actual, one = training(True)
    assert one == 1 <= many
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach().cpu())


OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Adagrad": {},
    "Adadelta": {},
    "ASGD": {"capturable": True},  # else it reads its state on the host
    "Rprop": {},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_with_any_optimizer_and_a_changing_rate(name):
    def train(capture):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).to(DEVICE)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05, **OPTIMIZERS[name])
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=20, cycle_momentum=False
        )

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        step = torch_tpu.capture(step) if capture else step
        made = []
        for _ in range(8):
            ran, _ = programs(step, data(5, 6))
            made.append(torch.tpu.cache_stats()["programs_in_memory"])
        return list(model.parameters()), ran, made

    expected, *_ = train(False)
    actual, ran, made = train(True)
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach().cpu())
    assert ran == 1
    # RAdam is another formula from its sixth step on.
    assert made[-1] == made[-2]


@pytest.mark.parametrize("overflow", [False, True])
def test_a_captured_step_with_a_gradient_scaler(overflow):
    def train(capture):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("tpu", init_scale=2.0**100 if overflow else 2.0**10)

        def step(x):
            optimizer.zero_grad()
            with torch.autocast("tpu", dtype=torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        step = torch_tpu.capture(step) if capture else step
        for _ in range(3):
            ran, loss = programs(step, data(5, 6))
        return [*model.parameters(), loss, torch.tensor(scaler.get_scale())], ran

    expected, _ = train(False)
    actual, ran = train(True)
    assert ran == 1
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach().cpu())


def test_a_captured_step_compiles_once_and_keeps_its_memory():
    weight = torch.ones(1 << 18, device=DEVICE)
    rate = 1.0

    @torch_tpu.capture
    def step():
        weight.mul_(rate)
        weight.add_(weight * rate)

    step()
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    base, before = torch.tpu.memory_allocated(), torch.tpu.cache_stats()["programs_in_memory"]
    for rate in (0.5, 0.25):  # noqa: B007 (the step reads it)
        step()
    torch.tpu.synchronize()
    assert torch.tpu.cache_stats()["programs_in_memory"] == before
    assert torch.tpu.max_memory_allocated() < base + weight.nbytes
    assert weight[0].item() == 2 * 0.5 * 1.5 * 0.25 * 1.25


def test_a_read_in_the_middle_of_a_step_warns_once():
    x = torch.ones(3, device=DEVICE)

    @torch_tpu.capture
    def step():
        total = (x + 1).sum().item()
        return x * total

    with pytest.warns(UserWarning, match="ran as 2 programs"):
        assert step()[0].item() == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step()[0].item() == 6


def test_an_error_in_a_step_leaves_the_device_usable():
    @torch_tpu.capture
    def step(x):
        return x @ x

    with pytest.raises(RuntimeError):
        step(torch.ones(2, 3, device=DEVICE))
    assert step(torch.ones(2, 2, device=DEVICE)).sum().item() == 8


# ---- the default backend ------------------------------------------------------------------------


def test_no_backend_named_means_ours():
    code = """
import torch
f = torch.compile(lambda x: (x * 2).sin())
x = torch.ones(3, device="tpu")
f(x)
before = torch.tpu.cache_stats()["calls"]
f(x)
print(torch.tpu.cache_stats()["calls"] - before)
try:
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="inductor")(x)
except Exception as error:
    print(error)
"""
    first, *message = python(code).splitlines()
    assert first == "1"
    assert 'backend="tpu"' in "".join(message)
