"""Functions of structured weights against dense matrices and against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from whvi.functional import column_features, dense_matrix
from whvi.gp.column import ColumnTangent, circulant, column_product
from whvi.transforms import hadamard_matrix


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def operands(size: int, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(*batch, size, size), normal(size, seed=1), normal(size, seed=2)


@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_product_is_that_of_vec_w(size, batch):
    square, s1, s2 = operands(size, *batch)
    g = normal(size, seed=3)
    psi = column_product(square, s1, s2)
    torch.testing.assert_close(psi, column_features(square.flatten(-2), s1, s2))
    weights = dense_matrix(s1, g, s2)
    torch.testing.assert_close(psi @ g, (square * weights).sum((-1, -2)))


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_derivatives_of_first_and_second_order(batch):
    inputs = tuple(t.requires_grad_() for t in operands(4, *batch))
    assert torch.autograd.gradcheck(column_product, inputs)
    assert torch.autograd.gradgradcheck(column_product, inputs)


def test_function_transforms():
    square, s1, s2 = operands(4, 3)
    torch.testing.assert_close(
        torch.func.vmap(column_product, (0, None, None))(square, s1, s2),
        column_product(square, s1, s2),
    )
    s1.requires_grad_()
    expected = torch.autograd.functional.jacobian(lambda s: column_product(square, s, s2), s1)
    found = torch.func.jacrev(column_product, argnums=1)(square, s1.detach(), s2)
    torch.testing.assert_close(found, expected)


def test_circulants():
    g, H = normal(3, 8), hadamard_matrix(8, dtype=torch.float64)
    torch.testing.assert_close(circulant(g), H @ torch.diag_embed(g) @ H)


def test_the_tangent_is_the_derivative_by_both_scales():
    square, s1, s2 = operands(8, 5)
    g = normal(8, seed=3)
    tangent = ColumnTangent(circulant(g), s1, s2)
    torch.testing.assert_close(tangent.weights, dense_matrix(s1, g, s2))

    def function(s1: Tensor, s2: Tensor) -> Tensor:
        return column_product(square, s1, s2) @ g

    expected = torch.cat(torch.autograd.functional.jacobian(function, (s1, s2)), -1)
    torch.testing.assert_close(tangent.by_scales(square), expected)
