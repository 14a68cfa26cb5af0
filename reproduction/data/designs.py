"""Space-filling designs on the unit cube, deterministic in the seed."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


def sobol_design(num_points: int, num_inputs: int, seed: int) -> NDArray[np.float64]:
    """Return scrambled Sobol' points in [0, 1), shape ``(num_points, num_inputs)``.

    Any number of points may be asked for: they are the first ones of a sequence whose length is
    the next power of two, so a longer design with the same seed begins with the shorter one.
    """
    qmc, generator = _prepare(num_points, num_inputs, seed)
    sampler = qmc.Sobol(num_inputs, scramble=True, seed=generator)
    points: NDArray[np.float64] = sampler.random_base2((num_points - 1).bit_length())
    return points[:num_points]


def latin_hypercube_design(num_points: int, num_inputs: int, seed: int) -> NDArray[np.float64]:
    """Return a Latin hypercube in [0, 1): each input has one point in each of N equal slices."""
    qmc, generator = _prepare(num_points, num_inputs, seed)
    points: NDArray[np.float64] = qmc.LatinHypercube(num_inputs, seed=generator).random(num_points)
    return points


def uniform_design(num_points: int, num_inputs: int, seed: int) -> NDArray[np.float64]:
    """Return independent uniform points in [0, 1): the baseline of the other two."""
    check_positive_int("num_points", num_points)
    check_positive_int("num_inputs", num_inputs)
    return design_generator(seed).random((num_points, num_inputs))


DESIGNS: Mapping[str, Callable[[int, int, int], NDArray[np.float64]]] = MappingProxyType(
    {
        "sobol": sobol_design,
        "latin_hypercube": latin_hypercube_design,
        "uniform": uniform_design,
    }
)


def design_generator(*entropy: int) -> np.random.Generator:
    """Return a generator that is a pure function of numbers that are not negative."""
    if any(isinstance(part, bool) or part < 0 for part in entropy):
        raise ConfigError(f"seed must be an integer that is not negative, got {entropy[0]}")
    return np.random.default_rng(entropy)


def _prepare(num_points: int, num_inputs: int, seed: int) -> tuple[Any, np.random.Generator]:
    check_positive_int("num_points", num_points)
    check_positive_int("num_inputs", num_inputs)
    try:
        from scipy.stats import qmc
    except ImportError as error:
        raise MissingDependencyError(
            "space-filling designs need scipy: pip install scipy, or pass design='uniform'"
        ) from error
    return qmc, design_generator(seed)
