r"""Train a collapsed model: several starts, Gauss-Newton where the basis has a Jacobian, L-BFGS.

Starts are compared on a part of the rows after a short search, the best (one in six) are refined on
more rows, and the posterior and the noise come from all rows in the end.

Gauss-Newton by variable projection (Golub and Pereyra, 1973) minimises ``‖y − Ψ(θ) a‖²`` over
``θ``; the best ``a`` is a linear problem. With the residual ``r``, ``J = ∂(Ψa)/∂θ``, a step solves

.. math:: (J^\top P J + \lambda I)\, \delta = J^\top P r

where ``P`` projects out what a change of ``a`` can achieve (Kaufman, 1975), and ``λ`` follows
Levenberg and Marquardt. Structured weights are a product of three vectors: quasi-Newton methods
need many steps where this takes a few.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from whvi._checks import check_positive_int
from whvi.errors import NumericalError
from whvi.gp.basis import Basis, FeatureBasis
from whvi.gp.collapsed import (
    CoefficientPosterior,
    Statistics,
    bound_with_gradients,
    chunks,
    collapsed_bound,
    stream_statistics,
)

_SCREENING_ROWS = 1000
_SCREENING_STEPS = 25
_STARTS_PER_FINALIST = 6
_FIRST_NOISE_VARIANCE = 0.1  # of standardised targets
_NOISE_VARIANCE_RANGE = (1e-9, 1e2)
_RIDGE = 1e-11  # relative to the mean of the diagonal: what float64 sums of float32 features carry
_LONGEST_STEP = 1.0
_PATIENCE = 5  # steps that gain less than _SMALL_GAIN before the search is over
_SMALL_GAIN = 1e-3
_TRIALS = 12  # of one step, each ten times as damped as the one before


@dataclass(frozen=True, eq=False)
class CollapsedFit:
    """A trained model."""

    basis: Basis  # ψ with its trained parameters
    posterior: CoefficientPosterior  # q(a), from all rows
    noise_variance: float  # σ²
    bound: float  # on the log evidence of all rows, in nats
    history: tuple[float, ...]  # the bound over the subset, scaled to all rows, seen by L-BFGS


def fit_collapsed(
    basis: Basis,
    x: Tensor,
    y: Tensor,
    *,
    covariance: str = "diagonal",
    starts: int = 3,
    iterations: int = 40,
    subset: int = 3000,
    seed: int = 0,
    use_jacobian: bool = True,
) -> CollapsedFit:
    """Train ``basis`` in place and return it with its posterior.

    Args:
        basis, x, y: ``ψ``; standardised rows ``(N, d)`` and targets ``(N,)``.
        covariance: Of ``q(a)``: ``"diagonal"`` or ``"full"``.
        starts: Random starts; the best of every six go on after a short search.
        iterations: Gauss-Newton steps at most, followed by a third as many evaluations of the bound
            by L-BFGS; without Gauss-Newton, as many evaluations by L-BFGS.
        subset: Rows that the search sees; the likelihood counts N/n times.
        seed: Decides starts and subset.
        use_jacobian: Begin with Gauss-Newton if the basis has a Jacobian. With few rows per
            coefficient, least squares would follow single rows.
    """
    for name, value in (("starts", starts), ("iterations", iterations), ("subset", subset)):
        check_positive_int(name, value)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)[:subset]
    search = _Search(basis, x[order], y[order], covariance, len(y), use_jacobian)
    history = search.run(starts, iterations, generator)
    statistics, prior = stream_statistics(basis, x, y), basis.prior_variance()
    prior = None if prior is None else prior.detach()
    noise = best_noise_variance(
        statistics, search.noise_variance(), covariance, prior_variance=prior
    )
    bound = collapsed_bound(statistics, noise, covariance, prior_variance=prior)
    return CollapsedFit(basis, bound.posterior, noise, float(bound.value), tuple(history))


class _Search:
    """The rows of a search, and the noise that is trained along with the basis."""

    def __init__(
        self, basis: Basis, x: Tensor, y: Tensor, covariance: str, num_data: int, use_jacobian: bool
    ) -> None:
        self.basis, self.x, self.y = basis, x, y
        self.covariance, self.num_data = covariance, num_data
        self.log_noise = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.smooth = basis if use_jacobian and isinstance(basis, FeatureBasis) else None
        # every parameter, also frozen frequencies: they belong to a start
        self.parameters = [*basis.parameters(), self.log_noise]

    def noise_variance(self) -> float:
        return float(self.log_noise.detach().exp().clamp(*_NOISE_VARIANCE_RANGE))

    def run(self, starts: int, iterations: int, generator: torch.Generator) -> list[float]:
        """Leave the basis at the best point found; return the bounds that L-BFGS saw there."""
        refined: list[tuple[list[float], Tensor]] = []
        for state in self._screen(starts, iterations, generator):
            vector_to_parameters(state, self.parameters)
            refined.append((self._refine(iterations), _vector(self.parameters)))
        history, state = max(refined, key=lambda each: max(each[0]))
        vector_to_parameters(state, self.parameters)
        return history

    def _screen(self, starts: int, iterations: int, generator: torch.Generator) -> list[Tensor]:
        """Return the parameters of the best of ``starts`` after a short search on few rows."""
        found: list[tuple[float, Tensor]] = []
        for _ in range(starts):
            self.basis.restart(self.x, generator)
            self._set_noise(_FIRST_NOISE_VARIANCE)
            bound = 0.0 if starts == 1 else self._try_start(iterations)
            found.append((bound, _vector(self.parameters)))
        found.sort(key=lambda each: each[0], reverse=True)
        return [state for _, state in found[: max(1, starts // _STARTS_PER_FINALIST)]]

    def _try_start(self, iterations: int) -> float:
        x, y = self.x[:_SCREENING_ROWS], self.y[:_SCREENING_ROWS]
        if self.smooth is None:
            return max(self._climb(x, y, max(iterations // 4, 10)))
        self._set_noise(gauss_newton(self.smooth, x, y, steps=_SCREENING_STEPS)[-1])
        statistics = stream_statistics(self.basis, x, y).scaled(self.num_data / len(y))
        return _bound(statistics, self.noise_variance(), self.covariance, None)

    def _refine(self, iterations: int) -> list[float]:
        """Go on from the current parameters with all rows of the search."""
        if self.smooth is not None:
            self._set_noise(gauss_newton(self.smooth, self.x, self.y, steps=iterations)[-1])
            iterations = max(iterations // 3, 10)
        return self._climb(self.x, self.y, iterations)

    def _set_noise(self, variance: float) -> None:
        with torch.no_grad():
            self.log_noise.fill_(math.log(max(variance, _NOISE_VARIANCE_RANGE[0])))

    def _climb(self, x: Tensor, y: Tensor, iterations: int) -> list[float]:
        """Maximise the bound by L-BFGS; end at the best point seen, return all bounds seen."""
        parameters = [*self.basis.trained_parameters(), self.log_noise]
        history: list[float] = []
        best = _vector(parameters)

        def closure() -> Tensor:
            nonlocal best
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            bound = self._bound_with_gradients(x, y)
            if bound > max(history, default=-math.inf):
                best = _vector(parameters)
            history.append(bound)
            for parameter in parameters:
                parameter.grad.mul_(-1 / self.num_data)  # type: ignore[union-attr]  # set above
            return torch.tensor(-bound / self.num_data)

        while len(history) < iterations:
            before = len(history)
            optimizer = torch.optim.LBFGS(
                parameters,
                max_iter=iterations - before,
                max_eval=iterations - before,
                tolerance_grad=1e-9,
                tolerance_change=1e-13,
                history_size=30,
                line_search_fn="strong_wolfe",
            )
            optimizer.step(closure)
            vector_to_parameters(best, parameters)
            if len(history) < before + 5:  # a fresh memory did not help either
                break
        return history

    def _bound_with_gradients(self, x: Tensor, y: Tensor) -> float:
        """Return a bound far below all others, without gradients, where there is none."""
        low, high = (math.log(limit) for limit in _NOISE_VARIANCE_RANGE)
        bound = torch.tensor(math.nan)
        if low <= float(self.log_noise.detach()) <= high:
            with contextlib.suppress(NumericalError):
                bound = bound_with_gradients(
                    self.basis, self.log_noise, x, y, self.covariance, num_data=self.num_data
                )
        return float(bound) if bound.isfinite() else -1e6 * self.num_data


def _vector(parameters: list[nn.Parameter]) -> Tensor:
    return parameters_to_vector(parameters).detach().clone()


def _bound(statistics: Statistics, noise: float, covariance: str, prior: Tensor | None) -> float:
    try:
        found = collapsed_bound(statistics, noise, covariance, prior_variance=prior)
    except NumericalError:
        return -math.inf
    return float(found.value)


def best_noise_variance(
    statistics: Statistics, first: float, covariance: str, *, prior_variance: Tensor | None = None
) -> float:
    """Return the noise variance that maximises the bound of given statistics, near ``first``."""
    low, high = (math.log(limit) for limit in _NOISE_VARIANCE_RANGE)
    centre, width = math.log(first), 1.0

    def bound(log_noise: float) -> float:
        return _bound(statistics, math.exp(log_noise), covariance, prior_variance)

    value = bound(centre)
    while width > 1e-4:  # a compass search: the bound is cheap and this cannot fail
        for trial in (centre - width, centre + width):
            if low <= trial <= high and (trial_value := bound(trial)) > value:
                centre, value = trial, trial_value
                break
        else:
            width /= 4
    return math.exp(centre)


@torch.no_grad()
def gauss_newton(basis: FeatureBasis, x: Tensor, y: Tensor, *, steps: int) -> list[float]:
    """Fit ``basis`` in place to rows ``x (n, d)``, ``y (n,)``, at most ``steps`` accepted steps.

    Returns the mean square residual at the start and after every step.
    """
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
    basis.features.log_variance.add_(coefficients.square().mean().log())
    return history


def _ridged(gram: Tensor) -> Tensor:
    return gram + _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)


def _solve(statistics: Statistics) -> tuple[Tensor, float]:
    """Return the least squares coefficients and the mean square residual (infinite if none)."""
    gram, projection, sum_squares, num_rows = statistics
    factor, failed = torch.linalg.cholesky_ex(_ridged(gram))
    if bool(failed) or not bool(torch.isfinite(factor).all()):
        return torch.zeros_like(projection), float("inf")
    coefficients = torch.cholesky_solve(projection.unsqueeze(-1), factor).squeeze(-1)
    square = sum_squares - 2 * projection @ coefficients + coefficients @ gram @ coefficients
    return coefficients, float(square) / num_rows


def _normal_equations(
    basis: FeatureBasis, x: Tensor, y: Tensor, coefficients: Tensor, gram: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``JᵀPJ`` and ``JᵀPr`` at the current parameters, for ``gram = ΨᵀΨ``."""
    size = len(coefficients)
    others = sum(parameter.numel() for parameter in basis.shape_parameters()) + 1
    products = torch.zeros(others, size + others, dtype=torch.float64)  # [J, r]ᵀ [Ψ, J, r]
    jacobian_of = basis.jacobian(coefficients)
    for part_x, part_y in chunks(basis, x, y):
        psi, jacobian = jacobian_of(part_x)
        residual = part_y.double() - psi @ coefficients
        columns = torch.cat([psi, jacobian, residual.unsqueeze(-1)], -1)
        products.addmm_(columns[:, size:].T, columns)
    to_psi, projected = products[:, :size], products[:, size:]
    factor = torch.linalg.cholesky(_ridged(gram))
    projected = projected - to_psi @ torch.cholesky_solve(to_psi.T, factor)
    return projected[:-1, :-1], projected[:-1, -1]


def _damped_step(curvature: Tensor, slope: Tensor, damping: float) -> Tensor:
    scale = curvature.diagonal().mean() * torch.eye(len(slope), dtype=torch.float64)
    step = torch.linalg.solve(curvature + damping * scale, slope)
    shortened: Tensor = step * (_LONGEST_STEP / step.abs().max()).clamp_max(1)
    return shortened
