"""The collapsed bound of GPyTorch's sparse Gaussian process (SGPR), in float64."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import gpytorch
import torch
from torch import Tensor

from reproduction.figure2.models import InducingBasis

_JITTER = 1e-9


def gpytorch_bound(basis: InducingBasis, noise_variance: float, x: Tensor, y: Tensor) -> float:
    """Return GPyTorch's collapsed bound with the parameters of ``basis``, in nats over all rows."""
    with _settings():
        model, objective = _build(basis, noise_variance, x, y)
        model.train()
        with torch.no_grad():
            return float(objective(model(x), y)) * len(y)


def _build(basis: InducingBasis, noise_variance: float, x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """Return the model at the parameters of ``basis``, and its bound per row."""
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

    class Model(gpytorch.models.ExactGP):
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
