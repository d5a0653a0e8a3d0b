# SPDX-License-Identifier: Apache-2.0 - Convolution, pooling, interpolation and unfolding against CPU.
import pytest
import torch
import torch.nn.functional as F

from torch_tpu.conformance.tolerances import allowed

DEVICE = "tpu"


def convolve(device, x, w, b, transposed, channels_last=False, **options):
    leaves = [t.detach().to(device).requires_grad_() for t in (x, w, b)]
    given = leaves[0]
    if channels_last:
        given = given.contiguous(memory_format=torch.channels_last)
    fn = F.conv_transpose2d if transposed else F.conv2d
    y = fn(given, *leaves[1:], **options)
    seed = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(device)
    return y, [t.detach().cpu() for t in (y, *torch.autograd.grad(y, leaves, seed))]


GEOMETRIES = {
    "plain": ((2, 4, 9, 8), (6, 4, 3, 3), {}),
    "strided": ((2, 4, 9, 8), (6, 4, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilated": ((1, 4, 11, 12), (6, 4, 3, 3), {"dilation": (2, 3), "padding": 2}),
    "pointwise": ((2, 4, 5, 5), (6, 4, 1, 1), {"stride": 2}),
    "patches": ((2, 3, 9, 10), (5, 3, 4, 4), {"stride": 4}),
    "grouped": ((2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((2, 4, 7, 7), (8, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    "many pixels": ((2, 3, 30, 30), (4, 3, 3, 3), {"padding": 1}),
    "wide kernel": ((1, 2, 20, 20), (3, 2, 12, 12), {"padding": 6}),
    "wide padding": ((1, 2, 4, 4), (3, 2, 2, 2), {"padding": 3}),
    # What a one-dimensional convolution is made of.
    "flat": ((2, 3, 1, 600), (4, 3, 1, 3), {"padding": (0, 2)}),
    "flat, wide kernel": ((2, 4, 1, 150), (8, 1, 1, 130), {"padding": (0, 2), "groups": 4}),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolution(name, channels_last):
    torch.manual_seed(0)
    x, w, options = GEOMETRIES[name]
    x, w = torch.randn(x), torch.randn(w)
    b = torch.randn(w.shape[0])
    _, expected = convolve("cpu", x, w, b, False, **options)
    y, actual = convolve(DEVICE, x, w, b, False, channels_last, **options)
    order = torch.channels_last if channels_last else torch.contiguous_format
    assert y.is_contiguous(memory_format=order)
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, **allowed("sums"))


TRANSPOSED = {
    "plain": ((2, 4, 5, 6), (4, 6, 3, 3), {}),
    "strided": ((2, 4, 5, 6), (4, 6, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "grouped": ((2, 4, 5, 6), (4, 3, 3, 3), {"groups": 2, "stride": (1, 2), "dilation": 2}),
    "upscaling": ((2, 4, 3, 3), (4, 2, 2, 2), {"stride": 2}),
    "flat, wide kernel": ((2, 4, 1, 20), (4, 3, 1, 130), {"groups": 2, "stride": (1, 2)}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution(name):
    torch.manual_seed(0)
    x, w, options = TRANSPOSED[name]
    x, w = torch.randn(x), torch.randn(w)
    b = torch.randn(w.shape[1] * options.get("groups", 1))
    _, expected = convolve("cpu", x, w, b, True, **options)
    _, actual = convolve(DEVICE, x, w, b, True, **options)
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, **allowed("sums"))


def test_convolution_says_what_does_not_fit():
    x, w = torch.randn(1, 3, 4, 4, device=DEVICE), torch.randn(2, 4, 3, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="to have 4 channels, but got 3 channels instead"):
        F.conv2d(x, w)
    with pytest.raises(RuntimeError, match=r"[Oo]utput size is too small"):
        F.max_pool2d(x, 5)


def test_max_pool_takes_the_first_of_equals_and_the_last_nan():
    x = torch.tensor([[[[1.0, 1.0], [1.0, 1.0]]], [[[float("nan"), 5.0], [float("nan"), 2.0]]]])
    values, index = F.max_pool2d(x.to(DEVICE), 2, return_indices=True)
    expected_values, expected_index = F.max_pool2d(x, 2, return_indices=True)
    torch.testing.assert_close(values.cpu(), expected_values, equal_nan=True)
    assert torch.equal(index.cpu(), expected_index)
    empty = torch.full((1, 1, 3, 3), float("-inf"))
    _, index = F.max_pool2d(empty.to(DEVICE), 2, 2, 1, return_indices=True)
    assert torch.equal(index.cpu(), F.max_pool2d(empty, 2, 2, 1, return_indices=True)[1])


@pytest.mark.parametrize("count_include_pad", [True, False])
def test_avg_pool_divides_by_what_it_saw(count_include_pad):
    x = torch.randn(1, 2, 7, 7)
    for divisor in (None, 3):
        options = (3, 2, 1, True, count_include_pad, divisor)
        torch.testing.assert_close(
            F.avg_pool2d(x.to(DEVICE), *options).cpu(), F.avg_pool2d(x, *options)
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (17, 9)])
def test_antialiased_interpolation(mode, size):
    x = torch.randn(2, 3, 8, 11)
    cpu = x.clone().requires_grad_()
    ours = x.to(DEVICE).requires_grad_()
    results = [F.interpolate(t, size, mode=mode, antialias=True) for t in (cpu, ours)]
    torch.testing.assert_close(results[1].cpu(), results[0], **allowed("layers"))
    for r in results:
        r.square().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), cpu.grad, **allowed("sums"))


def test_interpolation_keeps_infinities_where_they_are():
    x = torch.zeros(1, 1, 4, 4)
    x[..., 0, 0] = float("inf")
    actual = F.interpolate(x.to(DEVICE), (2, 2), mode="bilinear", antialias=True)
    assert actual.cpu().isfinite().sum() == 3


def test_fold_sums_what_unfold_read():
    x = torch.randn(2, 3, 9, 8)
    options = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 0), "stride": 2}
    columns = F.unfold(x, **options)
    ours = columns.to(DEVICE).requires_grad_()
    folded = F.fold(ours, (9, 8), **options)
    torch.testing.assert_close(folded.cpu(), F.fold(columns, (9, 8), **options))
    (grad,) = torch.autograd.grad(folded, ours, x.to(DEVICE))
    torch.testing.assert_close(grad.cpu(), columns)


# Large enough for the CPU plugin's host kernels (src/ops/host_kernels.cpp).
HOSTED = {
    "pixels": (F.conv2d, (3, 16, 32, 31), (20, 16, 3, 3), {"padding": 1}),
    "few pixels": (F.conv2d, (4, 64, 9, 11), (48, 64, 3, 3), {"padding": 1}),
    "strides": (F.conv2d, (4, 32, 19, 23), (64, 32, 3, 5), {"stride": (3, 2), "padding": (4, 2)}),
    "far taps": (F.conv2d, (6, 64, 8, 9), (64, 64, 3, 2), {"dilation": (4, 3), "padding": (5, 4)}),
    "one image": (F.conv2d, (1, 24, 64, 48), (8, 24, 3, 3), {"dilation": 2}),
    "depthwise": (F.conv2d, (5, 64, 24, 24), (128, 1, 3, 3), {"groups": 64, "stride": 2}),
    "groups": (F.conv2d, (2, 32, 40, 20), (48, 8, 3, 3), {"groups": 4, "padding": 1}),
    "transposed": (F.conv_transpose2d, (3, 16, 32, 32), (16, 12, 3, 3), {"stride": 2}),
    "transposed groups": (F.conv_transpose2d, (3, 32, 24, 24), (32, 4, 4, 4), {"groups": 4}),
    "volumes": (F.conv3d, (2, 8, 9, 16, 16), (12, 8, 3, 3, 3), {"padding": 1}),
    "lines": (F.conv1d, (2, 64, 900), (96, 16, 9), {"groups": 4, "padding": 4}),
}


@pytest.mark.parametrize("name", HOSTED)
def test_host_kernels(name):
    fn, x_size, w_size, options = HOSTED[name]
    outputs = w_size[1] if "transposed" in name else w_size[0]
    outputs *= options.get("groups", 1) if "transposed" in name else 1
    torch.manual_seed(0)
    host = [torch.randn(s, requires_grad=True) for s in (x_size, w_size, (outputs,))]
    device = [t.detach().to(DEVICE).requires_grad_() for t in host]
    y, y_device = fn(*host, **options), fn(*device, **options)
    seed = torch.randn_like(y)
    expected = torch.autograd.grad(y, host, seed)
    actual = torch.autograd.grad(y_device, device, seed.to(DEVICE))
    for mine, other in zip((y_device, *actual), (y, *expected), strict=True):
        scale = other.abs().max().item()
        torch.testing.assert_close(mine.detach().cpu() / scale, other.detach() / scale)
