"""Train a collapsed model: several starts, Gauss-Newton where the basis knows its tangent, L-BFGS.

Starts are compared on a part of the rows after a short search, the best (one in six) are refined on
more rows, and the posterior and the noise come from all rows in the end.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from whvi._checks import check_finite, check_positive_int
from whvi.errors import NumericalError, ShapeError
from whvi.gp.basis import Basis
from whvi.gp.collapsed import (
    CoefficientPosterior,
    Statistics,
    check_covariance,
    collapsed_bound,
)
from whvi.gp.gauss_newton import Tangible, gauss_newton
from whvi.gp.streaming import bound_with_gradients, stream_moments, stream_statistics

_SCREENING_ROWS = 1000
_SCREENING_STEPS = 25
_STARTS_PER_FINALIST = 6
_FIRST_NOISE_VARIANCE = 0.1  # of standardised targets
_NOISE_VARIANCE_RANGE = (1e-9, 1e2)


@dataclass(frozen=True, eq=False)
class CollapsedFit:
    """A trained model.

    Attributes:
        basis: ``ψ`` with its trained parameters.
        posterior: ``q(a)``, from all rows.
        noise_variance: ``σ²``.
        bound: On the log evidence of all rows, in nats.
        history: The bound over the subset, scaled to all rows, per evaluation of L-BFGS.
        seconds: Wall-clock time.
    """

    basis: Basis
    posterior: CoefficientPosterior
    noise_variance: float
    bound: float
    history: tuple[float, ...]
    seconds: float

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the function at ``x (N, d)``, noise not included."""
        return stream_moments(self.basis, self.posterior, x)


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
) -> CollapsedFit:
    """Train ``basis`` in place and return it with its posterior.

    Args:
        basis: Its parameters are overwritten by the best start.
        x, y: Standardised rows ``(N, d)`` and targets ``(N,)``.
        covariance: Of ``q(a)``: ``"diagonal"`` or ``"full"``.
        starts: Random starts; the best of every six go on after a short search, and the one with
            the highest bound is kept.
        iterations: Gauss-Newton steps at most, followed by a third as many evaluations of the bound
            by L-BFGS; for a basis without tangent, as many evaluations by L-BFGS.
        subset: Rows that the search sees (the likelihood counts N/n times); the posterior and the
            noise come from all rows.
        seed: Decides starts and subset.
    """
    _check_data(x, y)
    check_covariance(covariance)
    for name, value in (("starts", starts), ("iterations", iterations), ("subset", subset)):
        check_positive_int(name, value)
    begin = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)[:subset]
    search = _Search(basis, x[order], y[order], covariance, len(y))
    history = search.run(starts, iterations, generator)
    statistics = stream_statistics(basis, x, y)
    prior_variance = basis.prior_variance()
    prior_variance = None if prior_variance is None else prior_variance.detach()
    noise = best_noise_variance(
        statistics, search.noise_variance(), covariance, prior_variance=prior_variance
    )
    bound = collapsed_bound(statistics, noise, covariance, prior_variance=prior_variance)
    seconds = time.perf_counter() - begin
    return CollapsedFit(basis, bound.posterior, noise, float(bound.value), tuple(history), seconds)


class _Search:
    """The rows of a search, and the noise that is trained along with the basis."""

    def __init__(self, basis: Basis, x: Tensor, y: Tensor, covariance: str, num_data: int) -> None:
        self.basis, self.x, self.y = basis, x, y
        self.covariance, self.num_data = covariance, num_data
        self.log_noise = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.basis.parameters() if p.requires_grad] + [self.log_noise]

    def noise_variance(self) -> float:
        return float(self.log_noise.detach().exp().clamp(*_NOISE_VARIANCE_RANGE))

    def run(self, starts: int, iterations: int, generator: torch.Generator) -> list[float]:
        """Leave the basis at the best point found; return the bounds that L-BFGS saw there."""
        best_bound, best_state, best_history = -math.inf, None, []
        for state in self._screen(starts, iterations, generator):
            vector_to_parameters(state, self._all())
            history = self._refine(iterations)
            bound = max(history)
            if bound > best_bound or best_state is None:
                best_bound, best_history = bound, history
                best_state = parameters_to_vector(self._all()).detach().clone()
        assert best_state is not None  # there is at least one start
        vector_to_parameters(best_state, self._all())
        return best_history

    def _screen(self, starts: int, iterations: int, generator: torch.Generator) -> list[Tensor]:
        """Return the parameters of the best of ``starts`` after a short search on few rows."""
        rows = slice(0, _SCREENING_ROWS)
        found: list[tuple[float, Tensor]] = []
        for _ in range(starts):
            self.basis.restart(self.x, generator)
            self._set_noise(_FIRST_NOISE_VARIANCE)
            bound = 0.0 if starts == 1 else self._try_start(rows, iterations)
            found.append((bound, parameters_to_vector(self._all()).detach().clone()))
        found.sort(key=lambda each: each[0], reverse=True)
        return [state for _, state in found[: max(1, starts // _STARTS_PER_FINALIST)]]

    def _try_start(self, rows: slice, iterations: int) -> float:
        if isinstance(self.basis, Tangible):
            self._gauss_newton(rows, _SCREENING_STEPS)
            return self._bound(rows)
        return max(self._climb(rows, max(iterations // 4, 10)))

    def _refine(self, iterations: int) -> list[float]:
        """Go on from the current parameters with all rows of the search."""
        rows = slice(0, None)
        if isinstance(self.basis, Tangible):
            self._gauss_newton(rows, iterations)
            iterations = max(iterations // 3, 10)
        return self._climb(rows, iterations)

    def _all(self) -> list[nn.Parameter]:
        """Every parameter, also frozen frequencies: they belong to a start."""
        return [*self.basis.parameters(), self.log_noise]

    def _set_noise(self, variance: float) -> None:
        with torch.no_grad():
            self.log_noise.fill_(math.log(max(variance, _NOISE_VARIANCE_RANGE[0])))

    def _gauss_newton(self, rows: slice, steps: int) -> None:
        found = gauss_newton(self.basis, self.x[rows], self.y[rows], steps=steps)
        self._set_noise(found.history[-1])

    def _bound(self, rows: slice) -> float:
        statistics = stream_statistics(self.basis, self.x[rows], self.y[rows])
        factor = self.num_data / len(self.y[rows])
        noise = self.noise_variance()
        try:
            bound = collapsed_bound(statistics.scaled(factor), noise, self.covariance)
        except NumericalError:
            return -math.inf
        return float(bound.value)

    def _climb(self, rows: slice, iterations: int) -> list[float]:
        """Maximise the bound by L-BFGS; end at the best point seen, return all bounds seen."""
        parameters = self.parameters()
        x, y = self.x[rows], self.y[rows]
        history: list[float] = []
        best = parameters_to_vector(parameters).detach().clone()

        def closure() -> Tensor:
            nonlocal best
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            bound = self._try_bound(x, y)
            if bound > max(history, default=-math.inf):
                best = parameters_to_vector(parameters).detach().clone()
            history.append(bound)
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.mul_(-1 / self.num_data)
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

    def _try_bound(self, x: Tensor, y: Tensor) -> float:
        """The bound with gradients; far below all others, without gradients, if there is none."""
        low, high = (math.log(limit) for limit in _NOISE_VARIANCE_RANGE)
        impossible = -1e6 * self.num_data
        if not low <= float(self.log_noise.detach()) <= high:
            return impossible
        try:
            bound = bound_with_gradients(
                self.basis, self.log_noise, x, y, self.covariance, num_data=self.num_data
            )
        except NumericalError:
            return impossible
        return float(bound) if math.isfinite(float(bound)) else impossible


def best_noise_variance(
    statistics: Statistics,
    first: float,
    covariance: str,
    *,
    prior_variance: Tensor | None = None,
) -> float:
    """Return the noise variance that maximises the bound of given statistics, near ``first``."""
    low, high = (math.log(limit) for limit in _NOISE_VARIANCE_RANGE)
    centre, width = math.log(first), 1.0

    def bound(log_noise: float) -> float:
        try:
            found = collapsed_bound(
                statistics, math.exp(log_noise), covariance, prior_variance=prior_variance
            )
        except NumericalError:
            return -math.inf
        return float(found.value)

    value = bound(centre)
    while width > 1e-4:  # a compass search: the bound is cheap and this cannot fail
        for trial in (centre - width, centre + width):
            if low <= trial <= high and (trial_value := bound(trial)) > value:
                centre, value = trial, trial_value
                break
        else:
            width /= 4
    return math.exp(centre)


def _check_data(x: Tensor, y: Tensor) -> None:
    if x.dim() != 2 or y.shape != x.shape[:1] or len(y) == 0:
        raise ShapeError(
            f"x must be (N, d) and y (N,) with at least one row, got {tuple(x.shape)} and "
            f"{tuple(y.shape)}"
        )
    check_finite("x", x)
    check_finite("y", y)
