"""Full Laplace approximation of a dense 2 × 50 network by laplace-torch, linearised predictive.

The network is trained by maximum a posteriori; prior precision (one per parameter tensor) and noise
then maximise the marginal likelihood with the full generalised Gauss-Newton matrix. Install it by
``pip install laplace-torch``.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from reproduction.methods import DataSize, Settings
from reproduction.methods.singles import SingleFits


def _grid(size: DataSize) -> tuple[Settings, ...]:
    """Nothing to choose: the evidence decides."""
    training: Settings = {"steps": 3000, "batch": 64, "lr": 1e-2, "decay": 1e-4}
    return ({"width": 50, "depth": 2, **training, "evidence_steps": 10},)


def _moments(posterior: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    parts = [posterior(part) for part in rows.double().split(500)]
    loc = torch.cat([mean.flatten() for mean, _ in parts])
    variance = torch.cat([variance.flatten() for _, variance in parts])
    return loc.detach(), (variance + float(posterior.sigma_noise) ** 2).sqrt().detach()


def _posterior(settings: Settings, x: Tensor, y: Tensor, seed: int, replica: int) -> Any:
    from laplace import Laplace
    from laplace.curvature import BackPackGGN

    x, y = x.double(), y.double()
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # the package and nn.Linear draw from the global generator
        model = _trained(settings, x, y)
        loader = DataLoader(TensorDataset(x, y.unsqueeze(-1)), batch_size=256)
        posterior = Laplace(model, "regression", "all", "full", backend=BackPackGGN)
        posterior.fit(loader)
    residual = (model(x).squeeze(-1) - y).square().sum().item()
    _maximise_evidence(posterior, residual, len(y), int(settings["evidence_steps"]))
    return posterior


def _trained(settings: Settings, x: Tensor, y: Tensor) -> nn.Sequential:
    """Minimise the squared error with a little weight decay, by Adam with a cosine schedule."""
    width, steps = int(settings["width"]), int(settings["steps"])
    widths = [x.shape[-1], *[width] * int(settings["depth"])]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).double()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=float(settings["lr"]), weight_decay=float(settings["decay"])
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batch = min(int(settings["batch"]), len(y))
    for _ in range(steps):
        rows = torch.randint(len(y), (batch,))
        loss = (model(x[rows]).squeeze(-1) - y[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


def _maximise_evidence(posterior: Any, residual: float, num_rows: int, rounds: int) -> None:
    r"""Choose noise and prior precision by MacKay's fixed point of the marginal likelihood.

    ``γ_k = n_k − λ_k tr Σ_kk``, ``λ_k = γ_k / ‖θ_k‖²``, ``σ² = ‖y − f‖² / (N − Σ γ_k)``: with the
    gradients of the package every step would cost several times as much.
    """
    tensors = list(posterior.model.parameters())
    sizes = [p.numel() for p in tensors]
    squares = torch.stack([p.detach().square().sum() for p in tensors])
    count = torch.tensor(sizes, dtype=torch.float64)
    prior, noise = torch.ones_like(count), (residual / num_rows) ** 0.5
    for _ in range(rounds):
        posterior.prior_precision, posterior.sigma_noise = prior, noise
        factor = torch.linalg.cholesky(posterior.posterior_precision)
        variances = torch.cholesky_inverse(factor).diagonal().split(sizes)
        gamma = count - prior * torch.stack([part.sum() for part in variances])
        prior = gamma / squares
        noise = float((residual / (num_rows - gamma.sum()).clamp_min(1.0)) ** 0.5)
    posterior.prior_precision, posterior.sigma_noise = prior, noise


LAPLACE = SingleFits("laplace", _grid, _posterior, _moments, lambda posterior: posterior.n_params)
