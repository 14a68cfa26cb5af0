r"""Exact Gaussian process regression by GPyTorch, in float64.

``f ~ GP(m, a² k(x / l))`` with a lengthscale per column, ``y = f + ε``. The hyper-parameters
maximise the marginal likelihood of at most :data:`SEARCH_ROWS` rows, drawn with the seed; of the
RBF and the Matérn-5/2 kernel the one with the larger evidence is taken. The posterior is that of
all rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reproduction.methods import DataSize, Settings
from reproduction.methods.singles import SingleFits

SEARCH_ROWS = 800
_KERNELS = ("rbf", "matern52")


def _grid(size: DataSize) -> tuple[Settings, ...]:
    """Nothing to choose: the evidence decides."""
    return ({"steps": 100, "lr": 0.1},)


@torch.no_grad()
def _components(process: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    with _by_cholesky():
        found = process.likelihood(process(rows.double()))
        return found.mean, found.variance.sqrt()


def _num_hyperparameters(process: Any) -> int:
    return sum(p.numel() for p in process.parameters())


def _by_cholesky() -> Any:
    """No conjugate gradients, which the package prefers from 800 rows on."""
    from gpytorch.settings import fast_computations

    return fast_computations(False, False, False)


def _best(settings: Settings, x: Tensor, y: Tensor, seed: int, replica: int) -> Any:
    """Return the process whose kernel has the larger evidence, conditioned on all rows."""
    x, y = x.double(), y.double()
    generator = torch.Generator().manual_seed(seed)
    few = torch.randperm(len(y), generator=generator)[:SEARCH_ROWS]
    found = [_search(kernel, settings, x[few], y[few]) for kernel in _KERNELS]
    process, _ = max(found, key=lambda pair: pair[1])
    process.set_train_data(x, y, strict=False)
    return process.eval()


def _search(kernel: str, settings: Settings, x: Tensor, y: Tensor) -> tuple[Any, float]:
    """Maximise the marginal likelihood by Adam; return the process and its evidence per row."""
    from gpytorch import ExactMarginalLogLikelihood

    process = _process(kernel, x, y)
    evidence = ExactMarginalLogLikelihood(process.likelihood, process)
    optimizer = torch.optim.Adam(process.parameters(), lr=float(settings["lr"]))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(settings["steps"]))
    process.train()
    value = torch.tensor(0.0)
    for _ in range(int(settings["steps"])):
        optimizer.zero_grad()
        with _by_cholesky():
            value = evidence(process(x), y)
            (-value).backward()
        optimizer.step()
        schedule.step()
    return process, value.item()


def _process(kernel: str, x: Tensor, y: Tensor) -> Any:
    """Build a GPyTorch model; the package is imported here because it is not always there."""
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.means import ConstantMean
    from gpytorch.models import ExactGP

    columns = x.shape[-1]
    rbf, matern = RBFKernel(ard_num_dims=columns), MaternKernel(2.5, ard_num_dims=columns)
    shape = rbf if kernel == "rbf" else matern

    class Process(ExactGP):  # type: ignore[misc]  # gpytorch has no types
        def __init__(self) -> None:
            super().__init__(x, y, GaussianLikelihood())
            self.mean, self.kernel = ConstantMean(), ScaleKernel(shape)

        def forward(self, rows: Tensor) -> Any:
            return MultivariateNormal(self.mean(rows), self.kernel(rows))

    return Process().double()


EXACT_GP = SingleFits("exact-gp", _grid, _best, _components, _num_hyperparameters)
