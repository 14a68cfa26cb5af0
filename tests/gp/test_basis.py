"""Bases and structured weights against dense matrices and against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reproduction.figure2.models import MixtureProjection
from tests.gp.bases import column, fourier, spectrum
from whvi.errors import ConfigError, ShapeError
from whvi.functional import column_features, dense_matrix
from whvi.gp.basis import (
    ColumnWeights,
    FeatureBasis,
    PlainWeights,
    column_product,
    dyadic_matrix,
)
from whvi.gp.features import RandomFeatures
from whvi.transforms import hadamard_matrix

MAKERS = {
    "column": lambda dtype: column(3, 8, dtype=dtype),
    "fourier": lambda dtype: fourier(3, 10, dtype=dtype),
    "spectrum": lambda dtype: spectrum(3, 10, dtype=dtype),
}
each = pytest.mark.parametrize("kind", MAKERS)


def rows(num: int = 20) -> Tensor:
    return torch.randn(num, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def started(kind: str, dtype: torch.dtype = torch.float64) -> FeatureBasis:
    basis = MAKERS[kind](dtype)
    basis.restart(rows(), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in basis.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return basis


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_the_column_basis_is_the_product_with_vec_w():
    basis, x = started("column"), rows()
    s1, s2 = basis.weights.s1[0], basis.weights.s2[0]
    g = torch.randn(8, dtype=torch.float64)
    features = basis.features(x)
    torch.testing.assert_close(basis(x) @ g, features @ dense_matrix(s1, g, s2).flatten())
    torch.testing.assert_close(basis(x), column_features(features, s1, s2))


def test_features_are_waves():
    basis, x = started("fourier"), rows()
    phi = basis.features
    phases = x @ (phi.projection.frequencies / phi.log_lengthscale.exp().unsqueeze(-1))
    expected = torch.cat([phases.cos(), phases.sin()], -1) * phi.log_variance.exp().sqrt()
    torch.testing.assert_close(basis(x), expected * (2 / 10) ** 0.5)
    # cos² + sin²: the prior variance is the same everywhere
    torch.testing.assert_close(basis(x).square().sum(-1), phi.log_variance.exp().expand(len(x)))


@each
def test_gradients(kind):
    basis, x = started(kind), rows(5)
    names = [name for name, parameter in basis.named_parameters() if parameter.requires_grad]

    def psi(*values: Tensor) -> Tensor:
        return torch.func.functional_call(basis, dict(zip(names, values, strict=True)), (x,))

    parameters = dict(basis.named_parameters())
    values = tuple(parameters[name].detach().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(psi, values)


@each
def test_the_jacobian_is_the_derivative_of_the_function(kind):
    basis, x = started(kind), rows()
    a = torch.randn(basis.num_coefficients, dtype=torch.float64)
    psi, jacobian = basis.jacobian(a)(x)
    torch.testing.assert_close(psi, basis(x).detach())
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(f, basis.shape_parameters())])
        for f in (basis(row) @ a for row in x.unsqueeze(1))
    ]
    torch.testing.assert_close(jacobian, torch.stack(gradients))


@each
def test_float32_features_are_close_to_float64(kind):
    exact, x = started(kind), rows()
    rounded = MAKERS[kind](torch.float32)
    rounded.load_state_dict(exact.state_dict())
    psi = rounded(x)
    assert psi.dtype == torch.float32
    torch.testing.assert_close(psi.double(), exact(x), rtol=0, atol=2e-5)


@each
def test_a_start_is_a_function_of_the_generator(kind):
    first, second, other = (MAKERS[kind](torch.float64) for _ in range(3))
    for basis, seed in ((first, 1), (second, 1), (other, 2)):
        basis.restart(rows(), torch.Generator().manual_seed(seed))
    assert torch.equal(first(rows()), second(rows()))
    assert not torch.equal(first(rows()), other(rows()))


@pytest.mark.parametrize("kernel", ["rbf", "matern52", "arccos1"])
def test_the_jacobian_of_other_kernels_and_fast_projections(kernel):
    features = RandomFeatures(3, 60, kernel=kernel, projection="fastfood", dtype=torch.float64)
    basis, x = FeatureBasis(features, ColumnWeights(60)), rows(6)
    a = torch.randn(basis.num_coefficients, dtype=torch.float64)
    psi, jacobian = basis.jacobian(a)(x)
    torch.testing.assert_close(psi, basis(x))
    expected = [
        torch.cat([g.flatten() for g in torch.autograd.grad(f, basis.shape_parameters())])
        for f in (basis(row) @ a for row in x.unsqueeze(1))
    ]
    torch.testing.assert_close(jacobian, torch.stack(expected))


def test_what_is_trained_and_in_which_order():
    def names(basis):
        known = {id(p): name for name, p in basis.named_parameters()}
        return [known[id(p)].split(".")[-1] for p in basis.trained_parameters()]

    assert names(column(5, 16)) == ["s1", "s2", "log_lengthscale", "log_variance"]
    assert names(fourier(5, 32)) == ["log_lengthscale", "log_variance"]
    assert names(spectrum(5, 14)) == ["frequencies", "log_lengthscale", "log_variance"]
    # Gauss-Newton moves learned frequencies instead of lengthscales
    assert spectrum(5, 14).shape_parameters()[0].shape == (5, 7)
    assert [p.numel() for p in column(5, 16).shape_parameters()] == [16, 16, 5]
    frozen = column(5, 16)
    frozen.weights.s2.requires_grad_(False)
    assert names(frozen) == ["s1", "log_lengthscale", "log_variance"]


def test_wrong_calls():
    with pytest.raises(ConfigError, match=r"of shape \(2, 4\) is needed, got \(2, 3\)"):
        RandomFeatures(2, 7, projection=MixtureProjection(2, 3))
    with pytest.raises(ShapeError, match=r"\(\.\.\., 3\)"):
        started("column")(torch.zeros(4, 2, dtype=torch.float64))


# ---- weights ----------------------------------------------------------------------------------


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
def test_derivatives_of_the_product_of_first_and_second_order(batch):
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
