# SPDX-License-Identifier: Apache-2.0 - Linear algebra against CPU.
import pytest
import torch

from torch_tpu.conformance.tolerances import allowed

DEVICE = "tpu"


def close(a, b):
    wide = {} if b.dtype in (torch.float64, torch.complex128) else allowed("factors")
    torch.testing.assert_close(a.cpu(), b.cpu(), **wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_eigh_takes_the_matrix_apart(n, dtype):
    torch.manual_seed(0)
    a = torch.randn(3, n, n, dtype=dtype)
    a = a + a.mH
    values, vectors = torch.linalg.eigh(a.to(DEVICE))
    close(values, torch.linalg.eigvalsh(a))
    values, vectors = values.cpu(), vectors.cpu()
    close(vectors @ (values.to(dtype)[..., None] * vectors.mH), a)
    close(vectors.mH @ vectors, torch.eye(n, dtype=dtype).expand(3, n, n))


def test_eigh_of_equal_eigenvalues():
    _, vectors = torch.linalg.eigh(torch.eye(4, device=DEVICE) * 3)
    close(vectors.cpu().mT @ vectors.cpu(), torch.eye(4))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (3, 6), (1, 5)])
def test_svd_takes_the_matrix_apart(shape, dtype, full):
    torch.manual_seed(0)
    a = torch.randn(2, *shape, dtype=dtype)
    u, s, vh = (x.cpu() for x in torch.linalg.svd(a.to(DEVICE), full_matrices=full))
    close(s, torch.linalg.svdvals(a))
    k = min(shape)
    close(u[..., :k] @ (s.to(dtype)[..., None] * vh[..., :k, :]), a)
    close(u.mH @ u, torch.eye(u.shape[-1], dtype=dtype).expand(2, -1, -1))
    close(vh @ vh.mH, torch.eye(vh.shape[-2], dtype=dtype).expand(2, -1, -1))


def test_svd_without_full_rank_has_orthonormal_vectors():
    a = torch.outer(torch.arange(5.0), torch.arange(4.0))
    u, s, vh = (x.cpu() for x in torch.linalg.svd(a.to(DEVICE), full_matrices=False))
    close(s, torch.linalg.svdvals(a))
    close(u.mT @ u, torch.eye(4))
    close(vh @ vh.mT, torch.eye(4))


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gels"])
def test_lstsq(driver):
    torch.manual_seed(0)
    a, b = torch.randn(6, 3), torch.randn(6, 2)
    expected = torch.linalg.lstsq(a, b, driver=driver)
    actual = torch.linalg.lstsq(a.to(DEVICE), b.to(DEVICE), driver=driver)
    close(actual.solution, expected.solution)
    close(actual.residuals, expected.residuals)
    assert torch.equal(actual.rank.cpu(), expected.rank)


def test_failures_say_where():
    bad = torch.diag(torch.tensor([1.0, 2.0, -1.0, 3.0]))
    assert torch.linalg.cholesky_ex(bad.to(DEVICE)).info.item() == 3
    with pytest.raises(torch.linalg.LinAlgError, match="leading minor of order 3"):
        torch.linalg.cholesky(bad.to(DEVICE))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(torch.zeros(2, 2, device=DEVICE))
    with pytest.raises(RuntimeError, match="square"):
        torch.linalg.det(torch.zeros(2, 3, device=DEVICE))


@pytest.mark.parametrize(
    "n, dtype", [(1, torch.float32), (9, torch.float32), (3, torch.float64), (9, torch.complex64)]
)
def test_eig_takes_the_matrix_apart(n, dtype):
    torch.manual_seed(0)
    a = torch.randn(3, n, n, dtype=dtype)
    values, vectors = (x.cpu() for x in torch.linalg.eig(a.to(DEVICE)))
    close(a.to(values.dtype) @ vectors, vectors * values[:, None])
    close(vectors.abs().square().sum(1), torch.ones(3, n, dtype=vectors.real.dtype))
    close(values.sum(1), a.diagonal(dim1=1, dim2=2).sum(1).to(values.dtype))
    alone = torch.linalg.eigvals(a.to(DEVICE)).cpu()
    close(alone, values)


def test_eig_of_special_matrices():
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # equal moduli: a plain shift would go in circles
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    cycle = torch.eye(5).roll(1, 0)
    for a in (swap, turn, cycle, torch.zeros(3, 3), torch.diag(torch.arange(4.0))):
        values = torch.linalg.eigvals(a.to(DEVICE)).cpu()
        expected = torch.linalg.eigvals(a)
        distance = (values[:, None] - expected).abs()
        assert distance.min(0).values.max() < 1e-5 and distance.min(1).values.max() < 1e-5
    assert torch.linalg.eigvals(swap.to(DEVICE)).imag.abs().max() == 0
    with pytest.raises(RuntimeError, match="infs or NaNs"):
        torch.linalg.eigvals(torch.full((2, 2), float("nan"), device=DEVICE)).cpu()


def test_eig_gradient():
    torch.manual_seed(0)
    a = torch.randn(4, 4, dtype=torch.float64)
    grads = []
    for device in ("cpu", DEVICE):
        x = a.clone().to(device).requires_grad_()
        values, vectors = torch.linalg.eig(x)
        (values.abs().sum() + vectors.abs().sum()).backward()
        grads.append(x.grad.cpu())
    close(grads[1], grads[0])
