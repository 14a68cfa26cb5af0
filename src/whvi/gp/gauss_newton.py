r"""Variable projection: Gauss-Newton in what shapes ``ψ``, with the coefficients solved for.

Minimises ``‖y − Ψ(θ) a‖²`` over ``a`` and ``θ``. At every ``θ`` the best ``a`` is a linear least
squares problem, so only ``θ`` needs steps (Golub and Pereyra, 1973). With ``r`` the residual and
``J = ∂(Ψa)/∂θ``, a step solves ``(JᵀP J + λ I) δ = JᵀP r`` where ``P`` removes what a change of
``a`` could do as well (Kaufman, 1975), and ``λ`` follows Levenberg and Marquardt. Structured
weights are a product of three vectors: quasi-Newton methods crawl where this takes a few steps.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from whvi.gp.basis import Basis, Tangent
from whvi.gp.collapsed import Statistics
from whvi.gp.streaming import chunks, stream_statistics

_RIDGE = 1e-11  # relative to the mean of the diagonal: what float64 sums of float32 features carry
_LONGEST_STEP = 1.0
_PATIENCE = 5  # steps that gain less than _SMALL_GAIN before the search is over
_SMALL_GAIN = 1e-3
_TRIALS = 12  # of one step, each ten times as damped as the one before


@runtime_checkable
class Tangible(Protocol):
    """A basis that knows the derivative of its function, row by row."""

    def shape_parameters(self) -> list[nn.Parameter]:
        """What Gauss-Newton moves."""

    def tangent(self, coefficients: Tensor) -> Tangent:
        """Return the map of rows to ``ψ (n, K)`` and ``∂(ψ·a)/∂θ (n, P)``, both float64."""

    def log_variance_parameter(self) -> nn.Parameter:
        """``log σ_f²``, by which ``ψ`` is scaled."""


class LeastSquares(NamedTuple):
    """Coefficients before the variance was set, and the mean square residual after every step."""

    coefficients: Tensor
    history: list[float]


@torch.no_grad()
def gauss_newton(basis: Basis, x: Tensor, y: Tensor, *, steps: int) -> LeastSquares:
    """Fit ``basis`` in place to rows ``x (n, d)``, ``y (n,)``, at most ``steps`` accepted steps."""
    assert isinstance(basis, Tangible)
    parameters = basis.shape_parameters()
    statistics = stream_statistics(basis, x, y)
    coefficients, error = _solve(statistics)
    history, damping, idle = [error], 1e-3, 0
    for _ in range(steps):
        curvature, slope = _normal_equations(basis, x, y, coefficients, statistics.gram)
        start = parameters_to_vector(parameters)
        for _ in range(_TRIALS):
            step = _damped_step(curvature, slope, damping)
            vector_to_parameters(start + step, parameters)
            statistics = stream_statistics(basis, x, y)
            trial, trial_error = _solve(statistics)
            if trial_error < error:
                break
            damping *= 10
        else:
            vector_to_parameters(start, parameters)
            break
        idle = idle + 1 if trial_error > (1 - _SMALL_GAIN) * error else 0
        coefficients, error, damping = trial, trial_error, max(damping / 5, 1e-12)
        history.append(error)
        if idle == _PATIENCE:
            break
    # σ_f² such that the coefficients look like draws of their prior N(0, I)
    basis.log_variance_parameter().add_(coefficients.square().mean().log())
    return LeastSquares(coefficients, history)


def _solve(statistics: Statistics) -> tuple[Tensor, float]:
    """Return the least squares coefficients and the mean square residual (infinite if none)."""
    gram, projection, sum_squares, num_rows = statistics
    ridge = _RIDGE * gram.diagonal().mean()
    factor, failed = torch.linalg.cholesky_ex(gram + ridge * _identity(len(gram)))
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        return torch.zeros_like(projection), float("inf")
    coefficients = torch.cholesky_solve(projection.unsqueeze(-1), factor).squeeze(-1)
    square = sum_squares - 2 * projection @ coefficients + coefficients @ gram @ coefficients
    return coefficients, float(square) / num_rows


def _normal_equations(
    basis: Basis, x: Tensor, y: Tensor, coefficients: Tensor, gram: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``JᵀPJ`` and ``JᵀPr`` at the current parameters, for ``gram = ΨᵀΨ``."""
    assert isinstance(basis, Tangible)
    size = len(coefficients)
    others = sum(parameter.numel() for parameter in basis.shape_parameters()) + 1
    products = torch.zeros(others, size + others, dtype=torch.float64)  # [J, r]ᵀ [Ψ, J, r]
    tangent_of = basis.tangent(coefficients)
    for part_x, part_y in chunks(basis, x, y):
        psi, tangent = tangent_of(part_x)
        residual = part_y.double() - psi @ coefficients
        columns = torch.cat([psi, tangent, residual.unsqueeze(-1)], -1)
        products.addmm_(columns[:, size:].T, columns)
    to_psi, projected = products[:, :size], products[:, size:]
    ridge = _RIDGE * gram.diagonal().mean()
    factor = torch.linalg.cholesky(gram + ridge * _identity(size))
    projected = projected - to_psi @ torch.cholesky_solve(to_psi.T, factor)
    return projected[:-1, :-1], projected[:-1, -1]


def _damped_step(curvature: Tensor, slope: Tensor, damping: float) -> Tensor:
    scale = curvature.diagonal().mean() * _identity(len(slope))
    step = torch.linalg.solve(curvature + damping * scale, slope)
    longest = step.abs().max()
    shortened: Tensor = step * (_LONGEST_STEP / longest).clamp_max(1)
    return shortened


def _identity(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)
