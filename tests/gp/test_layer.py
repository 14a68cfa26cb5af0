"""The layer of functions against dense weights, and as a member of the layer library."""

from __future__ import annotations

import math

import pytest
import torch

import whvi
from whvi.functional import dense_matrix
from whvi.gp.features import RandomFeatures
from whvi.gp.layer import ColumnMap, FeatureLayer, PlainMap
from whvi.gp.layer_basis import ColumnLayerBasis, LayerBasis, basis_of
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling


def rows(num=6, d=3, seed=0):
    return torch.randn(num, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(num_features=60, num_outputs=1, **options):
    features = RandomFeatures(3, num_features, dtype=torch.float64)
    layer = FeatureLayer(features, num_outputs, **options)
    layer.reset_parameters(generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        layer.posterior.loc.normal_(generator=torch.Generator().manual_seed(2))
    return layer


VARIANTS = [
    {"structured": True, "posterior": "diagonal"},
    {"structured": True, "posterior": "full"},
    {"structured": False, "posterior": "diagonal"},
    {"structured": False, "posterior": "full"},
]
variants = pytest.mark.parametrize("options", VARIANTS)


@pytest.mark.parametrize("num_features", [1, 4, 16, 60, 64])
def test_the_column_map_is_the_product_with_vec_w(num_features):
    column = ColumnMap(num_features, num_outputs=2)
    D = column.num_coefficients
    assert D**2 >= num_features > (D // 2) ** 2 * (D > 1)
    phi, g = rows(5, num_features), rows(2, D)
    weights = dense_matrix(column.s1, g, column.s2) * D**0.5
    expected = phi @ weights.flatten(-2)[:, :num_features].T
    scale = torch.tensor(1.3, dtype=torch.float64)
    psi = column(phi, column.operands(scale))
    torch.testing.assert_close((psi * g).sum(-1), 1.3 * expected)
    torch.testing.assert_close(column.values(g, scale)(phi), 1.3 * expected)


def test_weights_of_the_column_map_have_unit_prior_variance():
    column = ColumnMap(64)
    with torch.no_grad():
        column.s1.fill_(1.0)
        column.s2.fill_(1.0)
    jacobian = column(torch.eye(64).double(), column.operands(torch.ones(()))).squeeze(
        -2
    )  # weights = J g
    torch.testing.assert_close(jacobian.square().sum(-1), torch.ones(64).double())


@variants
def test_samplers_agree_with_the_moments(options):
    layer = make(16, 2, **options)
    x = rows(3)
    mean, variance = layer.output_moments(x)
    with sampling(MeanWeights()):
        torch.testing.assert_close(layer(x), mean)
    S = 20_000
    many = x.expand(S, 3, 3)
    generator = torch.Generator().manual_seed(3)
    for sampler in (WeightDraws(S, generator), LocalReparameterization(generator)):
        with torch.no_grad(), sampling(sampler):
            draws = layer(many)
        assert draws.shape == (S, 3, 2)
        error = (variance / S).sqrt()
        assert ((draws.mean(0) - mean).abs() < 5 * error).all()
        assert ((draws.var(0) / variance - 1).abs() < 6 * math.sqrt(2 / S)).all()


@variants
def test_rows_shared_by_draws_give_what_copies_of_them_give(options):
    layer = make(16, **options)
    x = rows(4)
    with sampling(WeightDraws(5, torch.Generator().manual_seed(0))), torch.no_grad():
        torch.testing.assert_close(layer(x.expand(5, 4, 3)), layer(x.repeat(5, 1, 1)))


@variants
def test_kl_is_that_of_gaussians(options):
    layer = make(4, **options)
    q = torch.distributions.MultivariateNormal(
        layer.posterior.mean, layer.posterior.covariance()[0]
    )
    p = torch.distributions.MultivariateNormal(q.loc * 0, torch.eye(len(q.loc)).double())
    torch.testing.assert_close(whvi.kl(layer), torch.distributions.kl_divergence(q, p))


def test_plain_weights_have_one_coefficient_per_feature():
    layer = make(10, structured=False)
    assert isinstance(layer.map, PlainMap)
    assert layer.posterior.shape == (1, 10)
    torch.testing.assert_close(layer.basis(rows()).squeeze(-2), layer.features(rows()))


def test_the_basis_is_that_of_the_layer():
    for options in VARIANTS:
        layer = make(**options)
        psi = LayerBasis(layer)(rows())
        torch.testing.assert_close(psi, layer.basis(rows()).squeeze(-2))


@pytest.mark.parametrize("kernel", ["rbf", "matern52", "arccos1"])
def test_the_tangent_is_the_derivative(kernel):
    features = RandomFeatures(3, 60, kernel=kernel, projection="fastfood", dtype=torch.float64)
    basis = ColumnLayerBasis(FeatureLayer(features))
    x, a = rows(), rows(1, basis.num_coefficients)[0]
    psi, tangent = basis.tangent(a)(x)
    torch.testing.assert_close(psi, basis(x))
    values = basis(x) @ a
    expected = [
        torch.cat(
            [
                g.flatten()
                for g in torch.autograd.grad(v, basis.shape_parameters(), retain_graph=True)
            ]
        )
        for v in values
    ]
    torch.testing.assert_close(tangent, torch.stack(expected))


def test_gauss_newton_is_for_many_rows_of_structured_weights():
    assert isinstance(basis_of(make(), 1000), ColumnLayerBasis)
    assert isinstance(basis_of(make(), 50), LayerBasis)
    assert isinstance(basis_of(make(structured=False), 1000), LayerBasis)
    # s1, s2 of 60 features have 8 entries each; lengthscales and variance are no shape
    assert basis_of(make(), 1000).num_shape_parameters() == 16
