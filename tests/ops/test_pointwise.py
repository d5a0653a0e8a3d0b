# SPDX-License-Identifier: Apache-2.0 - Elementwise operators: values, gradients and their corner cases against CPU.
import pytest
import torch

# ---- corner cases that samples do not reach ----

NAN, INF = float("nan"), float("inf")
EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-30, -1e30, INF, -INF, NAN]


def same(fn, *tensors, zeros=True, **tolerance):
    """fn of these CPU tensors gives the same on both devices, with the signs of zeros if `zeros`."""
    expected = fn(*tensors)
    actual = fn(*(x.to("tpu") for x in tensors)).cpu()
    limits = {"rtol": 0, "atol": 0, **tolerance}
    torch.testing.assert_close(actual, expected, equal_nan=True, **limits)
    if zeros and expected.is_floating_point():
        torch.testing.assert_close(
            actual.signbit() | actual.isnan(), expected.signbit() | expected.isnan()
        )


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "ceil",
        "floor",
        "frac",
        "isinf",
        "isnan",
        "neg",
        "relu",
        "round",
        "sgn",
        "sign",
        "signbit",
        "sqrt",
        "square",
        "trunc",
        "isfinite",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_special_values_of_exact_functions(name, dtype):
    # PyTorch's own vector code rounds a square root to a neighbour on some processors.
    tolerance = {"rtol": torch.finfo(dtype).eps} if name == "sqrt" else {}
    same(getattr(torch, name), torch.tensor(EDGES, dtype=dtype), zeros=name != "relu", **tolerance)


@pytest.mark.parametrize(
    "name",
    [
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "copysign",
        "remainder",
        "fmod",
        "floor_divide",
        "heaviside",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "add",
        "mul",
        "div",
    ],
)
def test_special_values_of_two_arguments(name):
    x = torch.tensor(EDGES)
    # Which zero is larger is left to the device.
    same(
        getattr(torch, name), x[:, None], x[None, :], zeros="max" not in name and "min" not in name
    )


def test_bounds_keep_nan():
    x = torch.tensor(EDGES)
    same(lambda x: x.clamp(-1, 1), x)
    same(lambda x: x.clamp(min=torch.tensor(NAN, device=x.device)), x)
    same(lambda x: x.clamp(2, 1), x)
    same(lambda x: torch.nn.functional.threshold(x, 0.0, -7.0), x)
    same(lambda x: torch.nn.functional.hardshrink(x), x)
    same(lambda x: torch.nan_to_num(x, posinf=1.0), x)


def test_whole_numbers_are_exact():
    big = torch.tensor([2**62 + 1, -(2**62) - 3, 2**53 + 1, -1, 0])
    small = torch.tensor([3, -7, 2, 5, 9])
    for fn in (
        torch.add,
        torch.sub,
        torch.mul,
        torch.floor_divide,
        torch.remainder,
        torch.fmod,
        torch.pow,
    ):
        if fn is torch.pow:
            same(fn, small, torch.tensor([3, 2, -1, 0, 20]))
        else:
            same(fn, big, small)
    same(lambda x: x**3, small)
    same(lambda a, b: torch.div(a, b, rounding_mode="trunc"), big, small)
    same(torch.gcd, big, small)
    same(torch.lcm, small, small.flip(0))
    same(lambda x: x << 70, small)
    same(lambda x: x >> 70, small)
    bytes_ = torch.arange(256, dtype=torch.uint8)
    same(lambda x: x * 7 - 300, bytes_)
    same(lambda x: x // 7, bytes_)
    same(lambda x: -x, bytes_)


def test_division_of_whole_numbers_by_zero_does_not_stop_the_device():
    x = torch.arange(4, device="tpu")
    for divide in (lambda: x // 0, lambda: x % 0):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide().cpu()
    assert (x + 1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 0.1,
        lambda x: torch.add(x, x, alpha=0.3),
        lambda x: torch.addcmul(x, x, x, value=0.3),
        lambda x: torch.lerp(x, -x, 0.3),
        lambda x: x / 3,
    ],
    ids=["mul", "add", "addcmul", "lerp", "div"],
)
def test_half_types_are_computed_in_float32_and_rounded_once(fn, dtype):
    x = torch.linspace(-3, 3, 301).to(dtype)
    assert torch.equal(fn(x.to("tpu")).cpu(), fn(x.float()).to(dtype))


def test_types_of_results():
    half, whole = torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.int32)
    for fn in (
        lambda h, w: h * w,
        lambda h, w: w * 2.5,
        lambda h, w: w / 2,
        lambda h, w: h + torch.tensor(1.0, dtype=torch.float64),
        lambda h, w: w + torch.tensor(True),
        lambda h, w: torch.where(w > 0, w, 1.5),
        lambda h, w: w.exp(),
        lambda h, w: h < 1,
    ):
        same(fn, half, whole)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors(shape):
    x = torch.full(shape, 0.5)
    for fn in (
        torch.exp,
        lambda x: x + x,
        lambda x: x.clamp(0, 1),
        lambda x: torch.where(x > 0, x, 1.0),
    ):
        same(fn, x, rtol=1e-6)


def test_new_numbers_do_not_compile():
    x = torch.ones(3, device="tpu")
    (x * 0.25 + 1.5).cpu()
    before = torch.tpu.cache_stats()["programs_compiled"]
    for i in range(5):
        (x * (0.3 + i) + i / 7).cpu()
    assert torch.tpu.cache_stats()["programs_compiled"] == before


def test_powers_of_every_exponent():
    x = torch.tensor([0.0, -0.0, 0.3, 1.0, 7.5, INF, NAN])
    for exponent in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4, -3, INF, NAN):
        same(lambda x, e=exponent: x**e, x, rtol=1e-6, atol=0)
        same(lambda x, e=exponent: e**x, x, rtol=1e-6, atol=0)
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.arange(3, device="tpu") ** -1


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_optimizers(optimizer):
    kinds = {
        "Adam": [{"weight_decay": 0.1}, {"amsgrad": True, "maximize": True}],
        "AdamW": [{"lr": 0.01}, {"amsgrad": True}],
        "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum": 0.5}],
        "Adagrad": [{"lr_decay": 0.1, "weight_decay": 0.1}],
    }[optimizer]
    for options in kinds:
        results = []
        for device in ("cpu", "tpu"):
            torch.manual_seed(0)
            params = [
                torch.randn(3, 4).to(device).requires_grad_(),
                torch.randn(5).to(device).requires_grad_(),
            ]
            opt = getattr(torch.optim, optimizer)(params, fused=True, **options)
            for _ in range(3):
                for p in params:
                    p.grad = torch.randn(p.shape).to(device)
                opt.step()
            results.append([p.detach().cpu() for p in params])
        torch.testing.assert_close(results[1], results[0])


def test_gradient_scaler_backs_off_and_grows():
    p = torch.ones(3, device="tpu", requires_grad=True)
    opt = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=2)
    scaler.scale((p * torch.tensor([1.0, INF, 1.0], device="tpu")).sum()).backward()
    scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert p.tolist() == [1, 1, 1]
    for _ in range(2):
        opt.zero_grad()
        scaler.scale(p.sum()).backward()
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() == 8.0
    assert p.tolist() == [-1, -1, -1]


def test_loss_outside_of_its_domain_is_an_error():
    x = torch.tensor([0.5, 1.5], device="tpu")
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        torch.nn.functional.binary_cross_entropy(x, torch.ones_like(x)).item()
    assert (x + 1).tolist() == [1.5, 2.5]


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_complex_numbers_of_two_halves():
    x = torch.randn(3, 4, dtype=torch.complex64).to(torch.complex32)
    on_device = x.to("tpu")
    wide = x.to(torch.complex64)
    assert on_device.dtype == torch.complex32
    assert torch.equal(on_device.cpu().to(torch.complex64), wide)
    assert on_device[0, 0].item() == x[0, 0].item()
    for fn in (
        lambda x: x * (1 + 2j) - x,
        lambda x: x.abs(),
        lambda x: x.conj().t().contiguous(),
        lambda x: torch.view_as_real(x) * 2,
        lambda x: x.masked_fill(x.real > 0, 3 - 1j),
        lambda x: x.imag == x.clone().imag,
        lambda x: x.to(torch.complex64).chalf(),
        lambda x: x.clone().fill_(1j)[1:],
    ):
        mine, expected = fn(on_device), fn(x)
        assert mine.dtype == expected.dtype
        torch.testing.assert_close(mine.cpu(), expected, rtol=0, atol=0)
    product = wide @ wide.t()
    torch.testing.assert_close((on_device @ on_device.t()).cpu(), product.to(torch.complex32))
    spectrum = torch.fft.fft(wide)
    torch.testing.assert_close(torch.fft.fft(on_device).cpu(), spectrum.to(torch.complex32))
