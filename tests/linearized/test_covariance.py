from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from whvi.linearized.covariance import RootCovariance, RowCovariance
from whvi.linearized.statistics import Statistics

P, M = 7, 4
KINDS = ["root", "rows"]


def matrices(batch_shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(*batch_shape, M, P, generator=generator, dtype=torch.float64)
    precision = torch.rand(*batch_shape, P, generator=generator, dtype=torch.float64) + 0.2
    noise = torch.rand(batch_shape, generator=generator, dtype=torch.float64) + 0.5
    inverse = Z.mT @ Z / noise[..., None, None] + torch.diag_embed(precision)
    return Z, precision, noise, inverse


def root_of(inverse):
    return torch.linalg.inv(torch.linalg.cholesky(inverse)).tril()


def make(kind, batch_shape=()):
    Z, precision, noise, inverse = matrices(batch_shape)
    if kind == "root":
        return RootCovariance(root_of(inverse)), torch.linalg.inv(inverse)
    return RowCovariance(Z, precision, noise), torch.linalg.inv(inverse)


def more(batch_shape):
    Z = torch.randn(*batch_shape, 3, P, generator=torch.Generator().manual_seed(9)).double()
    zero = torch.zeros(batch_shape, dtype=torch.float64)
    return Statistics(Z, None, Z.sum(-2), zero, zero, 3.0)


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_outputs_and_products(kind, outputs, batch_shape):
    covariance, dense = make(kind, batch_shape)
    J = torch.randn(*batch_shape, 5, outputs, P, dtype=torch.float64)
    expected = J @ dense.unsqueeze(-3) @ J.mT
    assert_close(covariance.of_outputs(J), expected, rtol=1e-10, atol=1e-10)
    v = torch.randn(*batch_shape, P, dtype=torch.float64)
    product = (dense @ v.unsqueeze(-1)).squeeze(-1)
    assert_close(covariance.times(v), product, rtol=1e-10, atol=1e-10)
    assert covariance.num_bytes > 0


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_covariance(kind, batch_shape, generator):
    covariance, dense = make(kind, batch_shape)
    num = 20_000
    draws = covariance.draw(num, generator)
    assert draws.shape == (*batch_shape, num, P)
    found = draws.mT @ draws / num
    variances = dense.diagonal(dim1=-2, dim2=-1)
    # the standard error of an entry is sqrt((Σ_ii Σ_jj + Σ_ij²) / S)
    error = (variances.unsqueeze(-1) * variances.unsqueeze(-2) + dense.square()).div(num).sqrt()
    assert ((found - dense).abs() < 5 * error).all()
    assert (draws.mean(-2).abs() < 5 * (variances / num).sqrt()).all()


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("kind", KINDS)
def test_further_rows(kind, batch_shape):
    covariance, dense = make(kind, batch_shape)
    noise, new = matrices(batch_shape)[2], more(batch_shape)
    updated, log_det = covariance.conditioned(new, noise)
    gram = new.rows.mT @ new.rows / noise[..., None, None]
    expected = torch.linalg.inv(torch.linalg.inv(dense) + gram)
    unit = torch.eye(P, dtype=torch.float64).expand(*batch_shape, 1, P, P)
    assert_close(updated.of_outputs(unit).squeeze(-3), expected, rtol=1e-9, atol=1e-9)
    inner = torch.eye(P, dtype=torch.float64) + dense @ gram
    assert_close(log_det, torch.linalg.slogdet(inner).logabsdet, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [255, 256, 257, 600])
def test_slices_of_a_root(size):
    root = torch.randn(size, size, dtype=torch.float64).tril()
    J = torch.randn(3, 2, size, dtype=torch.float64)
    covariance = RootCovariance(root)
    expected = J @ (root.mT @ root) @ J.mT
    assert_close(covariance.of_outputs(J), expected, rtol=1e-10, atol=1e-10)
    assert_close(covariance.of_outputs(J[:, :1]), expected[:, :1, :1], rtol=1e-10, atol=1e-10)


def test_a_root_stands_float32():
    _, _, _, inverse = matrices((2,))
    covariance = RootCovariance(root_of(inverse).float())
    unit = torch.eye(P).expand(2, 1, P, P)
    found = covariance.of_outputs(unit).squeeze(-3)
    assert found.dtype is torch.float64
    assert_close(found, torch.linalg.inv(inverse), rtol=1e-5, atol=1e-6)
    assert covariance.conditioned(more((2,)), torch.ones(2).double())[0].root.dtype is torch.float32
