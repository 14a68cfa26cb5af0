from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.conformance.posterior_suite import (
    DTYPE,
    PRIORS,
    GaussianPosteriorSuite,
    PosteriorSuite,
    each_prior,
    replica,
    scramble,
    seeded,
)
from whvi.errors import ConfigError
from whvi.posteriors import (
    DiagonalGaussian,
    FullGaussian,
    LowRankGaussian,
    NoClosedFormError,
    PlanarFlow,
    PointMass,
    Posterior,
    make_posterior,
)
from whvi.posteriors.planar_flow import invertible_direction, planar_map
from whvi.priors import EmpiricalBayesPrior, FixedPrior, LearnedPrior, Prior
from whvi.sampling import LocalReparameterization, WeightDraws, sampling


def normal_log_density(x: Tensor, variance: float) -> Tensor:
    scale = torch.tensor(variance, dtype=x.dtype).sqrt()
    return torch.distributions.Normal(torch.zeros_like(scale), scale).log_prob(x)


class TestDiagonalGaussian(GaussianPosteriorSuite):
    build = staticmethod(DiagonalGaussian)


class TestLowRankGaussian(GaussianPosteriorSuite):
    build = staticmethod(functools.partial(LowRankGaussian, rank=2))

    def move_to_prior(self, posterior: Posterior, variance: float) -> None:
        posterior.reset(0.0, 1.0)
        torch.nn.init.zeros_(posterior.get_parameter("factor"))
        torch.nn.init.constant_(posterior.get_parameter("log_scale"), 0.5 * math.log(variance))


class TestFullGaussian(GaussianPosteriorSuite):
    build = staticmethod(FullGaussian)


class TestPlanarFlow(PosteriorSuite):
    build = staticmethod(functools.partial(PlanarFlow, num_flows=3))

    def kl_exactly(self, posterior: Posterior, prior: Prior) -> Tensor:
        """Give every replica the same noise, as separate posteriors with one seed have."""
        noise = torch.randn(8, *posterior.shape[-2:], generator=seeded(3), dtype=DTYPE)
        g, log_det = posterior.transform(noise.expand(*posterior.batch_shape, *noise.shape))
        mean_square = g.square().mean((-2, -1))
        return prior.kl(mean_square, log_det.sum(-1).mean(-1), posterior.num_entries)


class TestPointMass(PosteriorSuite):
    build = staticmethod(PointMass)

    def priors(self) -> list[str]:
        return ["fixed"]


# --- the KL of the diagonal as one autograd node -------------------------------------------------


@each_prior
@pytest.mark.parametrize("shape", [(2, 3), (3, 1, 4), (2, 3, 1, 2)])
def test_fused_kl_equals_the_plain_composition(prior_name: str, shape: tuple[int, ...]) -> None:
    posterior = scramble(DiagonalGaussian(shape, dtype=DTYPE))
    prior = PRIORS[prior_name](shape[:-2])
    parameters = [*posterior.parameters(), *prior.parameters()]
    fused, plain = posterior.kl(prior), Posterior.kl(posterior, prior)
    assert type(fused.grad_fn).__name__ == "_SumOfKLsBackward"
    torch.testing.assert_close(fused, plain, rtol=1e-13, atol=1e-13)
    weights = torch.arange(1.0, 1.0 + fused.numel(), dtype=DTYPE).view(fused.shape)
    fused_grads = torch.autograd.grad(fused, parameters, weights)
    plain_grads = torch.autograd.grad(plain, parameters, weights)
    for ours, theirs in zip(fused_grads, plain_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior_name", ["fixed", "empirical_bayes"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("size", [1, 7, 16, 63, 64, 65, 128, 130, 1001])
def test_fused_kl_of_many_entries_equals_float64(
    prior_name: str, dtype: torch.dtype, tolerance: float, size: int
) -> None:
    exact = scramble(DiagonalGaussian((2, 1, size), dtype=DTYPE), seed=size)
    with torch.no_grad():
        exact.log_scale[0, -1] = -20.0  # the last entry of a replica counts
        exact.loc[1, -1] = 30.0
        rounded = DiagonalGaussian((2, 1, size), dtype=dtype)
        for ours, theirs in zip(rounded.parameters(), exact.parameters(), strict=True):
            ours.copy_(theirs)
            theirs.copy_(ours)
    prior = PRIORS[prior_name]((2,))
    fused, plain = rounded.kl(prior), Posterior.kl(exact, prior)
    torch.testing.assert_close(fused.double(), plain.double(), rtol=tolerance, atol=tolerance)
    fused_grads = torch.autograd.grad(fused.sum(), list(rounded.parameters()))
    plain_grads = torch.autograd.grad(plain.sum(), list(exact.parameters()))
    for ours, theirs in zip(fused_grads, plain_grads, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


def test_kl_of_the_diagonal_works_under_functorch() -> None:
    posterior = scramble(DiagonalGaussian((4, 2, 3), dtype=DTYPE))
    alone = replica(posterior, DiagonalGaussian, 0)

    def kl(parameters: dict[str, Tensor]) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(alone, parameters):
            return alone.kl(EmpiricalBayesPrior())

    stacked = {name: p.detach() for name, p in posterior.named_parameters()}
    grads = torch.func.vmap(torch.func.grad(kl))(stacked)
    posterior.kl(EmpiricalBayesPrior()).sum().backward()
    for name, parameter in posterior.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad, rtol=1e-12, atol=1e-12)


def test_kl_of_the_diagonal_compiles_without_a_graph_break() -> None:
    posterior = scramble(DiagonalGaussian((2, 3), dtype=DTYPE))
    prior = EmpiricalBayesPrior()
    compiled = torch.compile(lambda: posterior.kl(prior), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(), posterior.kl(prior), rtol=1e-13, atol=0)


@settings(max_examples=50, deadline=None)
@given(loc=st.floats(-50, 50), log_scale=st.floats(-8, 4), variance=st.floats(1e-4, 1e4))
def test_diagonal_kl_of_one_entry_is_the_textbook_formula(
    loc: float, log_scale: float, variance: float
) -> None:
    posterior = DiagonalGaussian((1, 1), dtype=DTYPE)
    with torch.no_grad():
        posterior.loc.fill_(loc)
        posterior.log_scale.fill_(log_scale)
    ratio = math.exp(2 * log_scale) / variance
    expected = 0.5 * (ratio + loc**2 / variance - 1 - math.log(ratio))
    assert posterior.kl(FixedPrior(variance)).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


# --- the planar flow -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_flows", [1, 4])
@pytest.mark.parametrize("size", [0.5, 3.0])
def test_flow_log_det_is_that_of_the_jacobian(num_flows: int, size: float) -> None:
    flow = scramble(PlanarFlow((2, 4), num_flows=num_flows, dtype=DTYPE), size=size)
    noise = torch.randn(5, 2, 4, generator=seeded(1), dtype=DTYPE)
    log_det = flow.transform(noise)[1]
    for i in range(5):
        jacobian = torch.autograd.functional.jacobian(
            lambda e: flow.blocks(flow.transform(e.unsqueeze(0))[0][0]), noise[i]
        )
        for k in range(2):
            sign, expected = torch.linalg.slogdet(jacobian[k, :, k])
            assert sign == 1
            torch.testing.assert_close(log_det[i, k], expected, rtol=1e-9, atol=1e-9)


def test_planar_map_expands_where_it_should() -> None:
    """With wᵀû > 0 the map stretches at the plane (positive log-det), with wᵀû < 0 it shrinks."""
    w, b, origin = torch.tensor([1.0, 0.0]), torch.zeros(()), torch.zeros(2)
    assert planar_map(origin, torch.tensor([2.0, 0.0]), w, b)[1] > 0
    assert planar_map(origin, torch.tensor([-2.0, 0.0]), w, b)[1] < 0
    assert planar_map(origin, torch.zeros(2), w, b)[1].item() == pytest.approx(0, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.floats(1e-3, 30))
def test_planar_condition_holds_for_every_u_and_w(seed: int, size: float) -> None:
    u, w = size * torch.randn(2, 6, generator=seeded(seed), dtype=DTYPE)
    u_hat, one_plus_wu = invertible_direction(u, w)
    inner = (w * u_hat).sum()
    assert one_plus_wu > 0
    slack = 1e-12 * (1 + w.norm() * (u_hat.norm() + u.norm())).item()
    assert inner >= -1 - slack
    assert (1 + inner).item() == pytest.approx(one_plus_wu.item(), rel=1e-9, abs=slack)


def test_flow_is_one_to_one_along_the_direction_it_bends() -> None:
    w = torch.tensor([2.0, -1.0], dtype=DTYPE)
    u = -5 * w  # would fold space without the correction
    along = torch.linspace(-3, 3, 1001, dtype=DTYPE)[:, None] * w
    image, log_det = planar_map(along, u, w, torch.tensor(0.3, dtype=DTYPE))
    assert ((image @ w).diff() > 0).all()
    assert torch.isfinite(log_det).all()


def test_flow_log_det_stays_finite_far_beyond_rounding() -> None:
    w = torch.tensor([1.0, 0.0])
    log_det = planar_map(torch.zeros(2), -60 * w, w, torch.zeros(()))[1]
    assert log_det.item() == pytest.approx(-60 + math.log(math.e - 1), rel=1e-4)


def test_flow_with_zero_u_is_the_diagonal_gaussian() -> None:
    flow = scramble(PlanarFlow((2, 3), dtype=DTYPE))
    with torch.no_grad():
        flow.u.zero_()
    gaussian = DiagonalGaussian((2, 3), dtype=DTYPE)
    gaussian.load_state_dict({"loc": flow.loc, "log_scale": flow.log_scale})
    draws = [q.rsample((5,), generator=seeded()) for q in (flow, gaussian)]
    torch.testing.assert_close(*draws, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(flow.mean, gaussian.mean, rtol=1e-13, atol=1e-14)


def test_flow_mean_is_the_mean_of_its_draws_and_not_the_image_of_zero() -> None:
    flow = scramble(PlanarFlow((3, 2, 4), num_flows=2, dtype=DTYPE), size=1.0)
    state = torch.get_rng_state()
    with torch.no_grad():
        mean = flow.mean
        assert torch.equal(torch.get_rng_state(), state)
        draws = flow.rsample((40_000,), generator=seeded(2))
        image, _ = flow.transform(torch.zeros(3, 1, 2, 4, dtype=DTYPE))
    error = (mean - draws.mean(0)).abs()
    # 128 pairs: no worse than as many independent draws, so 4.5 deviations of their mean
    assert (error < 4.5 * draws.std(0) / math.sqrt(128)).all()
    assert error.norm() < 0.3 * (image.squeeze(1) - draws.mean(0)).norm()


@pytest.mark.parametrize("sampler", [WeightDraws, LocalReparameterization])
def test_flow_kl_draws_from_the_sampler_in_force(sampler: type) -> None:
    flow, prior = scramble(PlanarFlow((2, 3), dtype=DTYPE)), EmpiricalBayesPrior()
    state = torch.get_rng_state()
    values = []
    for _ in range(2):
        with sampling(sampler(generator=seeded(4))):
            values.append(flow.kl(prior))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*values)
    assert torch.equal(values[0], flow.kl(prior, generator=seeded(4)))


def test_flow_kl_matches_quadrature_in_one_dimension() -> None:
    flow = scramble(PlanarFlow((1, 1), num_flows=2, dtype=DTYPE), seed=3, size=1.0)
    prior = FixedPrior(0.7)
    grid = torch.linspace(-9, 9, 20_001, dtype=DTYPE)
    with torch.no_grad():
        g, log_det = flow.transform(grid.view(-1, 1, 1))
        base = normal_log_density(grid, 1.0)
        log_q = base - log_det[:, 0]
        log_p = normal_log_density(g[:, 0], 0.7)
        exact = torch.trapezoid(base.exp() * (log_q - log_p), grid)
        estimates = torch.stack(
            [flow.kl(prior, num_draws=500, generator=seeded(s)) for s in range(40)]
        )
    z = (estimates.mean() - exact) / (estimates.std() / math.sqrt(len(estimates)))
    assert exact > 0
    assert abs(z.item()) < 4


def test_flow_kl_gradient_matches_quadrature() -> None:
    """The log-determinant carries gradients: without them this expectation is far off."""
    flow = scramble(PlanarFlow((1, 1), num_flows=1, dtype=DTYPE), seed=3, size=1.0)
    grid = torch.linspace(-9, 9, 20_001, dtype=DTYPE)
    density = normal_log_density(grid, 1.0).exp()
    g, log_det = flow.transform(grid.view(-1, 1, 1))
    integrand = g[:, 0].square() / (2 * 0.7) - log_det[:, 0]
    parameters = list(flow.parameters())
    exact = torch.autograd.grad(torch.trapezoid(density * integrand, grid), parameters)
    estimates = [
        torch.autograd.grad(
            flow.kl(FixedPrior(0.7), num_draws=500, generator=seeded(s)), parameters
        )
        for s in range(40)
    ]
    for index, expected in enumerate(exact):
        values = torch.stack([grads[index].flatten() for grads in estimates])
        z = (values.mean(0) - expected.flatten()) / (values.std(0) / math.sqrt(40))
        assert z.abs().max() < 4.5


def test_flow_kl_sums_over_blocks_and_keeps_replicas_apart() -> None:
    """``KL = E[log q0(ε) − log |det ∂g/∂ε| − log p(g)]``, with ``E[log q0(ε)]`` exact."""
    flow = scramble(PlanarFlow((3, 2, 4), dtype=DTYPE))
    noise = torch.randn(3, 6, 2, 4, generator=seeded(1), dtype=DTYPE)
    g, log_det = flow.transform(noise)
    assert torch.equal(g, flow.draw((6,), seeded(1)))
    base_entropy = 8 * 0.5 * math.log(2 * math.pi * math.e)
    log_p = normal_log_density(g, 0.7).sum(-1)
    expected = (-log_det.sum(-1) - log_p).mean(-1) - base_entropy
    kl = flow.kl(FixedPrior(0.7), num_draws=6, generator=seeded(1))
    torch.testing.assert_close(kl, expected, rtol=1e-12, atol=1e-12)


def test_flow_kl_is_reproducible_and_takes_a_number_of_samples() -> None:
    flow = scramble(PlanarFlow((2, 3), dtype=DTYPE))
    first = flow.kl(EmpiricalBayesPrior(), num_draws=3, generator=seeded(1))
    second = flow.kl(EmpiricalBayesPrior(), num_draws=3, generator=seeded(1))
    assert torch.equal(first, second)
    with pytest.raises(ConfigError, match="num_draws"):
        flow.kl(EmpiricalBayesPrior(), num_draws=0)


def test_flow_says_what_it_cannot_give() -> None:
    flow = PlanarFlow((2, 3))
    with pytest.raises(NoClosedFormError, match="variance of a planar flow has no closed form"):
        _ = flow.variance
    with pytest.raises(NoClosedFormError, match="rsample"):
        flow.covariance()
    with pytest.raises(NoClosedFormError, match="entropy"):
        flow.entropy()


def test_flow_starts_with_nearly_the_scale_asked_for() -> None:
    flow = PlanarFlow((1, 32), dtype=DTYPE)
    flow.reset(1.4, 0.1, generator=seeded())
    std = flow.rsample((4000,), generator=seeded(1)).std(0)
    assert (std / 0.1 - 1).abs().max() < 0.2


# --- the point mass, sizes, construction ---------------------------------------------------------


def test_point_mass_kl_is_minus_the_log_prior_density() -> None:
    point = scramble(PointMass((3, 2, 4), dtype=DTYPE))
    log_p = normal_log_density(point.loc, 0.7).sum(-1)
    torch.testing.assert_close(point.kl(FixedPrior(0.7)), -log_p, rtol=1e-12, atol=0)
    assert (point.entropy() == -torch.inf).all()
    assert not point.variance.any()
    assert not point.covariance().any()


@pytest.mark.parametrize("prior", [EmpiricalBayesPrior(), LearnedPrior()])
def test_point_mass_refuses_a_prior_that_would_collapse(prior: Prior) -> None:
    with pytest.raises(ConfigError, match="needs a FixedPrior"):
        PointMass((2, 3)).kl(prior)


def test_full_gaussian_has_the_parameters_of_the_paper() -> None:
    size = 8
    count = sum(p.numel() for p in FullGaussian((1, size)).parameters())
    assert count == size + size * (size + 1) // 2


def test_full_gaussian_factor_is_lower_triangular_with_positive_diagonal() -> None:
    scale_tril = scramble(FullGaussian((2, 5), dtype=DTYPE)).scale_tril
    assert not scale_tril.triu(1).any()
    assert scale_tril.tril(-1).count_nonzero() == 2 * 10
    assert (scale_tril.diagonal(dim1=-2, dim2=-1) > 0).all()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("diagonal", DiagonalGaussian),
        ("low_rank", LowRankGaussian),
        ("full", FullGaussian),
        ("flow", PlanarFlow),
        ("point", PointMass),
    ],
)
def test_make_posterior_knows_every_name_and_class(name: str, kind: type[Posterior]) -> None:
    for spec in (name, kind):
        posterior = make_posterior(spec, (3, 2, 4), dtype=DTYPE)
        assert type(posterior) is kind
        assert posterior.shape == (3, 2, 4)
        assert posterior.loc.dtype == DTYPE


def test_make_posterior_takes_a_partial() -> None:
    posterior = make_posterior(functools.partial(LowRankGaussian, rank=3), (2, 4))
    assert posterior.get_parameter("factor").shape == (8, 3)


@pytest.mark.parametrize("wrong", ["mean_field", 3, DiagonalGaussian((2, 4))])
def test_make_posterior_refuses_anything_else(wrong: object) -> None:
    with pytest.raises(ConfigError, match="posterior must be"):
        make_posterior(wrong, (2, 4))


@pytest.mark.parametrize("kind", [LowRankGaussian, PlanarFlow])
def test_sizes_of_families_are_checked(kind: type[Posterior]) -> None:
    option = "rank" if kind is LowRankGaussian else "num_flows"
    with pytest.raises(ConfigError, match=option):
        kind((2, 4), **{option: 0})
