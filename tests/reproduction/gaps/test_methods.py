"""The rivals: each fits replicas as the others do, and their predictives are right."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from reproduction.gaps.exact_gp import EXACT_GP
from reproduction.gaps.methods import BEFORE, METHODS, NUM_STEPS, ROWS, RUN, missing_package
from reproduction.methods import DataSize, Settings
from reproduction.methods.selection import key

SHORT = {"steps": 30, "iterations": 30, "evidence_steps": 2, "width": 8}


def quick_settings(name: str) -> Settings:
    settings = dict(METHODS[name].grid(DataSize(40, 2))[0])
    return settings | {key: value for key, value in SHORT.items() if key in settings}


def rows(num_replicas: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_replicas, 40, 2, generator=generator)
    return x, x[..., 0] + 0.1 * torch.randn(num_replicas, 40, generator=generator)


@pytest.mark.parametrize("name", METHODS)
def test_replicas_have_a_mixture_per_row(name: str) -> None:
    if package := missing_package(name):
        pytest.skip(f"{package} is not installed")
    x, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the rivals' packages
        fitted = METHODS[name].fit([quick_settings(name)] * 2, x, y, seed=0)
        predictive = fitted.predict(x[:, :7], num_draws=3)
    assert (predictive.batch_shape, predictive.num_rows) == ((2,), 7)
    assert bool(torch.isfinite(predictive.log_prob(y[:, :7])).all())
    assert fitted.num_parameters > 0


def test_networks_train_as_long_as_each_other() -> None:
    for name in ("whvi", "mean-field", "mc-dropout", "deep-ensemble"):
        grid = METHODS[name].grid(DataSize(500, 8))
        assert {candidate["steps"] for candidate in grid} == {NUM_STEPS}
        assert len(grid) == len({key(candidate) for candidate in grid}) == 6


def test_the_estimator_before_is_shown_and_not_run() -> None:
    assert BEFORE in ROWS
    assert set(ROWS) - set(RUN) == {BEFORE}


def test_the_exact_process_is_the_closed_form() -> None:
    """Mean and variance by dense algebra with the hyper-parameters that it has found."""
    if package := missing_package("exact-gp"):
        pytest.skip(f"{package} is not installed")
    x, y = (part.double() for part in rows(1))
    settings: Settings = {"steps": 20, "lr": 0.1}
    fitted = EXACT_GP.fit([settings], x, y, seed=0)
    test = torch.linspace(-3, 3, 10, dtype=torch.float64).reshape(1, 5, 2)
    found = fitted.predict(test, num_draws=1).unbind()[0]
    (process,) = fitted.models
    with torch.no_grad():
        both = torch.cat([x[0], test[0]])
        kernel = process.kernel(both).to_dense()
        noise, constant = process.likelihood.noise.item(), process.mean.constant.item()
    train = kernel[:40, :40] + noise * torch.eye(40, dtype=torch.float64)
    gain = torch.linalg.solve(train, kernel[:40, 40:])
    mean = constant + gain.T @ (y[0] - constant)
    variance = kernel[40:, 40:].diagonal() - (gain * kernel[:40, 40:]).sum(0) + noise
    torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.variance, variance, rtol=1e-6, atol=1e-8)


def test_laplace_is_the_closed_form_of_its_linear_model() -> None:
    """The variance by a dense Jacobian with the hyper-parameters that it has found."""
    if package := missing_package("laplace"):
        pytest.skip(f"{package} is not installed")
    x, y = (part.double() for part in rows(1))
    settings = {**quick_settings("laplace"), "width": 3, "evidence_steps": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = METHODS["laplace"].fit([settings], x, y, seed=0)
        found = fitted.predict(x[:, :4], num_draws=1).unbind()[0]
    (posterior,) = fitted.models
    parameters = dict(posterior.model.named_parameters())
    jacobian = _jacobian(posterior.model, parameters, x[0])
    noise = float(posterior.sigma_noise) ** 2
    precision = jacobian.T @ jacobian / noise + torch.diag(posterior.prior_precision_diag)
    function = (jacobian[:4] @ torch.linalg.solve(precision, jacobian[:4].T)).diagonal()
    torch.testing.assert_close(found.variance, function + noise, rtol=1e-6, atol=1e-10)


def _jacobian(model: torch.nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    fixed = {name: p.detach() for name, p in parameters.items()}

    def value(p: dict[str, Tensor], row: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(model, p, (row,))
        return output[..., 0]

    found = torch.func.vmap(torch.func.jacrev(value), in_dims=(None, 0))(fixed, x)
    return torch.cat([found[name].flatten(1) for name in parameters], dim=1)
