# SPDX-License-Identifier: Apache-2.0 - Operators that build, join, pad and rearrange tensors, and Fourier transforms.
import pytest
import torch
from torch.testing import assert_close

# ---- creation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [(5,), (2, 5), (5, 2, -1), (0, 1, 0.1), (1.5,), (0, 0), (3, 10, 4), (-(2**40), 2**40, 2**38)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [None, torch.int64, torch.float32, torch.float64])
def test_arange(args, dtype):
    if dtype == torch.int64 and 0.1 in args:
        pytest.skip("a step of 0")
    expected = torch.arange(*args, dtype=dtype)
    assert_close(torch.arange(*args, dtype=dtype, device="tpu").cpu(), expected)
    out = torch.empty(1, dtype=expected.dtype, device="tpu")
    assert_close(torch.arange(*args, out=out).cpu(), expected)


def test_arange_of_moving_bounds_compiles_once():
    def window(start):
        return torch.arange(start, start + 8, device="tpu")

    window(0), window(1)
    before = torch.tpu.cache_stats()["programs_compiled"]
    for start in range(2, 12):
        assert window(start).tolist() == list(range(start, start + 8))
    assert torch.tpu.cache_stats()["programs_compiled"] == before


def test_arange_errors():
    for args, message in (
        ((0, 5, 0), "nonzero"),
        ((0, 5, -1), "inconsistent"),
        ((0, float("inf")), "range"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.arange(*args, device="tpu")
    with pytest.raises(ValueError, match="nonzero"):
        torch.arange(0, 64, 0.5, out=torch.empty(0, dtype=torch.int64, device="tpu"))


def test_linspace_ends_are_exact():
    y = torch.linspace(-0.1, 0.3, 7, device="tpu").cpu()
    assert_close(y, torch.linspace(-0.1, 0.3, 7))
    assert y[0] == torch.tensor(-0.1) and y[-1] == torch.tensor(0.3)
    assert torch.linspace(0, 10, 4, dtype=torch.int64, device="tpu").tolist() == [0, 3, 6, 10]


@pytest.mark.parametrize("make", [torch.tril_indices, torch.triu_indices])
def test_triangle_indices(make):
    for rows, columns, offset in (
        (3, 4, 0),
        (4, 3, -2),
        (3, 3, 5),
        (3, 3, -5),
        (0, 2, 0),
        (5, 2, 1),
    ):
        expected = make(rows, columns, offset)
        assert torch.equal(make(rows, columns, offset, device="tpu").cpu(), expected)


# ---- arranging -----------------------------------------------------------------------------------


def test_tensor_split_takes_places_from_the_cpu():
    x = torch.arange(10.0)
    places = torch.tensor([2, 7])
    for mine, expected in zip(
        x.to("tpu").tensor_split(places), x.tensor_split(places), strict=True
    ):
        assert_close(mine.cpu(), expected)


def test_as_strided_scatter_into_a_transposed_tensor():
    x = torch.arange(12.0).reshape(3, 4).t()
    src = -torch.arange(1.0, 5.0).reshape(2, 2)
    expected = torch.as_strided_scatter(x, src, (2, 2), (5, 1), 3)
    mine = torch.as_strided_scatter(x.to("tpu"), src.to("tpu"), (2, 2), (5, 1), 3)
    assert_close(mine.cpu(), expected)


def test_as_strided_scatter_counts_from_the_start_of_the_storage():
    x, src = torch.arange(12.0), -torch.arange(1.0, 3.0)
    on_device = x.to("tpu")
    for first in range(4):
        expected = torch.as_strided_scatter(x[first::2], src, (2,), (1,), 3)
        mine = torch.as_strided_scatter(on_device[first::2], src.to("tpu"), (2,), (1,), 3)
        assert_close(mine.cpu(), expected)


@pytest.mark.parametrize("space", [torch.linspace, torch.logspace])
def test_spacings_between_tensors(space):
    start, end = torch.tensor(0.5), torch.tensor(2.0)
    for a, b in ((start, end), (start, 2.0), (0.5, end)):
        mine = [v.to("tpu") if isinstance(v, torch.Tensor) else v for v in (a, b)]
        assert_close(space(*mine, 7, device="tpu").cpu(), space(a, b, 7))


def test_cat_passes_over_legacy_empty_tensors_and_promotes():
    x = torch.arange(3, device="tpu")
    assert torch.cat([torch.empty(0, device="tpu"), x]).dtype == torch.float32
    assert torch.cat([x, torch.tensor([0.5], device="tpu")]).tolist() == [0, 1, 2, 0.5]
    with pytest.raises(RuntimeError, match="Expected size 2 but got size 3 for tensor number 1"):
        torch.cat([torch.ones(1, 2, device="tpu"), torch.ones(1, 3, device="tpu")])


def test_padding_and_cat_keep_channels_last():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    d = x.to("tpu")
    for pad, mode in (
        ((1, 2, 0, 1), "constant"),
        ((1, 2, 3, 0), "reflect"),
        ((2, 1, 0, 3), "replicate"),
    ):
        mine = torch.nn.functional.pad(d, pad, mode)
        expected = torch.nn.functional.pad(x, pad, mode)
        assert_close(mine.cpu(), expected)
        assert mine.is_contiguous(memory_format=torch.channels_last)
    assert torch.cat([d, d], 1).is_contiguous(memory_format=torch.channels_last)


def test_windows_that_overlap_add_up_in_the_gradient():
    x = torch.randn(3, 11)
    for size, step in ((4, 2), (3, 5), (5, 1), (4, 3)):
        grads = []
        for device in ("cpu", "tpu"):
            leaf = x.detach().to(device).requires_grad_()
            w = leaf.unfold(1, size, step)
            (w * torch.arange(float(size), device=device)).sum().backward()
            grads.append(leaf.grad.cpu())
        assert_close(grads[1], grads[0])


def test_slices_with_steps_in_the_gradient():
    x = torch.randn(7, 5)
    grads = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().to(device).requires_grad_()
        y = leaf[1:6:2].sum() + (leaf[:, -1] ** 2).sum() + leaf.diagonal(-1).sum() * 3
        y.backward()
        grads.append(leaf.grad.cpu())
    assert_close(grads[1], grads[0])


@pytest.mark.parametrize("n", [1, 5, 8])
def test_fft_norms_and_lengths(n):
    x = torch.randn(3, 6)
    for norm in ("forward", "backward", "ortho"):
        for fn in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft, torch.fft.hfft):
            assert_close(fn(x.to("tpu"), n, norm=norm).cpu(), fn(x, n, norm=norm))
    z = torch.randn(2, 3, 4, 5, dtype=torch.complex128)
    assert_close(torch.fft.fftn(z.to("tpu")).cpu(), torch.fft.fftn(z))
