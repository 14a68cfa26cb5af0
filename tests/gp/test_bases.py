from __future__ import annotations

import pytest
import torch
from torch import Tensor

from whvi.errors import ConfigError, ShapeError
from whvi.functional import column_features, dense_matrix
from whvi.gp.bases import Basis, ColumnBasis, FourierBasis, SpectrumBasis
from whvi.gp.gauss_newton import Tangible
from whvi.gp.inducing import InducingBasis

MAKERS = {
    "column": lambda dtype: ColumnBasis(3, 8, dtype=dtype),
    "fourier": lambda dtype: FourierBasis(3, 10, dtype=dtype),
    "spectrum": lambda dtype: SpectrumBasis(3, 10, dtype=dtype),
}
each = pytest.mark.parametrize("kind", MAKERS)


def rows(num: int = 20) -> Tensor:
    return torch.randn(num, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def started(kind: str, dtype: torch.dtype = torch.float64) -> Basis:
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


def weights_of_features(basis: ColumnBasis, g: Tensor) -> Tensor:
    return dense_matrix(basis.s1, g, basis.s2).flatten()


def test_the_column_basis_is_the_product_with_vec_w():
    basis, x = started("column"), rows()
    g = torch.randn(8, dtype=torch.float64)
    features = basis.waves(x) * basis.waves.scale
    torch.testing.assert_close(basis(x) @ g, features @ weights_of_features(basis, g))
    torch.testing.assert_close(basis(x), column_features(features, basis.s1, basis.s2))


def test_features_are_waves():
    basis, x = started("fourier"), rows()
    waves = basis.waves
    phases = x @ (waves.frequencies / waves.log_lengthscale.exp().unsqueeze(-1))
    expected = torch.cat([phases.cos(), phases.sin()], -1) * waves.log_variance.exp().sqrt()
    torch.testing.assert_close(basis(x), expected * (2 / 10) ** 0.5)
    # cos² + sin²: the prior variance is the same everywhere
    torch.testing.assert_close(basis(x).square().sum(-1), waves.log_variance.exp().expand(len(x)))


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
def test_the_tangent_is_the_derivative_of_the_function(kind):
    basis, x = started(kind), rows()
    assert isinstance(basis, Tangible)
    a = torch.randn(basis.num_coefficients, dtype=torch.float64)
    psi, tangent = basis.tangent(a)(x)
    torch.testing.assert_close(psi, basis(x).detach())
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(f, basis.shape_parameters())])
        for f in (basis(row) @ a for row in x.unsqueeze(1))
    ]
    torch.testing.assert_close(tangent, torch.stack(gradients))


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


def test_what_counts():
    d = 5
    column, fourier = ColumnBasis(d, 16), FourierBasis(d, 32)
    spectrum, inducing = SpectrumBasis(d, 14), InducingBasis(d, 9)
    assert column.num_parameters("diagonal") == 4 * 16
    assert column.num_parameters("full") == 3 * 16 + 16 * 17 // 2
    assert fourier.num_parameters("diagonal") == 64
    assert fourier.num_parameters("full") == 32 + 32 * 33 // 2
    assert spectrum.num_parameters("diagonal") == 2 * 14 + d * 7
    assert inducing.num_parameters("diagonal") == 2 * 9 + d * 9
    assert inducing.num_parameters("diagonal", count_inducing=False) == 2 * 9
    assert inducing.num_parameters("full", count_inducing=False) == 9 + 9 * 10 // 2
    assert inducing.num_parameters("full") == 9 + 9 * 10 // 2 + d * 9
    # the count is that of the trained tensors, besides lengthscales, variance and q
    trained = sum(p.numel() for p in column.parameters() if p.requires_grad)
    assert trained - d - 1 == column.num_shape_parameters()


def test_wrong_calls():
    with pytest.raises(ConfigError, match="power of two"):
        ColumnBasis(3, 12)
    with pytest.raises(ConfigError, match="even"):
        FourierBasis(3, 7)
    with pytest.raises(ShapeError, match=r"\(\.\.\., 3\)"):
        started("column")(torch.zeros(4, 2, dtype=torch.float64))
    with pytest.raises(ConfigError, match="covariance"):
        ColumnBasis(3, 8).num_parameters("none")
