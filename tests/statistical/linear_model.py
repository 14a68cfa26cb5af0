"""The oracle of the inference tests: with ``s1, s2`` fixed a WHVI layer is linear in ``g``.

``y = Φ g + ε``, ``g ~ N(0, λ I)``, ``ε ~ N(0, σ² I)``: Bayesian linear regression, whose posterior
and evidence are known in closed form. Everything is float64 and has a leading axis of replicas.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tests.transforms.reference import linear_map_in_g
from whvi.functional import column_features
from whvi.layers import WHVILinear
from whvi.likelihoods import Gaussian
from whvi.posteriors import DiagonalGaussian, FullGaussian
from whvi.priors import FixedPrior

DTYPE = torch.float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Problem(NamedTuple):
    """A layer with ``R`` replicas, its likelihood and data; ``s1, s2`` and the noise are fixed."""

    layer: WHVILinear
    likelihood: Gaussian
    x: Tensor  # (R, N, in)
    y: Tensor  # (R, N, out)
    prior_variance: float

    @property
    def noise_variance(self) -> float:
        return float(self.likelihood.noise_scale.square().flatten()[0])


def make_problem(
    in_features: int,
    out_features: int,
    *,
    posterior: str = "full",
    num_replicas: int = 1,
    num_rows: int = 12,
    prior_variance: float = 0.7,
    noise_variance: float = 0.1,
    seed: int = 0,
) -> Problem:
    """Make a layer with generic scales, correlated inputs, and targets drawn from the model."""
    generator = seeded(seed)
    R = num_replicas
    layer = WHVILinear(
        in_features, out_features, bias=False, posterior=posterior,
        prior=FixedPrior(prior_variance), batch_shape=(R,), dtype=DTYPE,
    )  # fmt: skip
    matrix = layer.matrix
    with torch.no_grad():
        for scale in (matrix.s1, matrix.s2):
            scale.copy_(1 + 0.5 * torch.randn(scale.shape, generator=generator, dtype=DTYPE))
    matrix.s1.requires_grad_(False)
    matrix.s2.requires_grad_(False)
    mix = torch.randn(in_features, in_features, generator=generator, dtype=DTYPE)
    x = torch.randn(R, num_rows, in_features, generator=generator, dtype=DTYPE) @ mix
    x = x / in_features**0.5
    likelihood = Gaussian(
        out_features, batch_shape=(R,), log_noise_variance=math.log(noise_variance), dtype=DTYPE
    )
    likelihood.log_noise_variance.requires_grad_(False)
    problem = Problem(layer, likelihood, x, x.new_zeros(()), prior_variance)
    _, y = draw_targets(problem, x, generator)
    return problem._replace(y=y)


def design(layer: WHVILinear, x: Tensor) -> Tensor:
    """``Φ`` of shape ``(R, N, out, K·D)`` with ``f(x)_o = Σ_k Φ_ok g_k``."""
    plan, s1, s2 = layer.matrix.plan, layer.matrix.s1.detach(), layer.matrix.s2.detach()
    if plan.is_column and plan.out_features == 1:
        padded = functional.pad(x, (0, plan.block_size**2 - plan.in_features))
        return column_features(padded, s1.unsqueeze(-2), s2.unsqueeze(-2)).unsqueeze(-2)
    padded = functional.pad(x, (0, plan.block_size - plan.in_features))
    K, D = plan.vector_shape
    s1, s2 = (v.unflatten(-1, (K, D)) for v in (s1, s2))
    features = x.new_zeros(*x.shape[:-1], K, D, K, D)
    for k in range(K):
        own = (v[:, None, k] for v in (s1, s2))
        features[..., k, :, k, :] = linear_map_in_g(padded, *own)
    return features.flatten(-4, -3).flatten(-2)[..., : plan.out_features, :]


def draw_targets(problem: Problem, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw ``g`` from the prior, one per replica, and targets at ``x``; return both."""
    features = design(problem.layer, x)
    shape = problem.layer.matrix.posterior.loc.shape
    g = torch.randn(shape, generator=generator, dtype=DTYPE) * problem.prior_variance**0.5
    f = torch.einsum("rnok,rk->rno", features, g)
    noise = torch.randn(f.shape, generator=generator, dtype=DTYPE)
    return g, f + problem.noise_variance**0.5 * noise


def flat_design(problem: Problem) -> Tensor:
    """``Φ`` as ``(R, N·out, K·D)``."""
    return design(problem.layer, problem.x).flatten(1, 2)


def log_evidence(problem: Problem) -> Tensor:
    """``log N(y; 0, λ Φ Φᵀ + σ² I)``, shape ``(R,)``."""
    features, y = flat_design(problem), problem.y.flatten(1)
    noise = problem.noise_variance * torch.eye(y.shape[-1], dtype=DTYPE)
    covariance = problem.prior_variance * features @ features.mT + noise
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


def exact_posterior(problem: Problem) -> tuple[Tensor, Tensor]:
    """Mean ``(R, K·D)`` and precision ``(R, K·D, K·D)`` of ``g`` given the data."""
    features, y = flat_design(problem), problem.y.flatten(1)
    identity = torch.eye(features.shape[-1], dtype=DTYPE)
    precision = identity / problem.prior_variance + features.mT @ features / problem.noise_variance
    target = (features.mT @ y.unsqueeze(-1)) / problem.noise_variance
    return torch.linalg.solve(precision, target).squeeze(-1), precision


@torch.no_grad()
def set_exact(problem: Problem) -> None:
    """Put the exact posterior into a full Gaussian, or the best factorized one into a diagonal.

    Blocks do not share outputs, so the exact posterior is independent between them.
    """
    q = problem.layer.matrix.posterior
    mean, precision = exact_posterior(problem)
    q.loc.copy_(mean)
    if isinstance(q, DiagonalGaussian):
        variance = 1 / precision.diagonal(dim1=-2, dim2=-1)
        q.log_scale.copy_(0.5 * variance.log())
        return
    assert isinstance(q, FullGaussian)
    K, D = q.shape[-2:]
    rows, columns = torch.tril_indices(D, D, offset=-1)
    for k in range(K):
        block = precision[:, k * D : (k + 1) * D, k * D : (k + 1) * D]
        L = torch.linalg.cholesky(torch.linalg.inv(block))
        q.log_diagonal.unflatten(-1, (K, D))[:, k] = L.diagonal(dim1=-2, dim2=-1).log()
        q.lower.unflatten(-1, (K, len(rows)))[:, k] = L[:, rows, columns]


def closed_form_elbo(problem: Problem) -> Tensor:
    """The ELBO from pieces of the library, without sampling: ``(R,)``.

    ``E_q log N(y; f, σ²) = log N(y; E f, σ²) − ½ var(f) / σ²``.
    """
    layer, likelihood = problem.layer, problem.likelihood
    mean, variance = layer.output_moments(problem.x)
    at_mean = likelihood.log_prob(mean.unsqueeze(1), problem.y).sum((-2, -1))
    penalty = 0.5 * variance.sum((-2, -1)) / problem.noise_variance
    return at_mean - penalty - layer.kl()
