# SPDX-License-Identifier: Apache-2.0 - Segments and rows of unequal lengths against CPU.
import pytest
import torch
from torch.testing import assert_close

DEVICE = "tpu"
aten = torch.ops.aten


def test_segment_lengths_must_fill_the_axis():
    data, lengths = torch.ones(4, device=DEVICE), torch.tensor([1, 2], device=DEVICE)
    y = torch.segment_reduce(data, "sum", lengths=lengths)
    with pytest.raises(RuntimeError, match="sum to"):
        y.cpu()


def test_padding_and_packing():
    torch.manual_seed(0)
    values, offsets = torch.randn(7, 3), torch.tensor([0, 2, 2, 7])
    expected = aten._jagged_to_padded_dense_forward(values, [offsets], [4], -1.0)
    actual = aten._jagged_to_padded_dense_forward(
        values.to(DEVICE), [offsets.to(DEVICE)], [4], -1.0
    )
    assert_close(actual.cpu(), expected)
    dense = torch.randn(3, 6, 3)
    for total in (7, None):
        expected = aten._padded_dense_to_jagged_forward(dense, [offsets], total)
        actual = aten._padded_dense_to_jagged_forward(dense.to(DEVICE), [offsets.to(DEVICE)], total)
        assert_close(actual.cpu(), expected)


def test_two_levels_of_offsets_are_undone():
    # Three rows of 2, 0 and 1 rows of 3, 1 and 2 elements.
    outer, inner = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 3, 4, 6])
    values = torch.arange(6.0)
    lists = [outer.to(DEVICE), inner.to(DEVICE)]
    padded = aten._jagged_to_padded_dense_forward(values.to(DEVICE), lists, [2, 3], -1.0)
    expected = torch.full((3, 2, 3), -1.0)
    expected[0, 0], expected[0, 1, 0], expected[2, 0, :2] = values[:3], values[3], values[4:]
    assert_close(padded.cpu(), expected)
    assert_close(aten._padded_dense_to_jagged_forward(padded, lists, 6).cpu(), values)
