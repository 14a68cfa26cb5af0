"""The objective of an update, against closed forms."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.tabular.conftest import mixed_table, quick_regressor
from whvi.layers import MeanFieldLinear, WHVILinear
from whvi.layers.protocol import bayesian_layers, kl
from whvi.likelihoods import Categorical, Gaussian
from whvi.linearized.jacobians import jacobian
from whvi.linearized.parameters import parameter_space
from whvi.priors import FixedPrior
from whvi.tabular.extrapolation import prior_precision
from whvi.tabular.functions import Gate
from whvi.tabular.training import Folds, Memory, Session, Trained
from whvi.tabular.updating import (
    Anchor,
    Recollection,
    Weighted,
    absorb,
    linearized_again,
    num_steps,
    support,
)
from whvi.training import FitConfig
from whvi.training.history import History

# ---- rows that are kept -------------------------------------------------------------------------


def test_thinned_rows_stand_for_all_on_average():
    rng = np.random.default_rng(0)
    memory = Memory(rng.normal(size=(50, 1)), rng.choice([1.0, 4.0, 20.0], 50))
    thinned = [memory.thinned(20, seed) for seed in range(2000)]
    assert {len(m.weight) for m in thinned} == {20}
    np.testing.assert_allclose([m.weight.sum() for m in thinned], memory.weight.sum())
    sums = np.array([m.weight @ m.encoded[:, 0] for m in thinned])
    truth = memory.weight @ memory.encoded[:, 0]
    # 4 standard errors; the fixed total biases a ratio by O(1 / rows)
    assert abs(sums.mean() - truth) < 4 * sums.std() / len(sums) ** 0.5 + 0.02 * abs(truth)
    assert memory.thinned(50, 0) is memory


def test_wide_tables_keep_fewer_rows():
    assert len(Memory.of(np.zeros((3000, 10))).kept(0).weight) == 1024
    assert len(Memory.of(np.zeros((3000, 1000))).kept(0).weight) == 262
    assert len(Memory.of(np.zeros((3000, 10_000))).kept(0).weight) == 64


def test_half_of_the_support_is_new_if_there_are_as_many():
    old, new = (Memory.of(np.full((1000, 1), value)) for value in (0.0, 1.0))
    assert support(old, new, 1, 0).encoded.sum() == 128
    few = Memory.of(np.ones((5, 1)))
    rows = support(old, few, 1, 0)
    assert (len(rows.weight), rows.encoded.sum()) == (256, 5)
    assert rows.weight.sum() == pytest.approx(1005)
    assert len(support(few, new, 1, 0).weight) == 256
    assert len(support(old, new, 8, 0).weight) == 32


def test_steps_grow_with_the_rows_up_to_those_of_a_fit():
    assert [num_steps(8000, n, 32) for n in (1, 100, 10_000)] == [404, 800, 8000]


# ---- terms of the objective ---------------------------------------------------------------------


def test_remembered_rows_count_by_their_distance_in_fisher_information():
    torch.manual_seed(0)
    inner = Categorical(3, batch_shape=(2,)).double()
    f, before = torch.randn(2, 4, 5, 3).double(), torch.randn(2, 5, 3).double()
    weight = torch.rand(2, 5, 1).double()
    y = torch.cat([torch.zeros(2, 5, 2), weight, before], -1)
    p = before.softmax(-1)
    information = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    d = f - before.unsqueeze(1)
    expected = -0.5 * weight.mT * torch.einsum("rsni,rnij,rsnj->rsn", d, information, d)
    torch.testing.assert_close(Recollection(inner).log_prob(f, y), expected)


def test_new_rows_count_by_their_likelihood():
    torch.manual_seed(0)
    inner = Gaussian(2, batch_shape=(3,))
    f, y = torch.randn(3, 4, 5, 2), torch.randn(3, 5, 2)
    rows = torch.cat([y, torch.full((3, 5, 1), 0.25), torch.zeros(3, 5, 3)], -1)
    expected = 0.25 * inner.log_prob(f, y)
    torch.testing.assert_close(Recollection(inner).log_prob(f, rows), expected)


@pytest.mark.parametrize("posterior", ["diagonal", "low_rank", "full"])
def test_the_anchor_moves_the_mean_of_the_prior(posterior):
    torch.manual_seed(0)
    model = nn.Sequential(
        WHVILinear(8, 8, posterior=posterior, prior=FixedPrior(0.3), batch_shape=(2,)),
        MeanFieldLinear(8, 1, prior=FixedPrior(2.0), batch_shape=(2,)),
    ).double()
    anchor = Anchor(bayesian_layers(model))
    posteriors = [layer.matrix.posterior for layer in model]
    centres = [q.loc.detach().clone() for q in posteriors]
    expected = torch.zeros(2).double()
    for q, centre, variance in zip(posteriors, centres, (0.3, 2.0), strict=True):
        torch.nn.init.normal_(q.loc)
        with torch.no_grad():
            shifted = (q.loc - centre).square() + q.variance
            bracket = (shifted / variance - 1 + np.log(variance)).sum(-1)
            expected += 0.5 * bracket - q.log_volume()
    torch.testing.assert_close(kl(model) + anchor.kl(), expected)
    x = torch.randn(3)
    assert anchor(x) is x


def test_nothing_pulls_at_a_posterior_that_learns_nothing():
    model = nn.Sequential(WHVILinear(8, 8, batch_shape=(2,)))  # its prior is empirical Bayes
    anchored = nn.Sequential(*model, Anchor(bayesian_layers(model)))
    kl(anchored).sum().backward()
    posterior = model[0].matrix.posterior
    torch.testing.assert_close(posterior.loc.grad, torch.zeros_like(posterior.loc))
    assert posterior.log_scale.grad.abs().max() > 0.1


# ---- a linear model with Gaussian noise ---------------------------------------------------------

VARIANCE, NOISE, MEMBERS = 0.5, 0.2, 2


def closed_form(x, y):
    """Mean of the weights given all rows, and the variances of the best independent Gaussians."""
    precision = x.mT @ x / NOISE + torch.eye(x.shape[1]) / VARIANCE
    return torch.linalg.solve(precision, x.mT @ y / NOISE).squeeze(-1), 1 / precision.diagonal()


def linear_model(mean, variance):
    layer = MeanFieldLinear(3, 1, bias=False, prior=FixedPrior(VARIANCE), batch_shape=(MEMBERS,))
    with torch.no_grad():
        layer.matrix.posterior.loc.copy_(mean)
        layer.matrix.posterior.log_scale.copy_(variance.log() / 2)
    likelihood = Gaussian(1, batch_shape=(MEMBERS,), log_noise_variance=float(np.log(NOISE)))
    architecture = SimpleNamespace(members=MEMBERS)
    return Trained(architecture, nn.Sequential(layer), likelihood, History(), None)


def test_one_update_after_the_other_finds_the_posterior_of_all_rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + NOISE**0.5 * torch.randn(
        90, 1, generator=generator
    )
    x[:, 2] += 0.7 * x[:, 0]  # correlated: independent posteriors alone would forget
    trained = linear_model(*closed_form(x[:40], y[:40]))
    config = FitConfig(num_steps=400, batch_size=200, learning_rate=0.05, num_draws=16)
    for start, end in ((40, 60), (60, 90)):
        rows = Folds(torch.arange(end - start), None)
        past = Weighted(x[:start], torch.ones(start))
        new = Weighted(x[start:end], torch.ones(end - start))
        trained = absorb(trained._replace(folds=rows), past, new, y[start:end], config, Session())
    mean, variance = closed_form(x, y)
    posterior = trained.model[0].matrix.posterior
    # Adam's last steps are small: a tenth of a standard deviation is its noise
    assert ((posterior.loc - mean).abs() / variance.sqrt()).max() < 0.15
    torch.testing.assert_close(
        posterior.variance.detach(), variance.expand(MEMBERS, -1), rtol=0.1, atol=0
    )
    first, _ = closed_form(x[:40], y[:40])
    assert ((first - mean).abs() / variance.sqrt()).max() > 0.6


def test_weights_of_rows_are_those_of_rows_that_occur_so_often():
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    y = x.sum(-1, keepdim=True)
    y[8:] *= -1  # new rows contradict: what the others weigh decides
    config = FitConfig(num_steps=400, batch_size=200, learning_rate=0.05, num_draws=16)
    twice = torch.cat([x[:8], x[:8]]), torch.cat([y[:8], y[:8]])
    start = linear_model(*closed_form(*twice))._replace(folds=Folds(torch.arange(4), None))
    past, new = Weighted(x[:8], torch.full((8,), 2.0)), Weighted(x[8:], torch.full((4,), 3.0))
    found = absorb(start, past, new, y[8:], config, Session())
    times = torch.tensor([2] * 8 + [3] * 4)
    mean, variance = closed_form(*(part.repeat_interleave(times, 0) for part in (x, y)))
    loc = found.model[0].matrix.posterior.loc
    assert ((loc - mean).abs() / variance.sqrt()).max() < 0.15


# ---- what follows from new weights --------------------------------------------------------------


def test_near_is_the_variance_of_rows_given_the_others():
    table, y = mixed_table(30)
    model = quick_regressor(max_iter=30).fit(table, y)
    trained = model._trained(None)
    trained.model.requires_grad_(True)
    rows = model._inputs(Memory.of(model._memory.encoded[:12]))
    rows = rows._replace(weight=torch.linspace(1, 3, 12).double())
    gate = Gate(0.5, 0.0, -1.0, 2.0, 1.0)
    found = linearized_again(trained, model._predictor.functions, rows, gate, 0)
    space = parameter_space(trained.model)
    J = jacobian(trained.model, rows.x, space).derivatives[:, :, 0].double()
    noise = trained.likelihood.log_noise_variance.double().exp() + 1e-8
    expected = []
    for theta, each, variance in zip(space.vector(trained.model), J, noise, strict=True):
        Z = each * (rows.weight / variance).sqrt().unsqueeze(-1)
        precision = torch.diag(prior_precision(space, theta, Z))
        for i in range(12):
            others = torch.arange(12) != i
            covariance = torch.linalg.inv(precision + Z[others].mT @ Z[others])
            expected.append(float((each[i] @ covariance @ each[i]).log()))
    assert found.gate.near == pytest.approx(np.mean(expected), abs=1e-4)
    assert found.gate.far - found.gate.near == pytest.approx(3.0)
    assert (found.gate.factor, found.gate.width) == (0.5, 1.0)
