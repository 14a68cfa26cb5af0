from __future__ import annotations

import pytest
import torch
from torch.func import jacrev, vmap
from torch.testing import assert_close

from tests.linearized.problems import DOUBLE, likelihoods, targets
from whvi.errors import ConfigError
from whvi.likelihoods import BalancedGradients, Likelihood, TemperedLikelihood
from whvi.linearized.curvature import curvature_root, slope

NAMES = list(likelihoods())


def values(likelihood, num=3, batch_shape=()):
    generator = torch.Generator().manual_seed(3)
    shape = (*batch_shape, num, likelihood.num_features)
    return 0.5 * torch.randn(shape, generator=generator, **DOUBLE)


@pytest.mark.parametrize("name", NAMES)
def test_the_curvature_is_the_mean_of_the_hessian(name):
    """``R = −E[∂² log p(y | f) / ∂f²]``, over draws from the likelihood itself."""
    likelihood = likelihoods()[name]
    f = values(likelihood, 1)
    predictive = likelihood.predictive(f.unsqueeze(-3))
    y = predictive.sample(4000, generator=torch.Generator().manual_seed(0)).squeeze(1)
    y = y.reshape(-1, likelihood.num_outputs)

    def hessian(target):
        def log_prob(row):
            return likelihood.log_prob(row.view(1, 1, -1), target.view(1, -1)).squeeze()

        return jacrev(jacrev(log_prob))(f[0])

    each = -vmap(hessian)(y).detach()
    root = curvature_root(likelihood, f)[0]
    error = each.std(0) / len(y) ** 0.5
    assert ((root @ root.mT - each.mean(0)).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_slope_is_the_gradient(name):
    likelihood = likelihoods()[name]
    f, y = values(likelihood), targets(likelihood, 3)
    log_prob, gradient = slope(likelihood, f, y)
    assert_close(log_prob, likelihood.log_prob(f.unsqueeze(0), y).squeeze(0).detach())
    step = 1e-6
    for k in range(f.shape[-1]):
        change = torch.zeros_like(f)
        change[..., k] = step
        above, below = (slope(likelihood, f + sign * change, y)[0] for sign in (1, -1))
        assert_close(gradient[..., k], (above - below) / (2 * step), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_replicas_are_separate(name):
    likelihood = likelihoods((2,))[name]
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter[1] += 0.5
    f = values(likelihood, batch_shape=(2,))
    root = curvature_root(likelihood, f)
    for r in range(2):
        alone = likelihoods()[name]
        parameters = zip(alone.parameters(), likelihood.parameters(), strict=True)
        for one, all_ in parameters:
            one.data.copy_(all_.data[r])
        assert_close(root[r], curvature_root(alone, f[r]))


def test_wrappers_follow_what_they_wrap():
    inner = likelihoods((2,))["StudentT"]
    f = values(inner, batch_shape=(2,))
    beta = torch.tensor([0.5, 2.0], **DOUBLE)
    tempered = curvature_root(TemperedLikelihood(inner, beta), f)
    assert_close(tempered.square(), curvature_root(inner, f).square() / beta.view(2, 1, 1, 1))
    inner = likelihoods()["HeteroscedasticGaussian"]
    f = values(inner)
    assert_close(curvature_root(BalancedGradients(inner), f), curvature_root(inner, f))


def test_a_likelihood_without_curvature_is_named():
    class Odd(Likelihood):
        log_prob = predictive = None

    with pytest.raises(ConfigError, match="no curvature is known for the likelihood Odd"):
        curvature_root(Odd(1, ()), torch.zeros(2, 1))
