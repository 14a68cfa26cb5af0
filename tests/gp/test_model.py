"""The model against exact Gaussian processes, closed forms and its own promises."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import whvi
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.gp import RandomFeatureGP
from whvi.gp.optimise import CollapsedFit, fit_collapsed
from whvi.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from whvi.training import History

VARIANTS = [
    {"weights": "whvi", "covariance": "diagonal"},
    {"weights": "whvi", "covariance": "full"},
    {"weights": "mean-field"},
    {"weights": "full"},
]
variants = pytest.mark.parametrize("options", VARIANTS)


def data(num=80, d=2, noise=0.1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(num, d, dtype=torch.float64, generator=generator) - 2
    clean = torch.sin(2 * x[:, 0]) + 0.5 * x[:, -1]
    return x, clean + noise * torch.randn(num, dtype=torch.float64, generator=generator)


def fitted(options, *, num=300, num_features=64, **more):
    x, y = data(num)
    model = RandomFeatureGP(2, num_features, dtype=torch.float64, **options)
    model.fit(x, y, starts=1, iterations=15, **more)
    return model, x, y


def exact_gp(kernel, cross, prior, y, noise):
    """Mean, variance and log evidence by the textbook."""
    factor = torch.linalg.cholesky(kernel + noise * torch.eye(len(y)).double())
    alpha = torch.cholesky_solve(y.unsqueeze(-1), factor).squeeze(-1)
    through = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
    evidence = (
        -0.5 * y @ alpha - factor.diagonal().log().sum() - 0.5 * len(y) * math.log(2 * math.pi)
    )
    return cross @ alpha, prior - through.square().sum(0), evidence


def with_hyperparameters(num_features, **options):
    """A model in the data's own units: lengthscales 0.8 and 1.5, variance 1.3, noise 0.15."""
    model = RandomFeatureGP(2, num_features, dtype=torch.float64, **options)
    with torch.no_grad():
        model.layer.features.log_lengthscale.copy_(torch.tensor([0.8, 1.5]).log())
        model.layer.features.log_variance.fill_(math.log(1.3))
        model.likelihood.log_noise_variance.fill_(2 * math.log(0.15))
    return model


def oracle(model, x, y, grid):
    features = model.layer.features
    noise = float(model.noise_std) ** 2
    cross, kernel = features.kernel_matrix(grid, x), features.kernel_matrix(x)
    prior = features.kernel_matrix(grid).diagonal()
    return exact_gp(kernel.detach(), cross.detach(), prior.detach(), y, noise)


@pytest.mark.parametrize("kernel", ["rbf", "matern32", "arccos1"])
def test_full_weights_are_the_exact_process_of_their_features(kernel):
    x, y = data()
    grid = data(20, seed=1)[0]
    model = with_hyperparameters(50, weights="full", kernel=kernel)
    bound = model.condition(x, y)
    with torch.no_grad():
        phi, phi_grid = model.layer.features(x), model.layer.features(grid)
    noise = float(model.noise_std) ** 2
    mean, variance, evidence = exact_gp(
        phi @ phi.mT, phi_grid @ phi.mT, phi_grid.square().sum(-1), y, noise
    )
    found = model.function_moments(grid)
    torch.testing.assert_close(found.mean, mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.variance, variance, rtol=1e-6, atol=1e-8)
    assert bound == pytest.approx(evidence.item(), rel=1e-8)


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_the_model_tends_to_the_exact_process(kernel):
    """Root mean square over points and seeds of the errors of mean, deviation and evidence."""
    x, y = data(60)
    grid = data(30, seed=1)[0]

    def errors(num_features):
        found = []
        for seed in range(4):
            model = with_hyperparameters(
                num_features, weights="full", kernel=kernel, projection="quasi", seed=seed
            )
            bound = model.condition(x, y)
            mean, variance, evidence = oracle(model, x, y, grid)
            ours = model.function_moments(grid)
            difference = (ours.mean - mean, ours.variance.sqrt() - variance.sqrt())
            found.append([*(d.square().mean() for d in difference), (bound - evidence).square()])
        return torch.tensor(found).mean(0).sqrt()

    coarse, fine = errors(32), errors(768)
    assert (fine < coarse / 2).all()
    exact_deviation = 0.14 if kernel == "rbf" else 0.24  # of the function, averaged over the grid
    assert fine[:2].max() < 0.3 * exact_deviation
    assert fine[2] < 4


@variants
def test_the_collapsed_bound_is_the_elbo_of_the_layer(options):
    """``E_q[log p(z | f)] − KL(q)`` with the exact moments of the layer is what was maximised."""
    model, x, y = fitted(options)
    result = model.fit(x, y, starts=1, iterations=5)
    assert isinstance(result, CollapsedFit)
    likelihood = model.likelihood
    z = (y - likelihood.target_mean) / likelihood.target_scale
    mean, variance = (m.squeeze(-1) for m in model.layer.output_moments(model.scaling(x)))
    noise = result.noise_variance
    log_lik = -0.5 * ((z - mean).square() + variance) / noise - 0.5 * math.log(2 * math.pi * noise)
    elbo = log_lik.sum() - whvi.kl(model.layer)
    assert elbo.item() == pytest.approx(result.bound, rel=1e-6)
    # in the user's units, by condition: the noise has a floor of 1e-8 there
    in_units = model.condition(x, y)
    assert in_units == pytest.approx(
        result.bound - len(y) * likelihood.target_scale.log().item(), rel=1e-4
    )


@variants
def test_it_learns_a_function_and_its_noise(options):
    model, _, _ = fitted(options, num=400)
    test_x, test_y = data(300, noise=0.0, seed=5)
    predictive = model.predictive(test_x)
    assert (predictive.mean - test_y).square().mean().sqrt() < 0.07
    assert 0.08 < float(model.noise_std) < 0.13
    noisy = test_y + 0.1 * torch.randn(300, generator=torch.Generator().manual_seed(0))
    lower, upper = predictive.interval(0.9)
    assert 0.82 < ((noisy > lower) & (noisy < upper)).double().mean() < 0.97


def test_doubt_grows_away_from_the_data():
    model, _, _ = fitted({"weights": "full"})
    near, far = model.predictive(
        torch.tensor([[0.0, 0.0], [30.0, 30.0]], dtype=torch.float64)
    ).epistemic
    assert far > 5 * near


@variants
def test_units_do_not_matter(options):
    model, x, y = fitted(options)
    other = RandomFeatureGP(2, 64, dtype=torch.float64, **options)
    shift, unit = torch.tensor([1e3, -5.0]).double(), torch.tensor([1e-2, 4e4]).double()
    other.fit(x * unit + shift, 1e6 + 1e3 * y, starts=1, iterations=15)
    here, there = model.predictive(x), other.predictive(x * unit + shift)
    torch.testing.assert_close((there.mean - 1e6) / 1e3, here.mean, rtol=0, atol=2e-3)
    torch.testing.assert_close(there.epistemic / 1e3, here.epistemic, rtol=0.05, atol=1e-4)
    torch.testing.assert_close(other.lengthscale / unit, model.lengthscale, rtol=0.02, atol=0)


@variants
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_has_the_same_value_to_the_bit_whatever_the_other_rows(options, dtype):
    x, y = data(700)
    model = RandomFeatureGP(2, 64, projection="fastfood", dtype=dtype, **options)
    model.fit(x, y, starts=1, iterations=3)
    together = model.predictive(x)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(0))
    shuffled = model.predictive(x[order])
    few = model.predictive(x[13:20])
    assert torch.equal(model.predict_mean(x[order]), model.function_moments(x).mean[order])
    for name in ("mean", "epistemic"):
        assert torch.equal(getattr(shuffled, name), getattr(together, name)[order])
        assert torch.equal(getattr(few, name), getattr(together, name)[13:20])
    draws = model.draw_functions(3, generator=torch.Generator().manual_seed(1))
    values = draws(x)
    assert torch.equal(draws(x[order]), values[:, order])
    assert torch.equal(draws(x[13:20]), values[:, 13:20])


@variants
def test_draws_are_functions_with_the_moments_of_the_posterior(options):
    model, x, _ = fitted(options)
    draws = model.draw_functions(4000, generator=torch.Generator().manual_seed(0))
    assert len(draws) == 4000
    values = draws(x[:7])
    mean, variance = model.function_moments(x[:7])
    assert ((values.mean(0) - mean).abs() < 5 * (variance / 4000).sqrt()).all()
    assert ((values.var(0) / variance - 1).abs() < 6 * math.sqrt(2 / 4000)).all()


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_gradients_are_derivatives(kernel):
    x, y = data(200)
    model = RandomFeatureGP(2, 64, kernel=kernel, dtype=torch.float64)
    model.fit(x, y, starts=1, iterations=10)
    draws = model.draw_functions(3, generator=torch.Generator().manual_seed(0))
    found, step = draws.gradient(x[:5]), 1e-5
    assert found.shape == (3, 5, 2)
    assert model.gradient(x[:5]).shape == (5, 2)
    for i in range(2):
        move = step * torch.eye(2, dtype=torch.float64)[i]
        slope = (draws(x[:5] + move) - draws(x[:5] - move)) / (2 * step)
        torch.testing.assert_close(found[:, :, i], slope, rtol=1e-5, atol=1e-6)
        means = [model.predictive(x[:5] + sign * move).mean for sign in (1, -1)]
        slope = (means[0] - means[1]) / (2 * step)
        torch.testing.assert_close(model.gradient(x[:5])[:, i], slope, rtol=1e-5, atol=1e-6)
    leaf = x[:5].clone().requires_grad_()
    draws(leaf)[1].sum().backward()
    torch.testing.assert_close(leaf.grad, found[1])


def test_features_of_all_rows_never_exist_at_once(monkeypatch):
    model, _, _ = fitted({"weights": "whvi"})
    seen = []
    waves = model.layer.features.kernel.waves
    monkeypatch.setattr(
        type(model.layer.features.kernel),
        "waves",
        lambda self, phases: (seen.append(phases.numel()), waves(phases))[1],
    )
    x, y = data(20_000)
    model.predictive(x)
    model.condition(x, y)
    model.gradient(x)
    assert max(seen) <= 2**20 < 20_000 * 64
    assert len(seen) > 6


def test_minibatches_reach_the_collapsed_solution():
    model, x, y = fitted({"weights": "mean-field"})
    other = RandomFeatureGP(2, 64, weights="mean-field", dtype=torch.float64)
    config = whvi.FitConfig(num_steps=600, batch_size=100, learning_rate=5e-2)
    assert isinstance(other.fit(x, y, config=config), History)
    test_x, test_y = data(200, noise=0.0, seed=5)
    collapsed, sampled = (m.predictive(test_x).mean - test_y for m in (model, other))
    assert sampled.square().mean().sqrt() < 0.03 + collapsed.square().mean().sqrt()


CONFIG = whvi.FitConfig(num_steps=120, batch_size=64, learning_rate=5e-2)


@variants
def test_two_classes(options):
    x, f = data(300, noise=0.0)
    y = (f > 0).double()
    model = RandomFeatureGP(2, 64, likelihood=Bernoulli(), **options)
    assert isinstance(model.fit(x, y, config=CONFIG), History)
    predictive = model.predictive(x)
    assert (predictive.mode == y).double().mean() > 0.95
    torch.testing.assert_close(model.predictive(x).probs, predictive.probs, rtol=0, atol=0)
    assert model.function_moments(x).mean.shape == (300, 1)


@pytest.mark.parametrize("weights", ["whvi", "full"])
def test_several_classes(weights):
    x, _ = data(400)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    model = RandomFeatureGP(2, 64, likelihood=Categorical(3), weights=weights)
    model.fit(x, y, config=CONFIG)
    assert (model.predictive(x).mode == y).double().mean() > 0.93
    assert model.draw_functions(5)(x).shape == (5, 400, 3)
    assert model.gradient(x[:4]).shape == (4, 3, 2)


def test_counts_by_default_settings(monkeypatch):
    monkeypatch.setattr("whvi.gp.model._MINIBATCHES", CONFIG)
    x, f = data(300, noise=0.0)
    y = torch.poisson(2 * f.exp(), generator=torch.Generator().manual_seed(0))
    model = RandomFeatureGP(2, 64, likelihood=Poisson())
    model.fit(x, y)
    assert torch.corrcoef(torch.stack([model.predictive(x).mean.log(), f]))[0, 1] > 0.95


def test_a_seed_decides_the_fit():
    x, y = data(100)
    models = [RandomFeatureGP(2, 64, seed=seed) for seed in (0, 0, 1)]
    for model in models:
        model.fit(x, y, starts=2, iterations=10)
    first, again, other = (model.predictive(x).mean for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@variants
def test_copies_and_state(options):
    model, x, _ = fitted(options)
    twin = copy.deepcopy(model)
    assert torch.equal(twin.predictive(x).mean, model.predictive(x).mean)
    fresh = RandomFeatureGP(2, 64, dtype=torch.float64, seed=9, **options)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.predictive(x).std, model.predictive(x).std)


def test_hyperparameters_found_with_few_features_serve_many():
    model, x, y = fitted({"weights": "full"})
    larger = RandomFeatureGP(2, 512, weights="full", dtype=torch.float64)
    larger.adopt(model)
    larger.condition(x, y)
    torch.testing.assert_close(larger.lengthscale, model.lengthscale)
    torch.testing.assert_close(
        larger.predictive(x).mean, model.predictive(x).mean, rtol=0, atol=0.1
    )


@pytest.mark.parametrize(
    ("weights", "num", "expected"),
    [("whvi", 200, True), ("whvi", 100, False), ("full", 200, False)],
)
def test_gauss_newton_is_for_many_rows_of_structured_weights(monkeypatch, weights, num, expected):
    seen = []

    def spy(*args, **options):
        seen.append(options["use_jacobian"])
        return fit_collapsed(*args, **options)

    monkeypatch.setattr("whvi.gp.model.fit_collapsed", spy)
    model = RandomFeatureGP(2, 60, weights=weights)  # 8 coefficients: 128 rows are enough
    model.fit(*data(num), starts=1, iterations=2)
    assert seen == [expected]


@pytest.mark.parametrize("weights", ["whvi", "full"])
def test_steps_have_gradient_zero_and_can_be_fitted(weights):
    x, y = data(300)
    model = RandomFeatureGP(2, 256, kernel="arccos0", weights=weights)
    model.fit(x, y, starts=1, iterations=10)
    test_x, test_y = data(200, noise=0.0, seed=5)
    assert (model.predictive(test_x).mean - test_y).square().mean().sqrt() < 0.5 * test_y.std()
    assert not model.gradient(test_x).any()


def test_constant_columns_and_targets_and_targets_with_an_axis():
    x, y = data(50)
    x[:, 1] = 7.0
    model = RandomFeatureGP(2, 16)
    model.fit(x, y.unsqueeze(-1), starts=1, iterations=5)
    assert model.predictive(x).mean.isfinite().all()
    model.fit(x, torch.full((50,), 3.0), starts=1, iterations=5)
    torch.testing.assert_close(
        model.predictive(x).mean, torch.full((50,), 3.0).double(), atol=1e-2, rtol=0
    )


def test_no_rows_to_predict():
    model, x, _ = fitted({"weights": "whvi"})
    assert len(model.predictive(x[:0])) == 0
    assert model.draw_functions(2)(x[:0]).shape == (2, 0)
    assert model.gradient(x[:0]).shape == (0, 2)


def test_bad_inputs_are_refused():
    x, y = data(20)
    model = RandomFeatureGP(2, 16)
    with pytest.raises(ShapeError, match=r"\(\.\.\., 2\), got \(20, 3\)"):
        model.fit(torch.zeros(20, 3), y)
    with pytest.raises(ShapeError, match=r"shape \(20,\) or \(20, 1\).*got \(19,\)"):
        model.fit(x, y[:19])
    with pytest.raises(ShapeError, match=r"floating-point tensor.*int64"):
        model.predictive(x.long())
    with pytest.raises(ShapeError, match=r"floating-point tensor.*got ndarray"):
        model.predictive(x.numpy())
    with pytest.raises(ShapeError, match=r"tensor of shape \(N, 2\), got \(\(2,\)"):
        model.draw_functions(1)(x[0])
    with pytest.raises(DataError, match=r"x holds 1 values.*nan at index \(3, 1\)"):
        model.fit(
            x.index_put((torch.tensor(3), torch.tensor(1)), torch.tensor(math.nan).double()), y
        )
    with pytest.raises(DataError, match="targets holds 1 values that are not finite"):
        model.fit(x, y.index_put((torch.tensor(3),), torch.tensor(math.inf).double()))
    with pytest.raises(DataError, match="at least 2 rows to learn from, got 1"):
        model.fit(x[:1], y[:1])
    with pytest.raises(DataError, match="labels 0 or 1"):
        RandomFeatureGP(2, 16, likelihood=Bernoulli()).fit(x, y)


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match=r"weights must be one of 'whvi'.*got 'dense'"):
        RandomFeatureGP(2, weights="dense")
    with pytest.raises(ConfigError, match="covariance must be one of"):
        RandomFeatureGP(2, covariance="low_rank")
    with pytest.raises(ConfigError, match="use weights='full'"):
        RandomFeatureGP(2, weights="mean-field", covariance="full")
    with pytest.raises(ConfigError, match="likelihood must be 'gaussian' or a"):
        RandomFeatureGP(2, likelihood="poisson")
    with pytest.raises(ConfigError, match=r"one target column.*fit one model per column"):
        RandomFeatureGP(2, likelihood=Gaussian(3))
    labels = RandomFeatureGP(2, 16, likelihood=Bernoulli())
    with pytest.raises(ConfigError, match="only Gaussian noise has a closed form"):
        labels.condition(*data(20))
    with pytest.raises(ConfigError, match="only Gaussian noise has a standard deviation"):
        labels.noise_std  # noqa: B018 - the property raises
    with pytest.raises(ConfigError, match="num_draws must be an integer"):
        labels.draw_functions(0)
