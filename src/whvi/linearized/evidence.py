r"""The evidence of a linearised model: how precise its prior is and how large its noise.

For one replica with ``θ ~ N(0, Λ⁻¹)``, ``Λ = diag(λ)`` with one ``λ_k`` per tensor of ``n_k``
parameters, and noise variances multiplied by ``τ`` (one for all but constant Gaussian noise):

    A = G / τ + Λ,   G = Σ JᵀRJ                              the posterior's precision
    log Z = log p(y | θ*) − ½ Σ λ_k |θ_k|² + ½ Σ n_k log λ_k − ½ log det A  (+ ½ bᵀ A⁻¹ b)

with ``b = Σ Jᵀe / τ − Λ θ*``. The last term belongs to the linear model, whose mean is
``θ* + A⁻¹b``; it is zero where ``θ*`` is a mode, and left out if ``θ*`` is taken for one. With the
effective number of parameters ``γ_k = n_k − λ_k tr(A⁻¹)_k`` (MacKay, 1992) the gradient is

    ∂ log Z / ∂ log λ_k = ½ (γ_k − λ_k |θ_k|²),   ∂ log Z / ∂ log τ = ½ (E / τ + Σ γ_k − M)

where ``E = Σ (y − f)² / σ²`` over ``M`` outputs; both at the mean of the linear model if it counts.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor

from whvi.errors import NumericalError
from whvi.linearized.parameters import ParameterSpace
from whvi.linearized.statistics import Statistics
from whvi.linearized.triangular import cholesky, inverse_of_triangle


class Factored(NamedTuple):
    """What a factorization of ``A`` gives."""

    log_det: Tensor  # log det A − Σ n_k log λ_k
    effective: Tensor  # γ_k, (K,)
    shift: Tensor  # A⁻¹ b, (P,), zero without b
    root: Tensor | None  # C with A⁻¹ = CᵀC, lower triangular, if the factorization has made it


class System(ABC):
    """``A = G / τ + Λ`` for one ``G`` and any ``λ`` and ``τ``."""

    @abstractmethod
    def factor(self, precision: Tensor, noise: Tensor, b: Tensor | None) -> Factored:
        """Factor ``A`` for ``λ (K,)`` and a number ``τ``."""

    @abstractmethod
    def quadratic(self, v: Tensor) -> Tensor:
        """Return ``vᵀ G v``."""


@final
class PrimalSystem(System):
    """``G`` as a ``P × P`` matrix."""

    def __init__(self, gram: Tensor, space: ParameterSpace) -> None:
        self.gram, self.space = gram, space

    def factor(self, precision: Tensor, noise: Tensor, b: Tensor | None) -> Factored:
        spread = self.space.spread(precision)
        factor = cholesky(precision_matrix(self.gram, spread, noise))
        root = inverse_of_triangle(factor)  # A⁻¹ = rootᵀ root
        log_det = 2 * factor.diagonal().log().sum() - spread.log().sum()
        effective = spread.new_tensor(self.space.sizes) - precision * self.space.sums(
            root.square().sum(0)
        )
        shift = torch.zeros_like(spread)
        if b is not None:
            shift = root.mT @ (root @ b)
        return Factored(log_det, effective, shift, root)

    def quadratic(self, v: Tensor) -> Tensor:
        return v @ (self.gram @ v)


@final
class DualSystem(System):
    """``G = ZᵀZ`` by the rows of ``Z (M, P)``, with ``M × M`` matrices only.

    ``S = τ I + Σ_k Z_k Z_kᵀ / λ_k`` has ``det A = det Λ det S / τ^M`` and ``γ_k λ_k = tr(S⁻¹ Z_k
    Z_kᵀ)``; ``A⁻¹ = Λ⁻¹ − Λ⁻¹ Zᵀ S⁻¹ Z Λ⁻¹``.
    """

    def __init__(self, rows: Tensor, space: ParameterSpace) -> None:
        self.rows, self.space = rows, space
        self.kernels = torch.stack([Z @ Z.mT for Z in rows.split(space.sizes, -1)])

    def factor(self, precision: Tensor, noise: Tensor, b: Tensor | None) -> Factored:
        matrix = torch.tensordot(1 / precision, self.kernels, 1)
        matrix.diagonal().add_(noise)
        factor = cholesky(matrix)
        log_det = 2 * factor.diagonal().log().sum() - len(self.rows) * noise.log()
        inverse = torch.cholesky_inverse(factor)
        effective = (self.kernels.flatten(1) @ inverse.flatten()) / precision
        shift = _woodbury(self.rows, self.space.spread(precision), factor, b)
        return Factored(log_det, effective, shift, None)

    def quadratic(self, v: Tensor) -> Tensor:
        return (self.rows @ v).square().sum()


@final
class LowRankSystem(System):
    """``G = BᵀB + diag(d)`` with ``B (l, P)``.

    With ``Δ = Λ + diag(d) / τ`` and ``S = τ I + B Δ⁻¹ Bᵀ``: ``det A = det Δ det S / τ^l`` and
    ``A⁻¹ = Δ⁻¹ − Δ⁻¹ Bᵀ S⁻¹ B Δ⁻¹``.
    """

    def __init__(self, rows: Tensor, diagonal: Tensor, space: ParameterSpace) -> None:
        self.rows, self.diagonal, self.space = rows, diagonal, space

    def factor(self, precision: Tensor, noise: Tensor, b: Tensor | None) -> Factored:
        spread = self.space.spread(precision)
        base = spread + self.diagonal / noise
        matrix = (self.rows / base) @ self.rows.mT
        matrix.diagonal().add_(noise)
        factor = cholesky(matrix)
        log_det = 2 * factor.diagonal().log().sum() - len(self.rows) * noise.log()
        log_det = log_det + (base / spread).log().sum()
        half = torch.linalg.solve_triangular(factor, self.rows / base, upper=False)
        variances = 1 / base - half.square().sum(0)
        effective = spread.new_tensor(self.space.sizes) - precision * self.space.sums(variances)
        return Factored(log_det, effective, _woodbury(self.rows, base, factor, b), None)

    def quadratic(self, v: Tensor) -> Tensor:
        return (self.rows @ v).square().sum() + (self.diagonal * v.square()).sum()


def _woodbury(rows: Tensor, base: Tensor, factor: Tensor, b: Tensor | None) -> Tensor:
    """Return ``(Δ + ZᵀZ / τ)⁻¹ b`` by the Cholesky factor of ``S = τ I + Z Δ⁻¹ Zᵀ``."""
    if b is None:
        return torch.zeros_like(base)
    shift = b / base
    change = torch.cholesky_solve((rows @ shift).unsqueeze(-1), factor).squeeze(-1)
    moved: Tensor = shift - (change @ rows) / base
    return moved


def precision_matrix(gram: Tensor, precision: Tensor, noise: Tensor) -> Tensor:
    """Return ``A = G / τ + Λ`` for ``G (P, P)``, ``λ (P,)``."""
    matrix = gram / noise
    matrix.diagonal().add_(precision)
    return matrix


class Value(NamedTuple):
    """The evidence at one point, its gradient and the fixed point that the point leads to."""

    log_evidence: float
    gradient: Tensor  # with respect to (log λ, log τ)
    effective: Tensor  # γ_k
    shift: Tensor  # from θ* to the mean of the linear model
    root: Tensor | None  # of A⁻¹


class Evidence:
    """The evidence of one replica as a function of ``(log λ_k, log τ)``, ``(K + 1,)``.

    Args:
        statistics: Of one replica (no leading axes).
        theta: ``θ*``.
        space: Which parts of it share a precision.
        linear: Whether the mean is that of the linear model, else ``θ*`` is taken for the mode.
    """

    def __init__(
        self, statistics: Statistics, theta: Tensor, space: ParameterSpace, *, linear: bool
    ) -> None:
        self.statistics, self.theta, self.space, self.linear = statistics, theta, space, linear
        if statistics.rows is not None and statistics.diagonal is not None:
            self.system: System = LowRankSystem(statistics.rows, statistics.diagonal, space)
        elif statistics.rows is not None:
            self.system = DualSystem(statistics.rows, space)
        else:
            assert statistics.gram is not None
            self.system = PrimalSystem(statistics.gram, space)

    def of_linear_model(self) -> Evidence:
        """Return the evidence of the same rows with the mean of the linear model."""
        other = copy.copy(self)
        other.linear = True
        return other

    def __call__(self, point: Tensor) -> Value:
        """Evaluate value and gradient with one factorization."""
        precision, noise = point[:-1].exp(), point[-1].exp()
        s, theta, b = self.statistics, self.theta, None
        if self.linear:
            b = s.gradient / noise - self.space.spread(precision) * theta
        log_det, effective, shift, root = self.system.factor(precision, noise, b)
        squares = s.squares
        log_prob = s.log_prob - 0.5 * (s.count * point[-1] + squares * (1 / noise - 1))
        value = log_prob - 0.5 * (precision * self.space.sums(theta.square())).sum() - 0.5 * log_det
        if b is not None:
            value = value + 0.5 * b @ shift
            theta = theta + shift
            squares = squares - 2 * s.gradient @ shift + self.system.quadratic(shift)
        slopes = effective - precision * self.space.sums(theta.square())
        noise_slope = squares / noise + effective.sum() - s.count
        gradient = 0.5 * torch.cat([slopes, noise_slope.reshape(1)])
        return Value(float(value), gradient, effective, shift, root)


_LARGEST_PRECISION = 1e10
_LARGEST_SPREAD = 100.0  # of a prior, in units of the root mean square of its parameters
_LOG_NOISE_RANGE = (math.log(1e-6), math.log(1e6))
_LEAST_SQUARE = 1e-12  # of a tensor that is zero: its precision goes to the end of the range


class Hyperparameters(NamedTuple):
    """The best point found for one replica."""

    precision: Tensor  # λ, (K,)
    noise: Tensor  # τ, a number
    shift: Tensor  # from θ* to the mean, (P,)
    log_evidence: Tensor
    root: Tensor | None  # C with Σ = CᵀC, if the search has made it


def maximise(
    evidence: Evidence,
    *,
    precision: Tensor | None,
    fit_noise: bool,
    tolerance: float = 0.3,
    max_iterations: int = 30,
) -> Hyperparameters:
    """Climb by MacKay's fixed point, ``λ_k ← γ_k / |θ_k|²`` and ``τ ← E / (M − Σ γ_k)``.

    It gets within a nat of the maximum in some five factorizations where a quasi-Newton method
    takes twice as many. The best point seen counts, as a step may go too far.

    Args:
        evidence: Of one replica.
        precision: ``λ`` if it is given, ``None`` to find it.
        fit_noise: Whether ``τ`` is found; else it is one.
        tolerance: Stop after a gain of less, in nats.
        max_iterations: Factorizations at most.
    """
    point = _start(evidence, precision)
    best, best_point = evidence(point), point
    value = best
    for _ in range(max_iterations - 1 if precision is None or fit_noise else 0):
        point = _fixed_point(evidence, point, value, precision is None, fit_noise)
        try:
            last, value = value, evidence(point)
        except NumericalError:  # the step went where nothing can be computed
            break
        if value.log_evidence > best.log_evidence:
            best, best_point = value, point
        if abs(value.log_evidence - last.log_evidence) < tolerance:
            break
    log_evidence = point.new_tensor(best.log_evidence)
    found = best_point[:-1].exp() if precision is None else precision
    return Hyperparameters(found, best_point[-1].exp(), best.shift, log_evidence, best.root)


def _start(evidence: Evidence, precision: Tensor | None) -> Tensor:
    """Begin as if the data determined every parameter: ``λ_k = n_k / |θ_k|²``."""
    if precision is None:
        precision = _natural_precision(evidence)
    return torch.cat([precision.log(), precision.new_zeros(1)])


def _natural_precision(evidence: Evidence) -> Tensor:
    squares = evidence.space.sums(evidence.theta.square()).clamp_min(_LEAST_SQUARE)
    return (squares.new_tensor(evidence.space.sizes) / squares).clamp_max(_LARGEST_PRECISION)


def _fixed_point(
    evidence: Evidence, point: Tensor, value: Value, fit_precision: bool, fit_noise: bool
) -> Tensor:
    s, effective = evidence.statistics, value.effective.clamp_min(_LEAST_SQUARE)
    precision, noise = point[:-1], point[-1:]
    if fit_precision:
        squares = evidence.space.sums((evidence.theta + value.shift).square())
        found = (effective / squares.clamp_min(_LEAST_SQUARE)).clamp_max(_LARGEST_PRECISION)
        # rows that say nothing about a tensor would let its prior grow without bound
        least = _natural_precision(evidence) / _LARGEST_SPREAD**2
        precision = torch.maximum(found, least).log()
    if fit_noise:
        free = max(s.count - float(effective.sum()), 0.01 * s.count)
        # E / τ from the slope ½ (E / τ + Σ γ − M)
        squares = 2 * value.gradient[-1:] + s.count - value.effective.sum()
        noise = (noise + (squares / free).log()).clamp(*_LOG_NOISE_RANGE)
    return torch.cat([precision, noise])
