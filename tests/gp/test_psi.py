"""Functions of structured weights against dense matrices and against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from whvi.functional import column_features, dense_matrix
from whvi.gp.psi import ColumnWeights, PlainWeights, column_product, dyadic_matrix
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


def test_dyadic_matrices():
    g, H = normal(3, 8), hadamard_matrix(8, dtype=torch.float64)
    torch.testing.assert_close(dyadic_matrix(g), H @ torch.diag_embed(g) @ H)
    i = torch.arange(8)
    torch.testing.assert_close(
        dyadic_matrix(g)[:, i, i ^ 5], dyadic_matrix(g)[:, 0, 5:6].expand(3, 8)
    )


@pytest.mark.parametrize("num_features", [1, 4, 16, 60, 64])
def test_column_weights_give_the_product_with_vec_w(num_features):
    column = ColumnWeights(num_features, num_outputs=2)
    D = column.num_coefficients
    assert D**2 >= num_features > (D // 2) ** 2 * (D > 1)
    phi, g = normal(5, num_features), normal(2, D, seed=1)
    weights = dense_matrix(column.s1, g, column.s2) * D**0.5
    expected = phi @ weights.flatten(-2)[:, :num_features].T
    scale = torch.tensor(1.3, dtype=torch.float64)
    psi = column(phi, column.operands(scale))
    torch.testing.assert_close((psi * g).sum(-1), 1.3 * expected)
    torch.testing.assert_close(column.values(g, scale)(phi), 1.3 * expected)


def test_weights_of_a_column_have_unit_prior_variance():
    column = ColumnWeights(64)
    with torch.no_grad():
        column.s1.fill_(1.0)
        column.s2.fill_(1.0)
    jacobian = column(torch.eye(64).double(), column.operands(torch.ones(()))).squeeze(
        -2
    )  # weights = J g
    torch.testing.assert_close(jacobian.square().sum(-1), torch.ones(64).double())


@pytest.mark.parametrize("weights", [ColumnWeights(60), ColumnWeights(64, gain=1.0)])
def test_the_jacobian_of_a_column(weights):
    waves, g, scale = normal(5, weights.num_features), normal(8, seed=3), torch.tensor(0.7).double()
    vec, by_scales = weights.jacobian(g, scale)
    dense = 0.7 * weights.gain * dense_matrix(weights.s1[0], g, weights.s2[0])
    torch.testing.assert_close(vec, dense.flatten()[: weights.num_features])

    def function(s1: Tensor, s2: Tensor) -> Tensor:
        state = {"s1": s1, "s2": s2}
        operands = (s1 * scale * weights.gain, s2)
        return torch.func.functional_call(weights, state, (waves, operands)).squeeze(-2) @ g

    expected = torch.autograd.functional.jacobian(function, (weights.s1, weights.s2))
    torch.testing.assert_close(by_scales(waves), torch.cat(expected, -1).squeeze(1))


def test_the_jacobian_of_plain_weights():
    vec, by_none = PlainWeights(6).jacobian(normal(6), torch.tensor(0.7).double())
    torch.testing.assert_close(vec, 0.7 * normal(6))
    assert by_none(normal(5, 6)).shape == (5, 0)
