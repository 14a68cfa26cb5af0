from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.conformance.likelihood_suite import Case, LikelihoodSuite, check_vjp, scramble, values
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.likelihoods import (
    BalancedGradients,
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)


def real(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(1.0, 2.0, shape))


def counts(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).poisson(2.0, shape))


def binary(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 2, shape))


def classes(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 4, shape))


def located(likelihood: Likelihood, mean: Tensor) -> np.ndarray:
    return (mean * likelihood.target_scale + likelihood.target_mean).detach().numpy()


def gaussian_oracle(likelihood: Gaussian, f: Tensor, y: Tensor) -> Tensor:
    std = ((likelihood.log_noise_variance / 2).exp() * likelihood.target_scale).detach().numpy()
    return torch.from_numpy(scipy.stats.norm.logpdf(y.numpy(), located(likelihood, f), std))


def heteroscedastic_oracle(likelihood: HeteroscedasticGaussian, f: Tensor, y: Tensor) -> Tensor:
    half = f.shape[-1] // 2
    raw = (f[..., half:] + likelihood.log_noise_variance).detach().numpy()
    std = np.exp(0.5 * 15 * np.tanh(raw / 15)) * likelihood.target_scale.numpy()
    loc = located(likelihood, f[..., :half])
    return torch.from_numpy(scipy.stats.norm.logpdf(y.numpy(), loc, std))


def student_oracle(likelihood: StudentT, f: Tensor, y: Tensor) -> Tensor:
    scale = ((likelihood.log_squared_scale / 2).exp() * likelihood.target_scale).detach().numpy()
    df = 2.01 + np.log1p(np.exp(likelihood.raw_df.detach().numpy()))
    return torch.from_numpy(scipy.stats.t.logpdf(y.numpy(), df, located(likelihood, f), scale))


def poisson_oracle(likelihood: Poisson, f: Tensor, y: Tensor) -> Tensor:
    rate = (f + likelihood.target_log_mean).exp().numpy()
    return torch.from_numpy(scipy.stats.poisson.logpmf(y.numpy(), rate))


def bernoulli_oracle(likelihood: Bernoulli, f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Bernoulli(logits=f).log_prob(y.double())


def categorical_oracle(likelihood: Categorical, f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Categorical(logits=f).log_prob(y[:, 0]).unsqueeze(-1)


LINE = torch.linspace(-400, 400, 400_001, dtype=torch.float64)
COUNTS = torch.arange(200)


class TestGaussian(LikelihoodSuite):
    case = Case(Gaussian, real, gaussian_oracle, LINE)


class TestGaussianOutputs(LikelihoodSuite):
    case = Case(lambda **o: Gaussian(2, **o), real, gaussian_oracle, LINE)


class TestHeteroscedastic(LikelihoodSuite):
    case = Case(HeteroscedasticGaussian, real, heteroscedastic_oracle, LINE)


class TestHeteroscedasticOutputs(LikelihoodSuite):
    case = Case(lambda **o: HeteroscedasticGaussian(2, **o), real, heteroscedastic_oracle, LINE)


class TestStudentT(LikelihoodSuite):
    case = Case(StudentT, real, student_oracle, LINE)


class TestStudentTFixed(LikelihoodSuite):
    case = Case(lambda **o: StudentT(2, df=7.0, learn_df=False, **o), real, student_oracle, LINE)


class TestPoisson(LikelihoodSuite):
    case = Case(Poisson, counts, poisson_oracle, COUNTS, discrete=True)


class TestPoissonOutputs(LikelihoodSuite):
    case = Case(lambda **o: Poisson(2, **o), counts, poisson_oracle, COUNTS, discrete=True)


class TestBernoulli(LikelihoodSuite):
    case = Case(Bernoulli, binary, bernoulli_oracle, torch.arange(2), discrete=True)


class TestBernoulliOutputs(LikelihoodSuite):
    case = Case(lambda **o: Bernoulli(2, **o), binary, bernoulli_oracle, COUNTS, discrete=True)


class TestCategorical(LikelihoodSuite):
    case = Case(lambda **o: Categorical(4, **o), classes, categorical_oracle, torch.arange(4), True)


def test_initial_noise_is_a_log_variance_of_minus_two() -> None:
    likelihood = Gaussian(2, batch_shape=(3,))
    assert likelihood.log_noise_variance.shape == (3, 2)
    expected = torch.full((3, 2), math.exp(-1))  # the standard deviation, not the variance
    torch.testing.assert_close(likelihood.noise_scale.detach(), expected)
    likelihood.target_scale.fill_(10.0)
    torch.testing.assert_close(likelihood.noise_scale.detach(), 10 * expected)


@pytest.mark.parametrize("kind", [Gaussian, HeteroscedasticGaussian, StudentT])
def test_parameters_are_floats(kind: type[Likelihood]) -> None:
    with pytest.raises(ConfigError, match=r"floating-point type .* got torch\.int32"):
        kind(dtype=torch.int32)


def test_student_t_options() -> None:
    likelihood = StudentT(df=5.0, log_squared_scale=0.0)
    torch.testing.assert_close(likelihood.df.detach(), torch.tensor([5.0]))
    torch.testing.assert_close(likelihood.noise_scale.detach(), torch.tensor([5 / 3]).sqrt())
    assert len(likelihood.noise_parameters()) == 2
    assert len(StudentT(learn_df=False).noise_parameters()) == 1
    for df in (2.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="df must be"):
            StudentT(df=df)


def test_large_df_in_float32_is_the_gaussian() -> None:
    # lgamma(5e5) is 6e6: its float32 difference would be wrong by half a nat.
    t = StudentT(df=1e6, learn_df=False, log_squared_scale=-2.0)
    f, y = torch.zeros(1, 3, 1), torch.tensor([0.0, 0.5, 1.0])
    torch.testing.assert_close(t.log_prob(f, y), Gaussian().log_prob(f, y), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [Gaussian, HeteroscedasticGaussian, StudentT])
@settings(max_examples=25, deadline=None)
@given(exponent=st.integers(-30, 30), offset=st.sampled_from([0.0, 3.0]))
def test_extreme_units(kind: type[Likelihood], exponent: int, offset: float) -> None:
    """Changing the unit of y moves log p by the log of the unit, from 1e-30 to 1e30, float32."""
    z = torch.from_numpy(np.random.default_rng(3).normal(offset, 1, 20))
    f = torch.zeros(2, 20, kind().num_features)
    plain, scaled, unit = kind(), kind(), 10.0**exponent
    plain.set_target_scaling(z)
    scaled.set_target_scaling(z * unit)
    expected = plain.log_prob(f, z) - math.log(unit)
    torch.testing.assert_close(scaled.log_prob(f, z * unit), expected, rtol=1e-5, atol=1e-4)
    predictive = scaled.predictive(f)
    for name in ("mean", "std", "aleatoric"):
        ours, theirs = getattr(predictive, name) / unit, getattr(plain.predictive(f), name)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Gaussian, HeteroscedasticGaussian, StudentT])
def test_target_scaling(kind: type[Likelihood]) -> None:
    likelihood = kind(2, batch_shape=(3,))
    y = np.random.default_rng(1).normal(5, [2, 7], (3, 40, 2))
    likelihood.set_target_scaling(torch.from_numpy(y))
    np.testing.assert_allclose(likelihood.target_mean, y.mean(1), rtol=1e-6)
    np.testing.assert_allclose(likelihood.target_scale, y.std(1), rtol=1e-6)
    likelihood.set_target_scaling(torch.from_numpy(y[0]))
    np.testing.assert_allclose(likelihood.target_scale, y[[0, 0, 0]].std(1), rtol=1e-6)
    single = kind(batch_shape=(3,))
    single.set_target_scaling(torch.from_numpy(y[..., 0]))
    np.testing.assert_allclose(single.target_mean, y[..., :1].mean(1), rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e30, 1e-30])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_constant_targets_have_scale_one(value: float, num_rows: int) -> None:
    likelihood = Gaussian()
    likelihood.set_target_scaling(torch.full((num_rows,), value))
    assert likelihood.target_scale.tolist() == [1.0]
    assert likelihood.target_mean.item() == torch.tensor(value).item()


def test_target_scaling_refuses_what_it_cannot_use() -> None:
    likelihood = Gaussian(2)
    with pytest.raises(ShapeError, match=r"\(4,\).*\(N, 2\)"):
        likelihood.set_target_scaling(torch.zeros(4))
    with pytest.raises(DataError, match="zero rows"):
        likelihood.set_target_scaling(torch.zeros(0, 2))
    with pytest.raises(DataError, match="not finite"):
        likelihood.set_target_scaling(torch.tensor([[0.0, math.inf]]))
    with pytest.raises(DataError, match=r"outside the range of torch\.float32"):
        likelihood.set_target_scaling(
            torch.tensor([[0.0, 1e60], [1.0, -1e60]], dtype=torch.float64)
        )


def test_row_vector_never_meets_column_vector() -> None:
    """(N,) against (N, 1) gives (S, N), never N × N."""
    likelihood, f = Gaussian(), torch.zeros(2, 6, 1)
    assert likelihood.log_prob(f, torch.zeros(6)).shape == (2, 6)
    assert likelihood.log_prob(f, torch.zeros(6, 1)).shape == (2, 6)
    with pytest.raises(ShapeError, match=r"\(1, 6\)"):
        likelihood.log_prob(f, torch.zeros(1, 6))


def test_a_missing_axis_of_draws_is_explained() -> None:
    expected = (
        r"must have shape \(S, N, 1\), got \(6, 1\); for a single draw pass f\.unsqueeze\(-3\)"
    )
    with pytest.raises(ShapeError, match=expected):
        Gaussian().log_prob(torch.zeros(6, 1), torch.zeros(6))
    with pytest.raises(
        ShapeError, match=r"shape \(3, S, N, 1\), got \(3, 6, 1\); for a single draw"
    ):
        Gaussian(batch_shape=(3,)).predictive(torch.zeros(3, 6, 1))
    with pytest.raises(ShapeError, match=r"got \(6, 2\)$"):
        Gaussian().predictive(torch.zeros(6, 2))


def test_a_likelihood_without_the_replicas_of_the_network_is_explained() -> None:
    expected = r"got \(3, 1, 6, 1\); for replicas make the likelihood with batch_shape=\(3,\)"
    with pytest.raises(ShapeError, match=expected):
        Gaussian().log_prob(torch.zeros(3, 1, 6, 1), torch.zeros(6))


def test_perfect_fit_has_a_finite_likelihood() -> None:
    likelihood = Gaussian(log_noise_variance=-500.0)
    f = torch.zeros(1, 3, 1, requires_grad=True)
    log_prob = likelihood.log_prob(f, torch.zeros(3)).sum()
    log_prob.backward()
    assert log_prob.isfinite()
    assert likelihood.log_noise_variance.grad is not None
    assert likelihood.log_noise_variance.grad.isfinite().all()


@pytest.mark.parametrize("raw", [-1e6, 1e6])
def test_heteroscedastic_noise_is_bounded(raw: float) -> None:
    likelihood = HeteroscedasticGaussian()
    f = torch.tensor([[[0.5, raw]]], requires_grad=True)
    log_prob = likelihood.log_prob(f, torch.tensor([1.0])).sum()
    log_prob.backward()
    assert log_prob.isfinite()
    assert f.grad is not None
    assert f.grad.isfinite().all()
    assert abs(likelihood.predictive(f).aleatoric.log().item()) <= 7.5 + 1e-6


@pytest.mark.parametrize("logit", [-1e4, -30.0, 30.0, 1e4])
def test_bernoulli_is_accurate_far_out(logit: float) -> None:
    f = torch.tensor([[[logit], [logit]]])
    ours = Bernoulli().log_prob(f, torch.tensor([0, 1]))[0].double()
    exact = torch.tensor([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)])
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("likelihood", "bad"),
    [
        (Bernoulli(), 2),
        (Bernoulli(), 0.5),
        (Bernoulli(), -1),
        (Categorical(3), 3),
        (Categorical(3), -1),
        (Categorical(3), 1.5),
        (Poisson(), -1),
        (Poisson(), 2.5),
    ],
)
def test_labels_outside_the_support_are_refused(likelihood: Likelihood, bad: float) -> None:
    with pytest.raises(DataError, match=rf"first: {bad}.* at index \(2,\)"):
        likelihood.check_targets(torch.tensor([0, 1, bad]))
    likelihood.check_targets(torch.tensor([0, 1, 1]))


def test_poisson_base_rate_is_the_mean_count() -> None:
    likelihood = Poisson(batch_shape=(2,))
    likelihood.set_target_scaling(torch.tensor([[0.0, 6.0, 6.0], [0.0, 0.0, 0.0]]))
    mean = likelihood.predictive(torch.zeros(2, 1, 3, 1)).mean
    expected = torch.tensor([[4.0] * 3, [1.0] * 3]).double()
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=0)


def test_categorical_needs_two_classes() -> None:
    for wrong in (1, 0, 2.0, True):
        with pytest.raises(ConfigError, match="num_classes"):
            Categorical(wrong)


def test_noise_parameters_learn_the_noise() -> None:
    """Maximum likelihood at f = 0 is the second moment of the residuals."""
    likelihood = Gaussian(dtype=torch.float64)
    y = torch.from_numpy(np.random.default_rng(5).normal(0, 0.7, 50))
    optimiser = torch.optim.LBFGS(likelihood.noise_parameters(), max_iter=50)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -likelihood.log_prob(torch.zeros(1, 50, 1).double(), y).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    exact = y.square().mean().sqrt()
    torch.testing.assert_close(likelihood.noise_scale[0].detach(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_balanced_gradients_weigh_rows_by_their_noise(balance: float) -> None:
    """``∂/∂mean = w (y − mean) / σ²`` with ``w ∝ σ^{2γ}`` of mean 1; the value is untouched."""
    generator = torch.Generator().manual_seed(0)
    inner = HeteroscedasticGaussian(batch_shape=(2,))
    f = torch.randn(2, 3, 7, 2, generator=generator).requires_grad_()
    y = torch.randn(2, 7, generator=generator)
    value = BalancedGradients(inner, balance=balance).log_prob(f, y)
    assert torch.equal(value, inner.log_prob(f, y))
    found = torch.autograd.grad(value.sum(), f)[0][..., 0]
    variance = inner.noise_variance(f).detach()[..., 0]
    weight = variance**balance / (variance**balance).mean((1, 2), keepdim=True)
    expected = weight * (y[:, None] - f.detach()[..., 0]) / variance
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_balanced_gradients_by_hand_are_those_of_autograd(balance: float, num_outputs: int) -> None:
    inner = scramble(HeteroscedasticGaussian(num_outputs, batch_shape=(2,)))
    f = values(inner)
    y = real((2, f.shape[-2], num_outputs))
    check_vjp(BalancedGradients(inner, balance=balance), f, y)
