"""Linearised members: their Jacobians, the variance without a slab, the gate and its learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.func import functional_call, jacrev

from whvi import WHVIClassifier, WHVIRegressor
from whvi.linearized.parameters import parameter_space
from whvi.sampling import MeanWeights, sampling
from whvi.tabular import extrapolation
from whvi.tabular.extrapolation import _best_factor, _Member, _Slab
from whvi.tabular.functions import Gate, Linearized


def table(num_rows: int = 60, num_columns: int = 3, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_columns))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] + 0.1 * rng.normal(size=num_rows)


def fitted(X, y, estimator=WHVIRegressor, **options):
    options = {"hidden_layer_sizes": (8, 8), "n_members": 2, "max_iter": 30} | options
    return estimator(random_state=0, **options).fit(X, y)


def displacement_vectors(model) -> torch.Tensor:
    """Put the displacements of all layers together again, ``(R, S, P)``, for stacked layers."""
    network, tangents = model.model_, model._predictor.linearized.tangents
    space = parameter_space(network.requires_grad_(True))
    layers = [name for name, child in network.named_children() if hasattr(child, "matrix")]
    parts = {}
    for name, (_, displacements) in zip(layers, tangents, strict=True):
        if len(displacements) == 4:
            order = ("matrix.s1", "matrix.posterior.loc", "matrix.s2", "bias")
        else:
            order = ("matrix.posterior.loc", "bias")
        parts |= {f"{name}.{part}": d for part, d in zip(order, displacements, strict=True)}
    return torch.cat([parts[name] for name in space.names], -1), space


@pytest.mark.parametrize("features", ["relu", "sine"])
@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_changes_are_jacobians_times_displacements(features, likelihood, monkeypatch):
    if features == "sine":  # as from 3,000 rows on
        monkeypatch.setattr("whvi.tabular.training.FEW_ROWS", 10)
    X, y = table()
    model = fitted(X, y, likelihood=likelihood, hidden_layer_sizes=(16, 8))
    predictor = model._predictor
    encoded = predictor.schema.encode(model._table(X, reset=False)[0])
    x = predictor.embedding(encoded, "cpu").x[:5]
    f, changes = predictor.linearized(x, 1)
    delta, space = displacement_vectors(model)
    for r in range(2):

        def value(vector, row, r=r):
            state = dict(model.model_.named_parameters())
            parts = dict(zip(space.names, vector.split(space.sizes), strict=True))
            full = {
                name: t.index_put((torch.tensor(r),), parts[name].view_as(t[r]))
                if name in parts
                else t
                for name, t in state.items()
            }
            with sampling(MeanWeights()):
                return functional_call(model.model_, full, (row.expand(2, 1, -1),))[r, 0, 0]

        theta = space.vector(model.model_)[r].float()
        for n in range(5):
            J = jacrev(value)(theta, x[n])
            torch.testing.assert_close(changes[r, :, n, 0], delta[r] @ J, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(f[r, n, 0], value(theta, x[n]), rtol=1e-4, atol=1e-5)


def member(num_rows=12, num_parameters=5, weight=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    J = torch.randn(num_rows, 1, num_parameters, dtype=torch.float64, generator=generator)
    x = torch.randn(num_rows, 2, dtype=torch.float64, generator=generator)
    theta = torch.randn(num_parameters, dtype=torch.float64, generator=generator)
    root = torch.rand(num_rows, 1, dtype=torch.float64, generator=generator) + 1
    gradient = torch.randn(num_rows, 1, dtype=torch.float64, generator=generator)
    space = extrapolation.ParameterSpace(("a", "b"), (2, num_parameters - 2), ())
    counts = torch.full((num_rows,), weight, dtype=torch.float64)
    made = _Member(space, theta, x, J, root, gradient, counts, J[:4], errors_count=True)
    return made, J[:, 0], root[:, 0], gradient[:, 0], theta


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_slab_is_predicted_by_the_posterior_of_the_other_rows(weight):
    made, J, root, gradient, theta = member(weight=weight)
    (inside, outside) = extrapolation._middle_third(made.x[:, 0])
    slab = made._without(inside, outside)
    precision = made.covariance.precision

    def mean(rows):
        """Return the posterior mean and covariance of the linear model with targets y − f + Jθ."""
        curvature = weight * root[rows].square()
        A = (J[rows].T * curvature) @ J[rows] + torch.diag(precision)
        targets = gradient[rows] / root[rows].square() + J[rows] @ theta
        return torch.linalg.solve(A, J[rows].T @ (curvature * targets)), torch.linalg.inv(A)

    without, covariance = mean(outside)
    everything, _ = mean(torch.arange(len(J)))
    expected = torch.einsum("np,pq,nq->n", J[inside], covariance, J[inside])
    torch.testing.assert_close(slab.variance[:, 0], expected)
    residual = gradient[inside] / root[inside].square()
    torch.testing.assert_close(slab.error[:, 0], residual - J[inside] @ (without - everything))
    torch.testing.assert_close(slab.noise[:, 0], root[inside] ** -2)


def test_variance_of_rows_that_were_left_out():
    made, J, root, _, _ = member()
    A = (J.T * root.square()) @ J + torch.diag(made.covariance.precision)
    expected = torch.einsum("np,pq,nq->n", J[:4], torch.linalg.inv(A), J[:4])
    torch.testing.assert_close(made.held_out_variance(), expected)


def test_the_factor_is_the_one_of_the_errors():
    generator = torch.Generator().manual_seed(0)
    variance = 10 * torch.rand(20_000, 1, dtype=torch.float64, generator=generator)
    noise = torch.full_like(variance, 0.5)
    error = (noise + 0.3 * variance).sqrt() * torch.randn(
        variance.shape, dtype=torch.float64, generator=generator
    )
    assert _best_factor([_Slab(variance, noise, error)]) == pytest.approx(0.3, rel=0.15)


def test_the_share_grows_with_the_variance():
    gate = Gate(1.0, math.log(0.25), near=-2.0, far=1.0, width=1.0)
    share = gate.share(torch.tensor([-9.0, -2.0, -0.5, 1.0, 9.0]))
    assert (share.diff() > 0).all()
    assert float(share[2]) == pytest.approx(0.2)  # half way: the odds as they are
    assert float(share[0]) < 1e-6
    assert float(share[4]) > 0.999


def test_uncertainty_grows_far_from_the_rows():
    X, y = table(200)
    near, far = X[:50], 8 * X[:50]
    honest, plain = fitted(X, y), fitted(X, y, linearize=False)
    assert (
        honest.predict_dist(far).epistemic > plain.predict_dist(far).epistemic
    ).double().mean() > 0.9
    ratio = honest.predict_dist(near).std / plain.predict_dist(near).std
    assert float(ratio.median()) < 1.5
    assert plain._predictor.linearized is None


@pytest.mark.parametrize("num_columns", [1, 3])
@pytest.mark.parametrize("num_rows", [2, 5, 30])
def test_any_small_table(num_rows, num_columns):
    X, y = table(num_rows, num_columns)
    model = fitted(X, y)
    assert np.isfinite(model.predict(X, return_std=True)).all()


@pytest.mark.parametrize("likelihood", ["student_t", "poisson", "gaussian"])
def test_other_likelihoods_and_several_outputs(likelihood):
    X, y = table()
    y = np.stack([np.round(np.exp(y)), np.round(np.exp(-y))], 1)
    model = fitted(X, y, likelihood=likelihood)
    p = model.predict_dist(9 * X)
    assert p.mean.shape == (60, 2)
    assert p.weights is not None


@pytest.mark.parametrize("num_classes", [2, 3])
def test_labels(num_classes):
    X, y = table(90)
    labels = np.digitize(y, np.quantile(y, np.arange(1, num_classes) / num_classes))
    model = fitted(X, labels, WHVIClassifier)
    p = model.predict_dist(X)
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(90, dtype=torch.float64))
    np.testing.assert_array_equal(model.predict_proba(X), p.probs.numpy())


def test_what_is_not_affordable_is_left_out():
    X, y = table()
    assert fitted(X, y, posterior="flow")._predictor.linearized is None
    labels = np.arange(60) % 10
    assert fitted(X, labels, WHVIClassifier)._predictor.linearized is None


def test_predictions_do_not_depend_on_other_rows():
    X, y = table(300)
    model = fitted(X, y)
    whole = model.predict_dist(5 * X)
    for rows in ([7], [3, 200, 11], list(range(100, 300))):
        part = model.predict_dist(5 * X[rows])
        assert torch.equal(part.std, whole.std[rows])
        np.testing.assert_array_equal(model.predict(X[rows]), model.predict(X)[rows])


@pytest.mark.parametrize("rotate", [True, False])
def test_a_weight_scales_the_precision_of_its_row(rotate, monkeypatch):
    """The rows that stand for all count as much as these: Σ wᵢ over the rows trained on."""
    if not rotate:
        monkeypatch.setattr("whvi.tabular.training.FEW_ROWS", 10)
    X, y = table()
    weights = np.arange(1, 61) / 20
    seen = []
    original = extrapolation._members

    def members(*given):
        seen.append((given, original(*given)))
        return seen[-1][1]

    monkeypatch.setattr(extrapolation, "_members", members)
    monkeypatch.setattr(extrapolation, "_SUPPORT", 20)
    fitted(X, y, likelihood="gaussian").fit(X, y, weights)
    (given, found), folds = seen[-1], seen[-1][0][0].folds
    w = torch.tensor(weights)
    torch.testing.assert_close(given[-1], w)
    for r, member in enumerate(found):
        train = folds.train[r] if rotate else folds.train
        counts = (member.whitening.square() * member.noise)[:, 0]
        torch.testing.assert_close(counts / counts[0], w[train[:20]] / w[train[0]])
        torch.testing.assert_close(counts.sum(), w[train].sum())
    given[0].model.requires_grad_(True)
    plain = original(*given[:-1], None)
    ones = original(*given[:-1], torch.ones_like(w))
    for one, other in zip(plain, ones, strict=True):
        torch.testing.assert_close(one.kernel, other.kernel)


def test_rates_far_away_are_known_to_a_factor_of_e():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = WHVIRegressor((8,), likelihood="poisson", n_members=2, max_iter=30, random_state=0)
    model.fit(X, rng.poisson(np.exp(X[:, 0])).astype(float))
    predictor = model._predictor
    x, known = torch.full((1, 2), 3.0), predictor.linearized
    f, _ = known(x, 1)
    wide = Linearized(known.functions, known.tangents, known.gate._replace(factor=1e4))
    far, _ = predictor._far(wide, x, torch.ones(1, 1), torch.ones(1, 1))
    log_rates = far.component_means().log().unflatten(0, (2, -1)).squeeze(-1)
    distance = log_rates - f.double().squeeze(-1)
    assert 0.5 < float(distance.std()) < 1.3


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic", "student_t"])
@pytest.mark.parametrize("reach", [1.0, 3.0])
def test_far_functions_are_multiplied_by_what_was_known_before(likelihood, reach):
    """``N(f, αv)`` times ``N(0, (4 reach)²)`` in units of the standardised target."""
    X, y = table()
    predictor = fitted(X, 5 + 3 * y, likelihood=likelihood)._predictor
    x, known = torch.full((1, 3), 2.5), predictor.linearized
    wide = Linearized(known.functions, known.tangents, known.gate._replace(factor=50.0))
    far, _ = predictor._far(wide, x, torch.ones(1, 1), torch.full((1, 1), reach))
    values, changes = known(x, 1)
    f, v = values[:, 0, 0].double(), 50 * changes[:, :, 0, 0].double().square().mean(1)
    scale, mean = predictor.likelihood.target_scale[:, 0], predictor.likelihood.target_mean[:, 0]
    expected = (f / v) / (1 / v + 1 / (4 * reach) ** 2) * scale + mean
    spread = (1 / (1 / v + 1 / (4 * reach) ** 2)).sqrt() * scale
    if likelihood == "student_t":  # functions, not Gaussians
        draws = far.component_means().view(2, -1)
        error = (draws.mean(1) - expected).abs() / spread
        assert float(error.max()) < 4 / math.sqrt(draws.shape[1])
        assert float((draws.std(1) / spread - 1).abs().max()) < 0.5
    else:
        centres, total = (part.flatten() for part in far.gaussian_components())
        plain = predictor.likelihood.predictive(values.double().unsqueeze(1)).pool()
        noise = plain.gaussian_components()[1].flatten()
        torch.testing.assert_close(centres, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(total, torch.hypot(noise, spread), rtol=1e-4, atol=1e-4)


def test_between_the_rows_functions_stay_where_targets_are_and_beyond_them_they_may_go_on():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.uniform(-3, -2.8, (40, 1)), rng.uniform(2.8, 3, (40, 1))])
    y = 50 * (X[:, 0] - 3 * np.sign(X[:, 0])) ** 2 + 0.01 * rng.normal(size=80)
    model = fitted(X, y, max_iter=400)
    between = model.predict(np.linspace(-2.5, 2.5, 21)[:, None])
    assert np.abs(between - y.mean()).max() < 4 * y.std()
    line = fitted(X, X[:, 0], max_iter=400)
    mean, std = line.predict(np.array([[3.0], [6.0], [30.0]]), return_std=True)
    assert std[0] < std[1] < std[2]
    assert (np.abs(mean - [3, 6, 30]) < 3 * std).all()
