"""Linear layers against dense matrices: values, gradients, moments."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.conformance.layer_suite import DTYPE, EPS, normal, run, scramble, seeded
from tests.layers.oracle import covariance_of_g, dense_weight, jacobian_in_g
from whvi.errors import ConfigError, ShapeError
from whvi.layers import MeanFieldLinear, WHVILinear
from whvi.layers.linear import RandomLinear
from whvi.posteriors import NoClosedFormError
from whvi.priors import FixedPrior
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling

LARGEST = 70
ALL_PAIRS = list(itertools.product(range(1, LARGEST + 1), repeat=2))
SOME_PAIRS = [
    *random.Random(9).sample(ALL_PAIRS, 490),
    *((n, 1) for n in (1, 2, 4, 5, 64)),
    *((1, n) for n in (2, 4, 5, 64, 65)),
]


def assert_as_dense(in_features: int, out_features: int) -> None:
    """Value and gradients of one drawn function, norm-wise within 64 eps."""
    layer = scramble(WHVILinear(in_features, out_features, dtype=DTYPE), in_features)
    matrix, posterior = layer.matrix, layer.matrix.posterior
    x = normal(3, in_features, seed=out_features).requires_grad_()
    upstream = normal(3, out_features, seed=3)
    wanted = [x, matrix.s1, matrix.s2, posterior.loc, posterior.log_scale, layer.bias]

    def both(y: Tensor) -> tuple[Tensor, ...]:
        return (y, *torch.autograd.grad(y, wanted, upstream))

    actual = both(run(layer, x, WeightDraws(generator=seeded(5))))
    g = posterior.rsample(generator=seeded(5))
    expected = both(x @ dense_weight(layer, g).T + layer.bias)
    names = ("y", "x", "s1", "s2", "loc", "log_scale", "bias")
    for name, one, other in zip(names, actual, expected, strict=True):
        scale = other.abs().max()
        if name == "y":  # with one entry the bias may cancel: measure by what was added
            scale = scale + layer.bias.abs().max()
        error = (one - other).abs().max()
        assert error <= 64 * EPS * scale, (name, in_features, out_features)


@pytest.mark.parametrize("part", range(10))
def test_some_shapes_are_their_dense_matrix(part: int) -> None:
    for in_features, out_features in SOME_PAIRS[part::10]:
        assert_as_dense(in_features, out_features)


@pytest.mark.nightly
@pytest.mark.parametrize("in_features", range(1, LARGEST + 1))
def test_all_shapes_are_their_dense_matrix(in_features: int) -> None:
    for out_features in range(1, LARGEST + 1):
        assert_as_dense(in_features, out_features)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 9), (8, 8), (100, 1), (1, 33), (70, 130)])
def test_sample_weight_is_the_matrix_that_a_draw_multiplies_by(sizes: tuple[int, int]) -> None:
    for kind in (WHVILinear, MeanFieldLinear):
        layer = scramble(kind(*sizes, dtype=DTYPE))
        W = layer.sample_weight(generator=seeded(3))
        y = run(layer, normal(6, sizes[0]), WeightDraws(generator=seeded(3)))
        expected = normal(6, sizes[0]) @ W.T + layer.bias
        torch.testing.assert_close(y, expected, rtol=0, atol=1000 * EPS)


@pytest.mark.parametrize("bad_grad", ["transposed", "expanded", "sliced"])
def test_gradients_do_not_depend_on_the_memory_of_the_incoming_one(bad_grad: str) -> None:
    layer = scramble(WHVILinear(8, 8, dtype=DTYPE))
    x = normal(6, 8)
    upstream = {
        "transposed": normal(8, 6).T,
        "expanded": normal(1, 8).expand(6, 8),
        "sliced": normal(6, 16)[:, ::2],
    }[bad_grad]
    gradients = []
    for grad in (upstream, upstream.contiguous()):
        y = run(layer, x, WeightDraws(generator=seeded()))
        gradients.append(torch.autograd.grad(y, list(layer.parameters()), grad))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=256 * EPS)


@pytest.mark.parametrize(
    "sizes", [(8, 8), (5, 7), (3, 9), (17, 40), (64, 64), (100, 1), (5000, 1), (1, 33), (130, 3)]
)
@pytest.mark.parametrize("kind", [WHVILinear, MeanFieldLinear])
def test_a_draw_is_a_function_at_any_size(kind: type[RandomLinear], sizes: tuple[int, int]) -> None:
    """To the bit, except products with dense matrices of more than 4 rows (a BLAS)."""
    layer, x = kind(*sizes), normal(300, sizes[0], dtype=torch.float32)
    with torch.no_grad(), sampling(WeightDraws(generator=seeded())):
        whole = layer(x)
        for size in (1, 7, 64, 256):
            parts = torch.cat([layer(part) for part in x.split(size)])
            if kind is WHVILinear or sizes[1] <= 4:
                assert torch.equal(parts, whole)
            else:
                torch.testing.assert_close(parts, whole, rtol=0, atol=2e-6)


# --- moments -------------------------------------------------------------------------------------

SHAPES = [(5, 7), (3, 9), (4, 4), (11, 1), (1, 11), (1, 1)]


@pytest.mark.parametrize("posterior", ["diagonal", "low_rank", "full", "point"])
@pytest.mark.parametrize("sizes", SHAPES)
def test_moments_are_those_of_a_linear_map_of_g(posterior: str, sizes: tuple[int, int]) -> None:
    """``vec(W) = J vec(g)`` and ``W x = (I ⊗ xᵀ) J vec(g)``, exactly."""
    options = {"posterior": posterior, "prior": FixedPrior(), "dtype": DTYPE}
    layer = scramble(WHVILinear(*sizes, **options))
    J, covariance = jacobian_in_g(layer), covariance_of_g(layer)
    mean = J @ layer.matrix.posterior.mean.flatten()
    moments = layer.weight_moments()
    torch.testing.assert_close(moments.mean, mean, rtol=0, atol=64 * EPS)
    torch.testing.assert_close(moments.covariance, J @ covariance @ J.T, rtol=0, atol=256 * EPS)

    x = normal(2, 3, sizes[0])
    through = torch.einsum("abi,oik->abok", x, J.unflatten(0, (sizes[1], sizes[0])))
    output = layer.output_moments(x)
    expected_mean = through @ layer.matrix.posterior.mean.flatten() + layer.bias
    variance = torch.einsum("abok,kl,abol->abo", through, covariance, through)
    torch.testing.assert_close(output.mean, expected_mean, rtol=0, atol=256 * EPS)
    torch.testing.assert_close(output.variance, variance, rtol=0, atol=512 * EPS)


@pytest.mark.parametrize("sizes", SHAPES)
def test_moments_of_a_dense_gaussian(sizes: tuple[int, int]) -> None:
    layer = scramble(MeanFieldLinear(*sizes, dtype=DTYPE))
    M, V = layer.matrix.mean, layer.matrix.variance
    moments, x = layer.weight_moments(), normal(4, sizes[0])
    assert torch.equal(moments.mean, M.flatten())
    assert torch.equal(moments.covariance, torch.diag(V.flatten()))
    output = layer.output_moments(x)
    torch.testing.assert_close(output.mean, x @ M.T + layer.bias, rtol=0, atol=64 * EPS)
    torch.testing.assert_close(output.variance, x.square() @ V.T, rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("sizes", [(5, 7), (6, 1)])
@pytest.mark.parametrize(
    "build",
    [
        WHVILinear,
        partial(WHVILinear, posterior="full"),
        partial(WHVILinear, posterior="low_rank", bias_posterior="diagonal"),
        MeanFieldLinear,
    ],
    ids=["diagonal", "full", "low_rank", "mean_field"],
)
def test_moments_match_draws(build, sizes: tuple[int, int]) -> None:
    """Both samplers, and ``sample_weight``, against the closed form; |z| < 5 everywhere."""
    layer, num = scramble(build(*sizes, dtype=DTYPE), 4), 20_000
    x = normal(sizes[0])
    with torch.no_grad():
        exact = layer.output_moments(x)
        rows = x.expand(num, *x.shape)
        for sampler in (WeightDraws(num, seeded(1)), LocalReparameterization(seeded(2))):
            y = run(layer, rows, sampler)
            assert _mean_z(y, exact.mean) < 5
            assert _variance_z(y, exact.variance) < 5
        W = layer.matrix.sample((num,), generator=seeded(3)).flatten(1)
        moments = layer.weight_moments()
        assert _mean_z(W, moments.mean) < 5
        spread = moments.covariance.diagonal()
        error = (W.T.cov() - moments.covariance).abs()
        # var of a sample covariance of normals: (Σ_ij² + Σ_ii Σ_jj) / n
        standard = ((moments.covariance.square() + torch.outer(spread, spread)) / num).sqrt()
        assert (error / standard).max() < 5


def _mean_z(draws: Tensor, mean: Tensor) -> float:
    return float(((draws.mean(0) - mean) / (draws.std(0) / len(draws) ** 0.5)).abs().max())


def _variance_z(draws: Tensor, variance: Tensor) -> float:
    """For normal draws the sample variance has standard deviation ``variance · √(2/n)``."""
    return float(((draws.var(0) / variance - 1) * (len(draws) / 2) ** 0.5).abs().max())


def test_moments_of_replicas_are_their_own() -> None:
    layer = scramble(WHVILinear(5, 7, posterior="full", batch_shape=(3,), dtype=DTYPE))
    x = normal(3, 4, 5)
    together, weights = layer.output_moments(x), layer.weight_moments()
    for r in range(3):
        alone = WHVILinear(5, 7, posterior="full", dtype=DTYPE)
        alone.load_state_dict({name: t[r] for name, t in layer.state_dict().items()})
        for one, other in (
            (together, alone.output_moments(x[r])),
            (weights, alone.weight_moments()),
        ):
            torch.testing.assert_close(one.mean[r], other.mean, rtol=0, atol=64 * EPS)
            torch.testing.assert_close(one[1][r], other[1], rtol=0, atol=256 * EPS)


def test_what_has_no_closed_form_or_no_room_says_so() -> None:
    with pytest.raises(NoClosedFormError, match="closed form"):
        WHVILinear(5, 7, posterior="flow").output_moments(torch.zeros(2, 5))
    with pytest.raises(ShapeError, match="16384 weights"):
        WHVILinear(128, 128).weight_moments()


# --- starting point, options ---------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(128, 128), (100, 300), (13, 128)])
def test_start_keeps_the_variance_of_he(sizes: tuple[int, int]) -> None:
    """Means of W start with variance 2 / in: 2000 draws of ~200 g's know it to a few percent."""
    variances = []
    for seed in range(20):
        layer = WHVILinear(*sizes)
        layer.reset_parameters(generator=seeded(seed))
        variances.append(layer.matrix.mean.square().mean())
    assert torch.stack(variances).mean().item() == pytest.approx(2 / sizes[0], rel=0.15)


def test_mean_weights_are_the_mean_of_the_posterior() -> None:
    for kind in (WHVILinear, MeanFieldLinear):
        layer, x = scramble(kind(5, 7, bias_posterior="diagonal", dtype=DTYPE)), normal(4, 5)
        expected = x @ layer.matrix.mean.T + layer.bias_posterior.mean
        torch.testing.assert_close(run(layer, x, MeanWeights()), expected, rtol=0, atol=64 * EPS)
        moments = layer.output_moments(x)
        torch.testing.assert_close(moments.mean, expected, rtol=0, atol=64 * EPS)


def test_kl_is_that_of_weights_plus_bias() -> None:
    layer = scramble(WHVILinear(5, 7, bias_posterior="diagonal", dtype=DTYPE))
    parts = layer.matrix.posterior.kl(layer.matrix.prior) + layer.bias_posterior.kl(
        layer.bias_prior
    )
    torch.testing.assert_close(layer.kl(), parts, rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("kind", [WHVILinear, MeanFieldLinear])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (-1, 3), (2.5, 3), (True, 3)])
def test_wrong_sizes_are_refused(kind: type[RandomLinear], sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="features must be an integer of at least 1"):
        kind(*sizes)


@pytest.mark.parametrize("options", [{}, {"scales": "gaussian"}, {"num_blocks": 2}])
@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, "float32"])
def test_parameters_are_floats(options: dict[str, object], dtype: object) -> None:
    with pytest.raises(ConfigError, match=f"dtype must be a floating-point type .* got {dtype!r}"):
        WHVILinear(4, 3, dtype=dtype, **options)
    with pytest.raises(ConfigError, match="dtype must be"):
        MeanFieldLinear(4, 3, dtype=dtype)


def test_parameters_are_linear_in_the_width() -> None:
    count = sum(p.numel() for p in WHVILinear(128, 128).parameters())
    assert count == 4 * 128 + 128
    assert sum(p.numel() for p in WHVILinear(1000, 1, bias=False).parameters()) == 4 * 32
