"""The sparse Gaussian process of GPyTorch (SGPR), as a reference for our collapsed one.

Needs ``pip install 'whvi[gp]'``. Everything is float64; the jitter is as small as ours.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reproduction.figure2.models import InducingBasis
from whvi.errors import MissingDependencyError

_JITTER = 1e-9


class ReferenceFit(NamedTuple):
    """A trained GPyTorch model: bound over all rows in nats, and predictions of the function."""

    bound: float
    mean: Tensor  # (N_test,)
    variance: Tensor  # (N_test,), noise not included
    noise_variance: float


def gpytorch_bound(basis: InducingBasis, noise_variance: float, x: Tensor, y: Tensor) -> float:
    """Return GPyTorch's collapsed bound with the parameters of ``basis``, in nats over all rows."""
    with _settings():
        model, objective = _build(basis, noise_variance, x, y)
        model.train()
        with torch.no_grad():
            return float(objective(model(x), y)) * len(y)


def fit_gpytorch(
    start: InducingBasis, x: Tensor, y: Tensor, test_x: Tensor, *, iterations: int = 200
) -> ReferenceFit:
    """Train GPyTorch's model by L-BFGS from the parameters of ``start`` and predict ``test_x``."""
    with _settings():
        model, objective = _build(start, 0.1, x, y)
        model.train()
        optimizer = torch.optim.LBFGS(
            model.parameters(),
            max_iter=iterations,
            max_eval=iterations,
            history_size=30,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = -objective(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            bound = float(objective(model(x), y)) * len(y)
            model.eval()
            predicted = model(test_x)
            noise = float(model.likelihood.noise)
            return ReferenceFit(bound, predicted.mean, predicted.variance, noise)


def _build(basis: InducingBasis, noise_variance: float, x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """Return the model at the parameters of ``basis``, and its bound per row."""
    gpytorch = _gpytorch()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-9)
    ).double()
    likelihood.noise = noise_variance
    rbf = gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[-1])
    scaled = gpytorch.kernels.ScaleKernel(rbf).double()
    rbf.lengthscale = basis.log_lengthscale.detach().exp()
    scaled.outputscale = basis.log_variance.detach().exp()
    kernel = gpytorch.kernels.InducingPointKernel(
        scaled, inducing_points=basis.locations.detach().clone(), likelihood=likelihood
    )

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc,name-defined]  # no types there
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.covar_module = kernel

        def forward(self, rows: Tensor) -> Any:
            mean = torch.zeros(len(rows), dtype=rows.dtype)
            return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(rows))

    model = Model().double()
    return model, gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Exact linear algebra with a small jitter, and no remarks about either."""
    gpytorch = _gpytorch()
    with (
        warnings.catch_warnings(),
        gpytorch.settings.cholesky_jitter(double_value=_JITTER),
        gpytorch.settings.fast_computations(
            covar_root_decomposition=False, log_prob=False, solves=False
        ),
        gpytorch.settings.max_cholesky_size(10**6),
    ):
        warnings.simplefilter("ignore")
        yield


def _gpytorch() -> Any:
    try:
        import gpytorch
    except ImportError as error:
        raise MissingDependencyError(
            "the reference needs GPyTorch: pip install 'whvi[gp]'"
        ) from error
    return gpytorch
