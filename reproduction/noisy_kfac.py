r"""Noisy K-FAC (Zhang, Sun, Duvenaud and Grosse, 2018): variational inference by natural gradients.

For a layer ``s = W a`` (``a`` ends with a constant 1 for the bias) the posterior is the matrix-
variate Gaussian

.. math:: W \sim \mathcal N\left(M,\ \tfrac{λ}{N} (A ⊗ S + γ_{in} I)^{-1}\right), \qquad
          A = E[a a^T],\quad S = E[\nabla_s \log p\, \nabla_s \log p^T],\quad
          γ_{in} = \frac{λ}{N η}

with prior ``N(0, η I)`` and KL weight ``λ``. One step draws ``W``, takes the gradient ``V`` of the
mean log-likelihood minus ``γ_in W``, and moves

.. math:: M ← M + α\, (A ⊗ S + (γ_{in} + γ_{ex}) I)^{-1} V .

The factors are moving averages; ``S`` is taken at targets drawn from the model (the true Fisher).
The paper damps each factor by itself, which approximates the damped Kronecker product; here that
product is inverted exactly in the eigenbasis of the factors. For one linear layer with Gaussian
noise the fixed point is then the exact posterior of Bayesian linear regression.

Leading axes are replicas: R networks, each with its own λ and γ_ex, train in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from whvi.errors import ConfigError, NumericalError
from whvi.likelihoods import Likelihood
from whvi.training.config import seeded_generator


@dataclass(frozen=True, kw_only=True)
class NoisyKFACConfig:
    """Options of :func:`fit_noisy_kfac`.

    Attributes:
        num_steps, batch_size: As in :class:`whvi.FitConfig`.
        learning_rate: Peak of ``α``; it warms up linearly and falls by a cosine.
        momentum: Of the preconditioned step.
        decay: Of the moving averages of the factors, per update of them.
        factor_every, invert_every: Steps between updates of the factors and of their eigenbases.
        trust: Largest squared length of a step in the metric of its own Fisher matrix.
        noise_learning_rate: Adam's, for the noise of the likelihood.
        warmup_steps, noise_hold_steps: As in :class:`whvi.FitConfig`.
        seed: Fixes start, batches and noise.
    """

    num_steps: int = 8000
    batch_size: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    decay: float = 0.95
    factor_every: int = 5
    invert_every: int = 50
    trust: float = 1e-3
    noise_learning_rate: float = 1e-2
    warmup_steps: int = 200
    noise_hold_steps: int = 500
    seed: int = 0


class Curvature(NamedTuple):
    """Eigenbases and eigenvalues of both factors of one layer, each with leading axis R."""

    a_values: Tensor
    a_basis: Tensor
    s_values: Tensor
    s_basis: Tensor

    @classmethod
    def of(cls, a: Tensor, s: Tensor) -> Curvature:
        """Decompose ``A (R, in, in)`` and ``S (R, out, out)``."""
        a_values, a_basis = torch.linalg.eigh(a)
        s_values, s_basis = torch.linalg.eigh(s)
        return cls(a_values.clamp_min(0), a_basis, s_values.clamp_min(0), s_basis)

    def spectrum(self, damping: Tensor) -> Tensor:
        """Return the eigenvalues of ``A ⊗ S + damping``, shape ``(R, out, in)``."""
        product = self.s_values[:, :, None] * self.a_values[:, None, :]
        return product + damping[:, None, None]

    def solve(self, v: Tensor, damping: Tensor) -> Tensor:
        """Return ``(A ⊗ S + damping)⁻¹ v`` for ``v (R, out, in)``."""
        rotated = self.s_basis.mT @ v @ self.a_basis
        return self.s_basis @ (rotated / self.spectrum(damping)) @ self.a_basis.mT

    def spread(self, noise: Tensor, damping: Tensor, temperature: Tensor) -> Tensor:
        """Colour ``noise (..., R, out, in)`` to covariance ``temperature (A ⊗ S + damping)⁻¹``."""
        scale = (temperature[:, None, None] / self.spectrum(damping)).sqrt()
        return self.s_basis @ (noise * scale) @ self.a_basis.mT


@final
class MatrixGaussianNetwork:
    """R perceptrons with ReLU whose layers have matrix-variate Gaussian posteriors.

    Args:
        widths: From input to output.
        num_data: ``N``.
        kl_weight: ``λ``, shape ``(R,)``.
        prior_variance: ``η``, shape ``(R,)``.
        generator: Draws the starting point: He, biases zero.
    """

    def __init__(
        self,
        widths: Sequence[int],
        num_data: int,
        kl_weight: Tensor,
        prior_variance: Tensor,
        generator: torch.Generator,
    ) -> None:
        if not bool((kl_weight > 0).all()):
            raise ConfigError(f"every KL weight must be above 0, got {kl_weight.tolist()}")
        self.num_replicas = len(kl_weight)
        self.temperature = kl_weight / num_data
        self.intrinsic_damping = self.temperature / prior_variance
        self.means = [self._start(before, after, generator) for before, after in pairwise(widths)]
        self.a_factors = [_identity(m.shape[-1], m) for m in self.means]
        self.s_factors = [_identity(m.shape[-2], m) for m in self.means]
        self.decompose()

    @property
    def num_parameters(self) -> int:
        """Means and both (symmetric) factors of one network."""
        factors = sum(f.shape[-1] * (f.shape[-1] + 1) // 2 for f in self.a_factors + self.s_factors)
        return factors + sum(m[0].numel() for m in self.means)

    def decompose(self) -> None:
        """Bring the eigenbases up to date with the factors."""
        self.curvatures = [
            Curvature.of(a, s) for a, s in zip(self.a_factors, self.s_factors, strict=True)
        ]

    def draw_weights(self, generator: torch.Generator, num_draws: int = 1) -> list[Tensor]:
        """Draw all matrices, each ``(S, R, out, in + 1)``."""
        return [
            mean
            + curvature.spread(
                torch.randn((num_draws, *mean.shape), generator=generator, dtype=mean.dtype),
                self.intrinsic_damping,
                self.temperature,
            )
            for mean, curvature in zip(self.means, self.curvatures, strict=True)
        ]

    def update_factors(self, inputs: list[Tensor], gradients: list[Tensor], decay: float) -> None:
        """Average in ``E[a aᵀ]`` and ``E[g gᵀ]`` of a batch, ``(R, B, ·)`` each."""
        for k, (a, g) in enumerate(zip(inputs, gradients, strict=True)):
            self.a_factors[k].lerp_(a.mT @ a / a.shape[-2], 1 - decay)
            self.s_factors[k].lerp_(g.mT @ g / g.shape[-2], 1 - decay)

    def _start(self, before: int, after: int, generator: torch.Generator) -> Tensor:
        shape = (self.num_replicas, after, before)
        weight = torch.randn(shape, generator=generator) * math.sqrt(2 / before)
        return functional.pad(weight, (0, 1))


def forward(weights: Sequence[Tensor], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Run ``x (..., N, d)`` through the layers; return their inputs and their outputs."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for k, weight in enumerate(weights):
        a = functional.pad(x if k == 0 else functional.relu(outputs[-1]), (0, 1), value=1.0)
        inputs.append(a)
        outputs.append(a @ weight.mT)
    return inputs, outputs


def fit_noisy_kfac(
    network: MatrixGaussianNetwork,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    damping: Tensor,
    config: NoisyKFACConfig,
    trained: Likelihood | None = None,
) -> None:
    """Train R networks in place.

    Args:
        network: Starting point.
        likelihood: Its noise parameters are trained along, by Adam.
        x, y: Shapes ``(R, N, d)`` and ``(R, N)``.
        damping: ``γ_ex``, shape ``(R,)``.
        config: Options.
        trained: Gives the gradients of the steps, if not ``likelihood`` itself; such as
            :class:`whvi.likelihoods.BalancedGradients` of it. The Fisher factors, and so the
            covariance of the posterior, are those of ``likelihood``.
    """
    trained = likelihood if trained is None else trained
    generator = seeded_generator("noisy-kfac", config.seed)
    noise = torch.optim.Adam(likelihood.parameters(), lr=config.noise_learning_rate)
    velocity = [torch.zeros_like(m) for m in network.means]
    for step in range(config.num_steps):
        rows = _rows(len(x), x.shape[1], config.batch_size, generator)
        batch_x = x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))
        weights = [w[0].requires_grad_() for w in network.draw_weights(generator)]
        inputs, outputs = forward(weights, batch_x)
        f = outputs[-1].unsqueeze(1)
        loss = -trained.log_prob(f, y.gather(1, rows)).mean((-2, -1))
        if not bool(loss.isfinite().all()):
            raise NumericalError(f"the objective of noisy K-FAC is not finite at step {step + 1}")
        refresh = step % config.factor_every == 0 or step < config.invert_every
        if refresh:
            gradients = _fisher_gradients(likelihood, f, outputs, generator)
            decay = min(config.decay, step / (step + 1))  # early on, the plain average
            network.update_factors([a.detach() for a in inputs], gradients, decay)
        if step % config.invert_every == 0 or step in (1, 5, 10, 20):
            network.decompose()
        _descend(network, velocity, weights, loss, likelihood, damping, _rate(config, step), config)
        _step_noise(noise, likelihood, hold=step < config.noise_hold_steps)


def _descend(
    network: MatrixGaussianNetwork,
    velocity: list[Tensor],
    weights: list[Tensor],
    loss: Tensor,
    likelihood: Likelihood,
    damping: Tensor,
    rate: float,
    config: NoisyKFACConfig,
) -> None:
    """Move the means by the natural gradient, within the trust region."""
    parameters = [*weights, *likelihood.parameters()]
    gradients = torch.autograd.grad(loss.sum(), parameters)
    for parameter, gradient in zip(likelihood.parameters(), gradients[len(weights) :], strict=True):
        parameter.grad = gradient
    total = network.intrinsic_damping + damping
    steps, length = [], torch.zeros_like(total)
    for weight, gradient, curvature in zip(weights, gradients, network.curvatures, strict=False):
        v = -gradient - network.intrinsic_damping[:, None, None] * weight.detach()
        natural = curvature.solve(v, total)
        length = length + (natural * v).sum((-2, -1))
        steps.append(natural)
    shrink = (config.trust / (rate**2 * length).clamp_min(1e-30)).sqrt().clamp_max(1.0)
    for mean, speed, natural in zip(network.means, velocity, steps, strict=True):
        speed.mul_(config.momentum).add_(shrink[:, None, None] * natural)
        mean.add_(speed, alpha=rate * (1 - config.momentum))


def _fisher_gradients(
    likelihood: Likelihood, f: Tensor, outputs: list[Tensor], generator: torch.Generator
) -> list[Tensor]:
    """Return ``∇_s log p(ŷ | f)`` per row for targets drawn from the model, ``(R, B, out)``."""
    with torch.no_grad():
        drawn = likelihood.predictive(f).sample(1, generator=generator)[0].to(f.dtype)
    log_prob = likelihood.log_prob(f, drawn).sum()
    return list(torch.autograd.grad(log_prob, outputs, retain_graph=True))


def _rows(num_replicas: int, num_rows: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw row numbers ``(R, B)`` with replacement; a batch of all rows is all rows."""
    if size >= num_rows:
        return torch.arange(num_rows).expand(num_replicas, -1)
    return torch.randint(num_rows, (num_replicas, size), generator=generator)


def _step_noise(optimizer: torch.optim.Adam, likelihood: Likelihood, *, hold: bool) -> None:
    if not hold:
        optimizer.step()
    for parameter in likelihood.parameters():
        parameter.grad = None


def _rate(config: NoisyKFACConfig, step: int) -> float:
    """Return ``α``: linear warm-up, then a cosine to zero."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.num_steps - config.warmup_steps)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def _identity(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype).repeat(len(like), 1, 1)
