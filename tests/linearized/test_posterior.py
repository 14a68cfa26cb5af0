from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import whvi
from tests.linearized.problems import (
    design_matrix,
    likelihoods,
    linear_model,
    network,
    rows,
    targets,
)
from whvi.errors import ConfigError, DataError
from whvi.likelihoods import Gaussian
from whvi.linearized import LinearizedPosterior, jacobian, linearize
from whvi.linearized.posterior import _BLOCK_BYTES

NAMES = list(likelihoods())
FORMS = ["full", "low_rank", "last_layer"]
forms = pytest.mark.parametrize("form", FORMS)


def problem(name="Gaussian", num=40, batch_shape=()):
    likelihood = likelihoods(batch_shape)[name]
    model = network(batch_shape, out=likelihood.num_features)
    return model, likelihood, rows(num), targets(likelihood, num)


def posterior(name="Gaussian", batch_shape=(), form="full", **options):
    model, likelihood, x, y = problem(name, batch_shape=batch_shape)
    return linearize(model, likelihood, (x, y), form=form, **options)


def exact_posterior(model, likelihood, x, y, precision, noise=1.0):
    """Mean and covariance of ``g`` and the evidence of a model that is linear in it."""
    A = design_matrix(model, x)
    z = ((y - likelihood.target_mean) / likelihood.target_scale).flatten()
    variance = noise * (likelihood.log_noise_variance.detach().exp() + 1e-8)
    spread = variance.expand(len(y), -1).flatten()
    inverse = A.T @ (A / spread.unsqueeze(-1)) + precision * torch.eye(A.shape[1]).double()
    covariance = torch.linalg.inv(inverse)
    mean = covariance @ (A.T @ (z / spread))
    marginal = A @ A.T / precision + torch.diag(spread)
    log_density = torch.distributions.MultivariateNormal(torch.zeros_like(z), marginal).log_prob(z)
    return mean, covariance, log_density - len(y) * likelihood.target_scale.log().sum()


@pytest.mark.parametrize("outputs", [1, 3])
def test_of_a_linear_model_everything_is_exact(outputs):
    model, likelihood = linear_model(6, outputs), Gaussian(outputs, dtype=torch.float64)
    x, y = rows(9, 6), 5 + 3 * targets(likelihood, 9)
    likelihood.set_target_scaling(y)
    q = linearize(model, likelihood, (x, y), prior_precision=0.7, noise="keep", mean="linear")
    mean, covariance, evidence = exact_posterior(model, likelihood, x, y, 0.7)
    assert_close(q.space.vector(model) + q.shift, mean, rtol=1e-9, atol=1e-9)
    root = q.covariance.root
    assert_close(root.mT @ root, covariance, rtol=1e-9, atol=1e-9)
    assert_close(q.log_evidence, evidence, rtol=1e-9, atol=1e-9)
    new = rows(4, 6, seed=8)
    A = design_matrix(model, new).view(4, outputs, -1)
    moments = q.function_moments(new)
    assert_close(moments.mean, A @ mean, rtol=1e-9, atol=1e-9)
    assert_close(moments.covariance, A @ covariance @ A.mT, rtol=1e-9, atol=1e-9)
    predictive = q.predictive(new)
    noise = likelihood.noise_scale.detach().square()
    scale = likelihood.target_scale
    variance = moments.variance * scale.square() + noise
    shape = (4,) if outputs == 1 else (4, outputs)
    assert_close(predictive.variance, variance.view(shape), rtol=1e-7, atol=1e-9)
    assert predictive.num_components == 1


@pytest.mark.parametrize("form", ["full", "low_rank"])
def test_update_with_new_rows_is_a_fit_on_all(form):
    model, likelihood = linear_model(6, 2), Gaussian(2, dtype=torch.float64)
    x, y = rows(12, 6), targets(likelihood, 12)
    options = {"prior_precision": 1.3, "noise": "keep", "mean": "linear", "form": form}
    part = linearize(model, likelihood, (x[:7], y[:7]), **options)
    updated = part.update(x[7:10], y[7:10]).update(x[10:], y[10:])
    whole = linearize(model, likelihood, (x, y), **options)
    assert_close(updated.shift, whole.shift, rtol=1e-9, atol=1e-9)
    assert_close(updated.log_evidence, whole.log_evidence, rtol=1e-9, atol=1e-9)
    new = rows(5, 6, seed=8)
    for one, other in zip(updated.function_moments(new), whole.function_moments(new), strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-9)


@forms
@pytest.mark.parametrize("name", ["Gaussian", "Categorical"])
def test_update_of_replicas(form, name):
    q = posterior(name, (2,), form)
    x = rows(6, seed=9)
    y = targets(q.likelihood, 6)
    after = q.update(x, y)
    assert after.log_evidence.shape == (2,)
    before, now = (each.function_moments(x).variance for each in (q, after))
    assert (now < before).all()
    assert after.shift.abs().max() > 0


@forms
@pytest.mark.parametrize("name", NAMES)
def test_shapes_of_every_likelihood(name, form):
    q = posterior(name, form=form)
    x, features = rows(3, seed=7), q.likelihood.num_features
    mean, covariance = q.function_moments(x)
    assert mean.shape == (3, features)
    assert covariance.shape == (3, features, features)
    assert (torch.linalg.eigvalsh(covariance) > -1e-10).all()
    assert q.leverage(x).shape == (3,)
    assert q.log_evidence.shape == ()
    predictive = q.predictive(x, generator=torch.Generator().manual_seed(0))
    gaussian = name in ("Gaussian", "HeteroscedasticGaussian")
    assert predictive.num_components == (1 if gaussian else 64)
    assert predictive.log_prob(targets(q.likelihood, 3)).isfinite().all()
    assert q.form == form
    assert str(q.space.num_parameters) in q.describe().replace(",", "")
    assert set(q.prior_precision) == set(q.space.names)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mean", ["mode", "linear"])
def test_replicas_are_separate_models(name, mean):
    together = posterior(name, (2,), mean=mean)
    x = rows(4, seed=7)
    for r in range(2):
        model, likelihood, *data = problem(name)
        for one, both in zip(model.parameters(), together.model.parameters(), strict=True):
            one.data.copy_(both.data[r])
        alone = linearize(model, likelihood, tuple(data), mean=mean)
        assert_close(together.log_evidence[r], alone.log_evidence)
        assert_close(together.precision[r], alone.precision)
        assert_close(together.noise[r], alone.noise)
        for one, both in zip(alone.function_moments(x), together.function_moments(x), strict=True):
            assert_close(both[r], one)


def test_replicas_with_rows_of_their_own():
    model, likelihood, *_ = problem(batch_shape=(2,))
    x = rows(20, batch_shape=(2,))
    y = targets(likelihood, 20, batch_shape=(2,))
    own = linearize(model, likelihood, (x, y))
    shared = [linearize(model, likelihood, (x[r], y[r])) for r in range(2)]
    for r in range(2):
        assert_close(own.log_evidence[r], shared[r].log_evidence[r])
        assert_close(own.precision[r], shared[r].precision[r])


@forms
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_draws_have_the_moments(form, batch_shape, generator):
    q = posterior("Gaussian", batch_shape, form, mean="linear")
    x, num = rows(4, seed=7), 4000
    f = q.draw_functions(num, generator=generator)(x)
    assert f.shape == (*batch_shape, num, 4, 2)
    mean, covariance = q.function_moments(x)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    assert ((f.mean(-3) - mean).abs() < 5 * (variance / num).sqrt()).all()
    assert ((f.var(-3) / variance - 1).abs() < 5 * (2 / num) ** 0.5).all()


def test_a_draw_is_a_function(generator):
    q = posterior()
    x = rows(9, seed=7)
    draws = q.draw_functions(3, generator=generator)
    assert_close(draws(x)[:, 4:6], draws(x[4:6]))
    theta = q.draw_displacements(2, generator=generator)
    assert theta.shape == (2, q.space.num_parameters)


def test_many_rows_are_cut_into_blocks(monkeypatch):
    q, x = posterior("Gaussian", (2,)), rows(7, seed=7)
    whole = q.function_moments(x)
    size = 8 * 2 * 2 * q.space.num_parameters
    assert 7 * size < _BLOCK_BYTES
    monkeypatch.setattr("whvi.linearized.posterior._BLOCK_BYTES", 3 * size)
    for one, other in zip(q.function_moments(x), whole, strict=True):
        assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_leverages_of_the_rows_add_up_to_the_effective_parameters():
    q = posterior()
    _, _, x, _ = problem()
    precision = q.space.spread(q.precision)
    root = q.covariance.root
    effective = q.space.num_parameters - (precision * root.square().sum(0)).sum()
    assert_close(q.leverage(x).sum(), effective, rtol=1e-8, atol=1e-8)


def test_noise_of_the_evidence_reaches_predictions():
    q = posterior()
    kept = posterior(noise="keep")
    assert (kept.noise == 1).all()
    assert kept.fitted_likelihood is kept.likelihood
    x, noise = rows(3, seed=7), q.fitted_likelihood.noise_scale.square()
    ratio = noise / q.likelihood.noise_scale.square()
    assert_close(ratio.detach(), q.noise.expand(2), rtol=1e-6, atol=1e-6)
    variance = q.function_moments(x).variance + noise.detach()
    assert_close(q.predictive(x).variance, variance, rtol=1e-6, atol=1e-9)
    mixture = q.predictive(x, num_draws=500, generator=torch.Generator().manual_seed(0))
    assert_close(mixture.std, variance.sqrt(), rtol=0.2, atol=0.0)


def test_uncertainty_grows_away_from_the_rows():
    q = posterior()
    near, far = q.function_moments(rows(5) * 0.1), q.function_moments(rows(5) * 100)
    assert far.variance.min() > near.variance.max()


@forms
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_saving_and_loading(form, batch_shape, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    q = posterior("Gaussian", batch_shape, form, mean="linear")
    path = tmp_path / "posterior.safetensors"
    safetensors.save_file(q.state_dict(), path)
    again = LinearizedPosterior.from_state(q.model, q.likelihood, safetensors.load_file(path))
    x = rows(4, seed=7)
    assert again.form == form
    assert_close(again.log_evidence, q.log_evidence)
    for one, other in zip(again.function_moments(x), q.function_moments(x), strict=True):
        assert_close(one, other, rtol=1e-5, atol=1e-7)  # a root is kept in float32
    assert again.describe().endswith("(from a saved state)")


def test_the_state_of_another_model_is_refused():
    state = posterior().state_dict()
    other = network(out=1)
    with pytest.raises(ConfigError, match="but the model has"):
        LinearizedPosterior.from_state(other, likelihoods()["Gaussian"], state)
    state["root"] = state["root"][:-1]
    with pytest.raises(ConfigError, match="numbers, got"):
        LinearizedPosterior.from_state(network(out=2), likelihoods()["Gaussian"], state)


def test_a_state_with_other_replicas_or_without_a_tensor_is_refused():
    state = posterior(batch_shape=(3,)).state_dict()
    with pytest.raises(ConfigError, match=r"with batch_shape \(3,\), but .* batch_shape \(\)$"):
        LinearizedPosterior.from_state(network(out=2), likelihoods()["Gaussian"], state)
    del state["shift"]
    with pytest.raises(ConfigError, match="has no shift"):
        LinearizedPosterior.from_state(network((3,)), likelihoods((3,))["Gaussian"], state)


def test_further_rows_that_are_not_finite_are_refused():
    q = posterior()
    x, y = rows(4), targets(q.likelihood, 4)
    for name, pair in (("x", (x / 0, y)), ("targets", (x, y / 0))):
        with pytest.raises(DataError, match=f"{name} holds .* that are not finite"):
            q.update(*pair)


def test_no_rows_have_no_predictions():
    q, x = posterior(), rows(0)
    assert q.function_moments(x).covariance.shape == (0, 2, 2)
    assert q.draw_functions(5)(x).shape == (5, 0, 2)
    assert q.leverage(x).shape == q.predictive(x).mean.shape[:1] == (0,)
    with pytest.raises(ConfigError, match="num_draws must be an integer of at least 1, got 0"):
        q.predictive(rows(2), num_draws=0)


def test_the_public_name():
    assert whvi.linearize is linearize
    assert jacobian(network(), rows(2)).values.shape == (2, 1)


def test_epistemic_and_aleatoric_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    model, likelihood = torch.nn.Linear(3, 1), Gaussian()
    x = torch.randn(20, 3, generator=generator)
    posterior = whvi.linearize(model, likelihood, (x, x.sum(-1)))
    predictive = posterior.predictive(x)
    spread = posterior.function_moments(x).variance.squeeze(-1).sqrt()
    torch.testing.assert_close(predictive.epistemic, spread)
    noise = posterior.fitted_likelihood.noise_scale.double().detach().expand(20)
    torch.testing.assert_close(predictive.aleatoric, noise, rtol=1e-5, atol=1e-8)
