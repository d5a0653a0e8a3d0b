# SPDX-License-Identifier: Apache-2.0 - Sparse tensors on the device against CPU.
import pytest
import torch
from torch import nn
from torch.testing import assert_close

DEVICE = "tpu"


@pytest.fixture
def coo():
    """One place twice; on CPU and on the device."""
    torch.manual_seed(0)
    places, values = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]]), torch.randn(4)
    return [torch.sparse_coo_tensor(places.to(d), values.to(d), (2, 3)) for d in ("cpu", DEVICE)]


def same(actual, expected):
    assert actual.device.type == DEVICE and actual.layout == expected.layout
    assert_close(actual.to_dense().cpu(), expected.to_dense())


def test_conversions(coo):
    c, t = coo
    same(t, c)
    assert_close(t.cpu().to_dense(), c.to_dense())
    same(c.to(DEVICE), c)
    same(t.clone(), c)
    whole = t.coalesce()
    assert whole._nnz() == 3 and whole.is_coalesced()
    assert torch.equal(whole.indices().cpu(), c.coalesce().indices())
    assert_close(whole.values().cpu(), c.coalesce().values())
    dense = torch.randn(3, 4).relu()
    same(dense.to(DEVICE).to_sparse(), dense.to_sparse())
    same(dense.to(DEVICE).to_sparse(1), dense.to_sparse(1))
    same(dense.to(DEVICE).to_sparse_csr(), dense.to_sparse_csr())
    same(dense.to_sparse_csr().to(DEVICE), dense.to_sparse_csr())
    assert "layout=torch.sparse_coo" in repr(t)


def test_arithmetic(coo):
    c, t = coo
    x = torch.randn(2, 3)
    same(t + t, c + c)
    same(t * 2, c * 2)
    same(t * x.to(DEVICE), c * x)
    same(t.t(), c.t())
    same(torch.sqrt(t.coalesce().abs()), torch.sqrt(c.coalesce().abs()))
    assert_close((x.to(DEVICE) + t).cpu(), x + c)
    y = x.to(DEVICE)
    y.add_(t, alpha=-0.5)
    assert_close(y.cpu(), x - 0.5 * c.to_dense())
    assert_close(torch.sparse.sum(t).cpu(), torch.sparse.sum(c))
    same(torch.sparse.sum(t, 1), torch.sparse.sum(c, 1))
    same(torch.sparse.softmax(t, 1), torch.sparse.softmax(c, 1))
    same(x.to(DEVICE).sparse_mask(t.coalesce()), x.sparse_mask(c.coalesce()))


def test_products(coo):
    c, t = coo
    d = torch.randn(3, 4)
    assert_close((t @ d.to(DEVICE)).cpu(), c @ d)
    assert_close(
        torch.sparse.addmm(torch.ones(2, 4, device=DEVICE), t, d.to(DEVICE)).cpu(), 1 + c @ d
    )
    x, a, b = torch.randn(4, 5).relu(), torch.randn(4, 3), torch.randn(3, 5)
    csr, vector = x.to(DEVICE).to_sparse_csr(), torch.randn(5)
    assert_close((csr @ vector.to(DEVICE)).cpu(), x @ vector)
    assert_close((csr @ torch.ones(5, 2, device=DEVICE)).cpu(), x @ torch.ones(5, 2))
    sampled = torch.sparse.sampled_addmm(csr, a.to(DEVICE), b.to(DEVICE))
    same(sampled, torch.sparse.sampled_addmm(x.to_sparse_csr(), a, b))


def test_gradient_of_a_product():
    torch.manual_seed(0)
    dense, b = torch.randn(3, 4).relu(), torch.randn(4, 2)
    grads = []
    for device in ("cpu", DEVICE):
        left = dense.to(device).to_sparse().requires_grad_()
        right = b.clone().to(device).requires_grad_()
        torch.sparse.mm(left, right).pow(2).sum().backward()
        grads.append((left.grad.to_dense().cpu(), right.grad.cpu()))
    assert_close(grads[1], grads[0])


def test_masks(coo):
    c, t = coo
    dense = torch.arange(6.0).reshape(2, 3)
    same(dense.to(DEVICE).sparse_mask(t.coalesce()), dense.sparse_mask(c.coalesce()))
    same(t._sparse_mask_projection(t + t), c._sparse_mask_projection(c + c))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_reduced_product(reduce):
    torch.manual_seed(0)
    matrix = torch.randn(4, 5).relu()
    matrix[2] = 0  # a row without elements
    found = []
    for device in ("cpu", DEVICE):
        a = matrix.to_sparse_csr().to(device).requires_grad_()
        b = torch.linspace(-1, 1, 15).reshape(5, 3).to(device).requires_grad_()
        y = torch.sparse.mm(a, b, reduce)
        (y * torch.arange(12.0, device=device).reshape(4, 3)).sum().backward()
        found.append([x.cpu() for x in (y.detach(), a.grad.to_dense(), b.grad)])
    assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad]
)
def test_training_an_embedding_with_sparse_gradients(optimizer):
    weights = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True).to(device)
        step = optimizer(table.parameters(), lr=0.1)
        for _ in range(2):
            step.zero_grad()
            table(torch.tensor([1, 3, 3], device=device)).pow(2).sum().backward()
            assert table.weight.grad.is_sparse
            step.step()
        weights.append(table.weight.detach().cpu())
    assert_close(weights[1], weights[0])
