from __future__ import annotations

import math
import time
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from whvi import metrics
from whvi.errors import ConfigError, DataError, NumericalError, ShapeError
from whvi.predictive import Predictive, align_targets
from whvi.predictive.numerics import regularized_incomplete_beta

S, N = 6, 7
RNG = np.random.default_rng(0)
LOC, SCALE = RNG.normal(3, 2, (S, N)), RNG.uniform(0.2, 1.5, (S, N))
DF = RNG.uniform(2.5, 30, (S, N))
RATE = RNG.uniform(0.1, 20, (S, N))
LOGITS = RNG.normal(0, 1.5, (S, N))


def tensor(x: object) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


# Each family beside scipy's frozen distribution of its components.
FAMILIES: dict[str, tuple[Callable[[], Predictive], object]] = {
    "gaussian": (
        lambda: Predictive.gaussian(tensor(LOC), tensor(SCALE)),
        scipy.stats.norm(LOC, SCALE),
    ),
    "student_t": (
        lambda: Predictive.student_t(tensor(LOC), tensor(SCALE), tensor(DF)),
        scipy.stats.t(DF, LOC, SCALE),
    ),
    "poisson": (lambda: Predictive.poisson(tensor(RATE)), scipy.stats.poisson(RATE)),
    "bernoulli": (
        lambda: Predictive.bernoulli(tensor(LOGITS)),
        scipy.stats.bernoulli(scipy.special.expit(LOGITS)),
    ),
}
CONTINUOUS = ["gaussian", "student_t"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Predictive, object]:
    make, oracle = FAMILIES[request.param]
    return make(), oracle


def test_moments_follow_the_law_of_total_variance(family: tuple[Predictive, object]) -> None:
    predictive, oracle = family
    np.testing.assert_allclose(predictive.mean, oracle.mean().mean(0))
    between, within = oracle.mean().var(0), oracle.var().mean(0)
    np.testing.assert_allclose(predictive.epistemic, np.sqrt(between))
    np.testing.assert_allclose(predictive.aleatoric, np.sqrt(within))
    np.testing.assert_allclose(predictive.variance, between + within)
    np.testing.assert_allclose(predictive.std, np.sqrt(between + within))
    total = predictive.epistemic**2 + predictive.aleatoric**2
    torch.testing.assert_close(predictive.variance, total)


def test_cdf_and_log_prob_equal_scipys(family: tuple[Predictive, object]) -> None:
    predictive, oracle = family
    log = getattr(oracle, "logpdf" if not predictive.discrete else "logpmf")
    for y in (np.arange(N) - 1.0, np.full(N, 1.0), np.full(N, 0.5), np.full(N, -40.0)):
        np.testing.assert_allclose(predictive.cdf(tensor(y)), oracle.cdf(y).mean(0), atol=1e-13)
        expected = scipy.special.logsumexp(log(y), axis=0) - math.log(S)
        np.testing.assert_allclose(predictive.log_prob(tensor(y)), expected, rtol=1e-9)
    np.testing.assert_allclose(predictive.cdf(0.3), oracle.cdf(0.3).mean(0), rtol=1e-12)
    assert predictive.cdf(math.inf).tolist() == [1.0] * N
    assert predictive.cdf(-math.inf).tolist() == [0.0] * N
    assert predictive.cdf(math.nan).isnan().all()
    assert predictive.log_prob(torch.full((N,), math.nan)).isnan().all()
    assert predictive.log_prob(torch.full((N,), math.inf)).tolist() == [-math.inf] * N


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("q", [1e-6, 0.025, 0.5, 0.9, 1 - 1e-6])
def test_quantile_inverts_the_cdf(name: str, q: float) -> None:
    predictive = FAMILIES[name][0]()
    y = predictive.quantile(q)
    assert y.shape == (N,)
    np.testing.assert_allclose(predictive.cdf(y), q, rtol=1e-10, atol=1e-14)
    # Against another root finder on another cdf.
    oracle = FAMILIES[name][1]
    for n in range(N):
        root = scipy.optimize.brentq(
            lambda x, n=n: oracle.cdf(x).mean(0)[n] - q, -1e5, 1e5, xtol=1e-12
        )
        np.testing.assert_allclose(y[n], root, rtol=1e-6 if q > 0.99 else 1e-9)


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.5, 0.77, 1 - 1e-9])
@pytest.mark.parametrize("name", ["poisson", "bernoulli"])
def test_discrete_quantile_is_the_smallest_integer(name: str, q: float) -> None:
    make, oracle = FAMILIES[name]
    grid = np.arange(120)
    cdf = np.stack([oracle.cdf(k).mean(0) for k in grid])
    expected = (cdf >= q).argmax(0)
    assert make().quantile(q).tolist() == expected.tolist()


def test_single_component_quantiles_are_scipys() -> None:
    levels = [0.001, 0.3, 0.5, 0.999]
    y = Predictive.student_t(tensor(LOC[:1]), tensor(SCALE[:1]), tensor(DF[:1])).quantile(levels)
    expected = scipy.stats.t.ppf(np.array(levels)[:, None], DF[0], LOC[0], SCALE[0])
    assert y.shape == (4, N)
    np.testing.assert_allclose(y, expected, rtol=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    gap=st.floats(0, 1e6),
    ratio=st.floats(1e-6, 1e6),
    q=st.floats(1e-4, 1 - 1e-4),
    unit=st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_quantiles_of_awkward_mixtures(gap: float, ratio: float, q: float, unit: float) -> None:
    """Two modes far apart and of very different width; the cdf may be flat in between."""
    loc, scale = tensor([[0.0], [gap]]) * unit, tensor([[1.0], [ratio]]) * unit
    predictive = Predictive.gaussian(loc, scale)
    y = predictive.quantile(q)
    step = 1e-12 * (y.abs() + predictive.std)
    assert predictive.cdf(y - step) <= q + 1e-12
    assert predictive.cdf(y + step) >= q - 1e-12


def test_quantiles_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    predictive = FAMILIES["gaussian"][0]()
    whole = predictive.quantile(0.3)
    monkeypatch.setattr("whvi.predictive.mixture._CHUNK_ELEMENTS", 2 * S)
    torch.testing.assert_close(predictive.quantile(0.3), whole, rtol=1e-14, atol=0)


def test_a_row_has_the_same_quantile_alone_and_among_others() -> None:
    """Up to rounding: entries that have converged must not move on while others still do."""
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(8, 200, generator=generator) * torch.logspace(-6, 6, 200)
    predictive = Predictive.gaussian(loc, torch.rand(8, 200, generator=generator) + 1e-3)
    together = predictive.quantile(0.9)
    alone = [predictive[k : k + 1].quantile(0.9) for k in range(200)]
    assert ((torch.cat(alone) - together).abs() <= 1e-12 * predictive.std).all()


def test_quantiles_of_many_rows_are_quick() -> None:
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(50, 2000, generator=generator)
    start = time.process_time()
    Predictive.student_t(loc, torch.ones_like(loc), torch.full_like(loc, 4.0)).interval(0.95)
    assert time.process_time() - start < 20  # about 2 s; bisection alone would take a minute


def test_interval_is_central() -> None:
    predictive = FAMILIES["gaussian"][0]()
    lower, upper = predictive.interval(0.9)
    np.testing.assert_allclose(predictive.cdf(lower), 0.05)
    np.testing.assert_allclose(predictive.cdf(upper), 0.95)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, math.nan, [0.5, 2.0]])
def test_levels_outside_the_open_interval_are_refused(q: object) -> None:
    predictive = FAMILIES["gaussian"][0]()
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        predictive.quantile(q)
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        predictive.interval(q if isinstance(q, float) else 1.5)


def test_samples_have_the_mixtures_distribution(family: tuple[Predictive, object]) -> None:
    predictive, _ = family
    num = 4000
    y = predictive.sample(num, generator=torch.Generator().manual_seed(3))
    assert y.shape == (num, N)
    error = (y.mean(0) - predictive.mean) / (predictive.std / math.sqrt(num))
    assert error.abs().max() < 5  # standard errors
    cut = predictive.quantile(0.7)
    share, exact = (y <= cut).double().mean(0), predictive.cdf(cut)
    assert ((share - exact).abs() < 5 * 0.5 / math.sqrt(num)).all()
    again = predictive.sample(num, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again, y)
    with pytest.raises(ConfigError, match="num_draws must be an integer of at least 1, got 0"):
        predictive.sample(num_draws=0)


def test_a_sample_follows_one_draw_through_all_rows() -> None:
    loc = torch.arange(4.0)[:, None, None].expand(4, 9, 2)
    y = Predictive.gaussian(loc, torch.tensor(1e-6)).sample(20)
    assert y.shape == (20, 9, 2)
    assert (y.round() == y[:, :1, :1].round()).all()
    assert len(y[:, 0, 0].round().unique()) > 1


def test_replica_samples_stay_in_their_replica() -> None:
    loc = torch.tensor([0.0, 10.0])[:, None, None] + torch.arange(3.0)[:, None]
    y = Predictive.gaussian(loc.expand(2, 3, 5), torch.tensor(1e-6), batch_dims=1).sample(30)
    assert y.shape == (30, 2, 5)
    assert (y[:, 0] < 5).all()
    assert (y[:, 1] > 5).all()


@pytest.mark.parametrize("df", [2.01, 3.0, 7.5, 100.0, 1e4, 1e6])
def test_student_t_cdf_equals_scipys(df: float) -> None:
    t = np.concatenate([-np.logspace(-8, 6, 60), [0.0], np.logspace(-8, 6, 60)])
    n = len(t)
    predictive = Predictive.student_t(
        torch.zeros(1, n), torch.ones(1, n), torch.full((1, n), df, dtype=torch.float64)
    )
    # Relative accuracy also in the far tail; lgamma of a large df costs df·eps.
    rtol = 1e-11 + 20 * df * np.finfo(float).eps
    expected = scipy.stats.t.cdf(t, df)
    np.testing.assert_allclose(predictive.cdf(tensor(t)), expected, rtol=rtol, atol=1e-300)


@settings(max_examples=100, deadline=None)
@given(a=st.floats(0.01, 1e3), b=st.floats(0.01, 1e3), x=st.floats(0, 1, allow_subnormal=False))
def test_incomplete_beta_equals_scipys(a: float, b: float, x: float) -> None:
    ours = regularized_incomplete_beta(*(tensor([v]) for v in (a, b, x, 1 - x)))
    expected = scipy.special.betainc(a, b, x)
    np.testing.assert_allclose(ours, [expected], rtol=1e-9, atol=1e-14)


def test_student_t_cdf_propagates_nan() -> None:
    predictive = FAMILIES["student_t"][0]()
    assert predictive.cdf(torch.full((N,), math.nan)).isnan().all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_log_prob_by_log_sum_exp_equals_mpmath(scale: float) -> None:
    """Draws whose densities underflow: exp(-800²/2) is zero in floats, its log is not."""
    locs, y = [800.0, -900.0, 1000.0, 0.5], -100.0
    with mpmath.workdps(50):
        densities = [mpmath.npdf(y, m, 1) for m in locs]
        exact = float(mpmath.log(mpmath.fsum(densities) / 4)) - math.log(scale)
    predictive = Predictive.gaussian(tensor(locs)[:, None] * scale, tensor([[scale]]))
    np.testing.assert_allclose(predictive.log_prob(tensor([y * scale])), [exact], rtol=1e-12)


def test_outputs_of_a_row_count_jointly() -> None:
    """Draws tie the outputs together: the joint density is no product of the marginals."""
    loc, scale = RNG.normal(size=(S, N, 2)), RNG.uniform(0.5, 1, (S, N, 2))
    y = RNG.normal(size=(N, 2))
    predictive = Predictive.gaussian(tensor(loc), tensor(scale))
    expected = np.log(np.exp(scipy.stats.norm.logpdf(y, loc, scale).sum(-1)).mean(0))
    np.testing.assert_allclose(predictive.log_prob(tensor(y)), expected)
    assert predictive.mean.shape == predictive.quantile(0.5).shape == (N, 2)
    np.testing.assert_allclose(
        predictive.cdf(tensor(y)), scipy.stats.norm.cdf(y, loc, scale).mean(0)
    )


# Classes


def test_class_probabilities_and_uncertainty() -> None:
    logits = RNG.normal(0, 2, (S, N, 4))
    predictive = Predictive.categorical(tensor(logits))
    p = scipy.special.softmax(logits, -1)
    np.testing.assert_allclose(predictive.probs, p.mean(0))
    assert predictive.mode.tolist() == p.mean(0).argmax(-1).tolist()
    total, within = scipy.stats.entropy(p.mean(0), axis=-1), scipy.stats.entropy(p, axis=-1)
    np.testing.assert_allclose(predictive.entropy(), total)
    np.testing.assert_allclose(predictive.mutual_information(), total - within.mean(0))
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    expected = np.log(p.mean(0)[np.arange(N), y])
    np.testing.assert_allclose(predictive.log_prob(y), expected)
    assert predictive.log_prob(torch.full((N,), 4)).tolist() == [-math.inf] * N
    draws = predictive.sample(3000, generator=torch.Generator().manual_seed(0))
    share = torch.stack([(draws == c).double().mean(0) for c in range(4)], -1)
    assert (share - predictive.probs).abs().max() < 5 * 0.5 / math.sqrt(3000)


def test_bernoulli_classes_are_two() -> None:
    predictive = FAMILIES["bernoulli"][0]()
    p = scipy.special.expit(LOGITS).mean(0)
    np.testing.assert_allclose(predictive.probs, np.stack([1 - p, p], -1))
    np.testing.assert_allclose(predictive.entropy(), scipy.stats.bernoulli(p).entropy())


def test_confident_draws_that_disagree_are_all_mutual_information() -> None:
    logits = tensor([[[1e4, -1e4]], [[-1e4, 1e4]]])
    predictive = Predictive.categorical(logits)
    np.testing.assert_allclose(predictive.mutual_information(), [math.log(2)])
    assert Predictive.categorical(logits[:1]).mutual_information().tolist() == [0.0]


def test_questions_without_an_answer_are_refused() -> None:
    labels = Predictive.categorical(torch.zeros(S, N, 3))
    for ask in (
        lambda: labels.mean,
        lambda: labels.std,
        lambda: labels.quantile(0.5),
        lambda: labels.cdf(0.0),
    ):
        with pytest.raises(ConfigError, match="a categorical predictive has no"):
            ask()
    for ask in ("probs", "mode"):
        with pytest.raises(ConfigError, match="for labels"):
            getattr(FAMILIES["gaussian"][0](), ask)


# Rows, replicas, input validation


def test_rows_and_cat(family: tuple[Predictive, object]) -> None:
    predictive, _ = family
    y = torch.ones(N)
    whole = predictive.log_prob(y)
    for rows in (slice(2, 5), [4, 1], torch.tensor([0, 6]), torch.arange(N) > 3):
        assert torch.equal(predictive[rows].log_prob(y[rows]), whole[rows])
    assert torch.equal(predictive[-1].mean, predictive.mean[-1:])
    joined = Predictive.cat([predictive[:3], predictive[3:4], predictive[4:]])
    assert torch.equal(joined.log_prob(y), whole)
    assert len(joined) == N
    with pytest.raises(IndexError, match="row 7"):
        predictive[N]


def test_replicas_pool_and_unbind() -> None:
    loc, scale = tensor(RNG.normal(size=(3, S, N, 2))), tensor(RNG.uniform(1, 2, (3, S, N, 2)))
    predictive = Predictive.gaussian(loc, scale, batch_dims=1)
    assert predictive.mean.shape == predictive.quantile(0.2).shape == (3, N, 2)
    assert predictive.quantile([0.2, 0.4]).shape == (2, 3, N, 2)
    assert predictive.log_prob(torch.zeros(N, 2)).shape == (3, N)
    torch.testing.assert_close(predictive.pool().mean, loc.mean((0, 1)))
    torch.testing.assert_close(predictive.pool().epistemic, loc.std((0, 1), correction=0))
    for r, one in enumerate(predictive.unbind()):
        torch.testing.assert_close(one.quantile(0.2), predictive.quantile(0.2)[r])
    parts = [predictive[:2], predictive[2:]]
    assert torch.equal(Predictive.cat(parts).std, predictive.std)
    with pytest.raises(ShapeError, match="no replicas"):
        predictive.pool().unbind()


def test_cat_refuses_different_predictives() -> None:
    gaussian, poisson = FAMILIES["gaussian"][0](), FAMILIES["poisson"][0]()
    for parts in ([gaussian, poisson], [gaussian, Predictive.gaussian(*[torch.ones(2, N)] * 2)]):
        with pytest.raises(ShapeError, match="cannot join"):
            Predictive.cat(parts)
    with pytest.raises(ShapeError, match="empty"):
        Predictive.cat([])


def test_bad_parameters_are_refused() -> None:
    one = torch.ones(S, N)
    with pytest.raises(NumericalError, match=r"loc holds 1 .*nan at index \(0, 3\)"):
        Predictive.gaussian(one / (torch.arange(S * N).reshape(S, N) != 3) * one.log(), one)
    with pytest.raises(DataError, match=r"scale must be above 0, got 0\.0"):
        Predictive.gaussian(one, 0 * one)
    with pytest.raises(DataError, match="df must be above 2"):
        Predictive.student_t(one, one, 2 * one)
    with pytest.raises(DataError, match="rate must be at least 0"):
        Predictive.poisson(-one)
    with pytest.raises(ShapeError, match=r"\(6, 7\).*\(5,\)"):
        Predictive.gaussian(one, torch.ones(5))
    for wrong in (torch.ones(3), torch.ones(0, 3), torch.ones(1, 1, 1, 1)):
        with pytest.raises(ShapeError, match="expected"):
            Predictive.poisson(wrong)
    with pytest.raises(ShapeError, match="expected"):
        Predictive.categorical(torch.ones(3, 4))


def test_targets_of_another_shape_are_refused() -> None:
    predictive = FAMILIES["gaussian"][0]()
    assert predictive.log_prob(torch.zeros(N, 1)).shape == (N,)
    for wrong in (torch.zeros(1, N), torch.zeros(N + 1), torch.zeros(1), torch.zeros(N, 2)):
        with pytest.raises(ShapeError, match="reshape the targets"):
            predictive.log_prob(wrong)
        with pytest.raises(ShapeError, match="reshape the targets"):
            predictive.cdf(wrong)


def test_align_targets_knows_its_axes() -> None:
    assert align_targets(torch.zeros(5), (), 5, 1).shape == (1, 5, 1)
    assert align_targets(torch.zeros(3, 5), (3,), 5, 1).shape == (3, 1, 5, 1)
    assert align_targets(torch.zeros(3, 5, 2), (3,), 5, 2).shape == (3, 1, 5, 2)
    assert align_targets(torch.zeros(5, 2), (3,), 5, 2).shape == (1, 5, 2)
    with pytest.raises(ShapeError, match=r"shape \(5,\).*2 output"):
        align_targets(torch.zeros(5), (), 5, 2)


def test_mean_is_differentiable_and_results_are_float64() -> None:
    loc = torch.randn(S, N, requires_grad=True)
    predictive = Predictive.gaussian(loc, torch.tensor(1.0))
    predictive.mean.sum().backward()
    torch.testing.assert_close(loc.grad, torch.full((S, N), 1 / S))
    assert predictive.mean.dtype == predictive.quantile(0.5).dtype == torch.float64
    assert not predictive.quantile(0.5).requires_grad


def test_zero_rows() -> None:
    predictive = FAMILIES["gaussian"][0]()[:0]
    assert len(predictive) == 0
    assert predictive.quantile(0.5).shape == (0,)
    assert Predictive.cat([predictive, FAMILIES["gaussian"][0]()]).num_rows == N


def test_repr_names_family_and_sizes() -> None:
    assert repr(FAMILIES["poisson"][0]()) == (
        "Predictive(Poisson, batch_shape=(), num_components=6, num_rows=7, num_outputs=1)"
    )


# Weights -----------------------------------------------------------------------------------------


def two_parts(generator, num_rows=7):
    loc = torch.randn(5, num_rows, generator=generator, dtype=torch.float64)
    near = Predictive.gaussian(loc[:3], torch.full_like(loc[:3], 0.3))
    far = Predictive.gaussian(loc[3:], torch.full_like(loc[3:], 2.0), torch.full_like(loc[3:], 1.9))
    share = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    return near, far, share


def test_mix_is_the_weighted_sum_of_densities(generator):
    near, far, share = two_parts(generator)
    y = torch.randn(7, generator=generator, dtype=torch.float64)
    mixed = Predictive.mix([near, far], [1 - share, share])
    density = (1 - share) * near.log_prob(y).exp() + share * far.log_prob(y).exp()
    torch.testing.assert_close(mixed.log_prob(y), density.log())
    torch.testing.assert_close(mixed.cdf(y), (1 - share) * near.cdf(y) + share * far.cdf(y))
    torch.testing.assert_close(mixed.mean, (1 - share) * near.mean + share * far.mean)
    second = (1 - share) * (near.variance + near.mean**2) + share * (far.variance + far.mean**2)
    torch.testing.assert_close(mixed.variance, second - mixed.mean**2)
    torch.testing.assert_close(mixed.cdf(mixed.quantile(0.3)), torch.full_like(share, 0.3))
    torch.testing.assert_close(mixed.variance, mixed.epistemic**2 + mixed.aleatoric**2)
    noise = (1 - share) * 0.3**2 + share * (2.0**2 - 1.9**2)
    torch.testing.assert_close(mixed.aleatoric, noise.sqrt())


def test_equal_shares_are_the_plain_mixture(generator):
    loc = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    scale = torch.rand(4, 6, generator=generator, dtype=torch.float64) + 0.1
    y = torch.randn(6, generator=generator, dtype=torch.float64)
    whole = Predictive.gaussian(loc, scale)
    parts = [Predictive.gaussian(loc[k : k + 2], scale[k : k + 2]) for k in (0, 2)]
    mixed = Predictive.mix(parts, [0.5, 0.5])
    for name in ("mean", "std", "epistemic", "aleatoric"):
        torch.testing.assert_close(getattr(mixed, name), getattr(whole, name))
    torch.testing.assert_close(mixed.log_prob(y), whole.log_prob(y))
    torch.testing.assert_close(metrics.crps(mixed, y), metrics.crps(whole, y))


def test_weights_follow_rows_and_replicas(generator):
    near, far, share = two_parts(generator)
    mixed = Predictive.mix([near, far], [1 - share, share])
    y = torch.randn(7, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(mixed[[5, 1]].log_prob(y[[5, 1]]), mixed.log_prob(y)[[5, 1]])
    again = Predictive.cat([mixed[:3], mixed[3:]])
    torch.testing.assert_close(again.log_prob(y), mixed.log_prob(y))
    stacked = Predictive(
        type(mixed._components)(*(torch.stack([p, p + 1]) for p in mixed._components.parameters)),
        batch_dims=1,
        weights=torch.stack([mixed.weights, mixed.weights.flip(0)]),
    )
    first, second = stacked.unbind()
    torch.testing.assert_close(first.log_prob(y), mixed.log_prob(y))
    density = (first.log_prob(y).exp() + second.log_prob(y).exp()) / 2
    torch.testing.assert_close(stacked.pool().log_prob(y), density.log())


def test_draws_of_a_weighted_mixture_have_its_moments(generator):
    near, far, share = two_parts(generator)
    mixed = Predictive.mix([near, far], [1 - share, share])
    draws = mixed.sample(200_000, generator=generator)
    assert draws.shape == (200_000, 7)
    torch.testing.assert_close(draws.mean(0), mixed.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(draws.std(0), mixed.std, atol=0.03, rtol=0.02)


def test_crps_of_a_weighted_mixture_is_that_of_its_cdf(generator):
    near, far, share = two_parts(generator)
    mixed = Predictive.mix([near, far], [1 - share, share])
    y = torch.randn(7, generator=generator, dtype=torch.float64)
    grid = torch.linspace(-40, 40, 40_001, dtype=torch.float64)
    cdf = torch.stack([mixed.cdf(float(at)) for at in grid])
    exact = torch.trapezoid((cdf - (y <= grid[:, None]).double()).square(), grid, dim=0).mean()
    torch.testing.assert_close(metrics.crps(mixed, y), exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.2, -0.2]])
def test_mix_refuses_weights_that_are_none(generator, weights):
    near, far, _ = two_parts(generator)
    with pytest.raises(ConfigError, match="sum to 1"):
        Predictive.mix([near, far], weights)


def test_mix_refuses_other_rows_and_families(generator):
    near, far, _ = two_parts(generator)
    with pytest.raises(ShapeError, match="cannot mix"):
        Predictive.mix([near, far[:3]], [0.5, 0.5])
    with pytest.raises(ShapeError, match="cannot mix"):
        Predictive.mix([near, Predictive.poisson(torch.ones(2, 7))], [0.5, 0.5])


def test_a_spread_is_part_of_the_scale():
    with pytest.raises(DataError, match="spread must be between 0 and scale"):
        Predictive.gaussian(torch.zeros(1, 2), torch.ones(1, 2), torch.full((1, 2), 1.5))


# --- as a distribution of torch ------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FAMILIES, "categorical"])
def test_the_distribution_is_the_same_mixture(name: str) -> None:
    if name == "categorical":
        logits = torch.randn(S, N, 3, generator=torch.Generator().manual_seed(0))
        predictive = Predictive.categorical(logits)
    else:
        predictive = FAMILIES[name][0]()
    view = predictive.as_distribution()
    assert view.batch_shape == (N,)
    y = view.sample()
    torch.testing.assert_close(view.log_prob(y), predictive.log_prob(y))
    if name != "categorical":
        torch.testing.assert_close(view.mean, predictive.mean)
        torch.testing.assert_close(view.variance, predictive.variance)


def test_the_distribution_of_replicas_and_outputs() -> None:
    loc = torch.randn(2, S, N, 3, generator=torch.Generator().manual_seed(0))
    predictive = Predictive.gaussian(loc, loc.abs() + 0.1, batch_dims=1)
    view = predictive.as_distribution()
    assert (view.batch_shape, view.event_shape) == ((2, N), (3,))
    y = view.sample((4,))
    found = torch.stack([predictive.log_prob(each) for each in y])
    torch.testing.assert_close(view.log_prob(y), found)


def test_the_distribution_has_the_weights(generator: torch.Generator) -> None:
    near, far, share = two_parts(generator)
    mixed = Predictive.mix([near, far], [1 - share, share])
    y = torch.randn(7, generator=generator, dtype=torch.float64)
    view = mixed.as_distribution()
    torch.testing.assert_close(view.log_prob(y), mixed.log_prob(y))
    torch.testing.assert_close(view.mean, mixed.mean)


def test_component_means_average_to_the_mean():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = Predictive.poisson(logits.exp())
    torch.testing.assert_close(counts.component_means(), logits.exp())
    torch.testing.assert_close(counts.component_means().mean(0), counts.mean)
    labels = Predictive.bernoulli(logits)
    assert labels.component_means().shape == (4, 3, 2)
    torch.testing.assert_close(labels.component_means().mean(0), labels.probs)
