r"""Computer experiments as formulas: nothing to download, any number of rows.

:data:`SIMULATORS` has the box of inputs, the units and the source of every formula;
:func:`simulate` evaluates one on a space-filling design.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy import pi
from scipy.stats import qmc

from reproduction.data import formulas
from whvi._checks import check_positive_int
from whvi.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


_T = TypeVar("_T")


# Space-filling designs on the unit cube, deterministic in the seed


def sobol_design(num_points: int, num_inputs: int, seed: int) -> Array:
    """Return scrambled Sobol' points in [0, 1), shape ``(num_points, num_inputs)``.

    Any number of points may be asked for: they are the first ones of a sequence whose length is
    the next power of two, so a longer design with the same seed begins with the shorter one.
    """
    generator = _design_generator(num_points, num_inputs, seed)
    sampler = qmc.Sobol(num_inputs, scramble=True, seed=generator)
    points: Array = sampler.random_base2((num_points - 1).bit_length())
    return points[:num_points]


def latin_hypercube_design(num_points: int, num_inputs: int, seed: int) -> Array:
    """Return a Latin hypercube in [0, 1): each input has one point in each of N equal slices."""
    generator = _design_generator(num_points, num_inputs, seed)
    points: Array = qmc.LatinHypercube(num_inputs, seed=generator).random(num_points)
    return points


def uniform_design(num_points: int, num_inputs: int, seed: int) -> Array:
    """Return independent uniform points in [0, 1): the baseline of the other two."""
    return _design_generator(num_points, num_inputs, seed).random((num_points, num_inputs))


DESIGNS = MappingProxyType(
    {
        "sobol": sobol_design,
        "latin_hypercube": latin_hypercube_design,
        "uniform": uniform_design,
    }
)


def _design_generator(num_points: int, num_inputs: int, seed: int) -> np.random.Generator:
    check_positive_int("num_points", num_points)
    check_positive_int("num_inputs", num_inputs)
    return _generator(seed)


def _generator(*entropy: int) -> np.random.Generator:
    if any(isinstance(part, bool) or part < 0 for part in entropy):
        raise ConfigError(f"seed must be an integer that is not negative, got {entropy[0]}")
    return np.random.default_rng(entropy)


# Simulators


class InputRange(NamedTuple):
    """One input: its name, its range and its unit (empty if it has none)."""

    name: str
    low: float
    high: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Simulator:
    """A formula with the box of inputs it is studied on.

    Attributes:
        name: The name that :func:`simulate` takes.
        inputs: Ranges, in the order of the columns.
        formula: Rows ``(..., d)`` to outputs ``(...)``, float64.
        output: What comes out, with its unit.
        source: Where the formula was published.
    """

    name: str
    inputs: tuple[InputRange, ...]
    formula: Callable[[Array], Array]
    output: str
    source: str

    @property
    def num_inputs(self) -> int:
        """Number of inputs, d."""
        return len(self.inputs)

    def __call__(self, x: ArrayLike) -> Array:
        """Evaluate rows of shape ``(..., d)``; points outside the ranges are not refused."""
        x = np.asarray(x, dtype=np.float64)
        if x.ndim == 0 or x.shape[-1] != self.num_inputs:
            raise ShapeError(
                f"{self.name} takes rows of shape (..., {self.num_inputs}), got {x.shape}"
            )
        return self.formula(x)

    def from_unit_cube(self, u: Array) -> Array:
        """Stretch points of the unit cube to the ranges of the inputs."""
        low = np.array([each.low for each in self.inputs])
        high = np.array([each.high for each in self.inputs])
        result: Array = low + (high - low) * u
        return result


def simulate(
    name: str,
    num_points: int,
    seed: int,
    *,
    design: str = "sobol",
    noise_std: float = 0.0,
) -> tuple[Array, Array]:
    """Evaluate a simulator on a space-filling design.

    Args:
        name: A key of :data:`SIMULATORS`.
        num_points: N, from 1 to millions.
        seed: Fixes the design and, independently of it, the noise.
        design: ``"sobol"`` (scrambled), ``"latin_hypercube"`` or ``"uniform"``.
        noise_std: Standard deviation of added Gaussian noise, in the unit of the output.

    Returns:
        Inputs ``(N, d)`` in their own units and outputs ``(N,)``, both float64.
    """
    simulator = _lookup("simulator", SIMULATORS, name)
    draw = _lookup("design", DESIGNS, design)
    if not 0 <= noise_std < np.inf:
        raise ConfigError(f"noise_std must be finite and not negative, got {noise_std!r}")
    x = simulator.from_unit_cube(draw(num_points, simulator.num_inputs, seed))
    noise = _generator(seed, 1).standard_normal(num_points)
    return x, simulator(x) + noise_std * noise


def _lookup(kind: str, table: Mapping[str, _T], name: str) -> _T:
    try:
        return table[name]
    except KeyError:
        raise ConfigError(
            f"there is no {kind} {name!r}; choose one of {', '.join(table)}"
        ) from None


def _numbered(num_inputs: int, low: float, high: float) -> tuple[InputRange, ...]:
    return tuple(InputRange(f"x{i}", low, high) for i in range(1, num_inputs + 1))


_RECORDS = (
    Simulator(
        name="borehole",
        inputs=(
            InputRange("rw", 0.05, 0.15, "m"),
            InputRange("r", 100, 50_000, "m"),
            InputRange("Tu", 63_070, 115_600, "m²/year"),
            InputRange("Hu", 990, 1110, "m"),
            InputRange("Tl", 63.1, 116, "m²/year"),
            InputRange("Hl", 700, 820, "m"),
            InputRange("L", 1120, 1680, "m"),
            InputRange("Kw", 9855, 12_045, "m/year"),
        ),
        formula=formulas.borehole,
        output="water flow (m³/year)",
        source="Harper and Gupta (1983); Morris, Mitchell and Ylvisaker (1993)",
    ),
    Simulator(
        name="robot_arm",
        inputs=(
            *(InputRange(f"theta{i}", 0, 2 * pi, "rad") for i in range(1, 5)),
            *(InputRange(f"L{i}", 0, 1) for i in range(1, 5)),
        ),
        formula=formulas.robot_arm,
        output="distance of the end of the arm (unit of the lengths)",
        source="An and Owen (2001)",
    ),
    Simulator(
        name="piston",
        inputs=(
            InputRange("M", 30, 60, "kg"),
            InputRange("S", 0.005, 0.020, "m²"),
            InputRange("V0", 0.002, 0.010, "m³"),
            InputRange("k", 1000, 5000, "N/m"),
            InputRange("P0", 90_000, 110_000, "N/m²"),
            InputRange("Ta", 290, 296, "K"),
            InputRange("T0", 340, 360, "K"),
        ),
        formula=formulas.piston,
        output="cycle time (s)",
        source="Kenett and Zacks (1998); Ben-Ari and Steinberg (2007)",
    ),
    Simulator(
        name="otl_circuit",
        inputs=(
            InputRange("Rb1", 50, 150, "kΩ"),
            InputRange("Rb2", 25, 70, "kΩ"),
            InputRange("Rf", 0.5, 3, "kΩ"),
            InputRange("Rc1", 1.2, 2.5, "kΩ"),
            InputRange("Rc2", 0.25, 1.2, "kΩ"),
            InputRange("beta", 50, 300, "A/A"),
        ),
        formula=formulas.otl_circuit,
        output="mid-point voltage (V)",
        source="Ben-Ari and Steinberg (2007)",
    ),
    Simulator(
        name="wing_weight",
        inputs=(
            InputRange("Sw", 150, 200, "ft²"),
            InputRange("Wfw", 220, 300, "lb"),
            InputRange("A", 6, 10),
            InputRange("Lambda", -10, 10, "deg"),
            InputRange("q", 16, 45, "lb/ft²"),
            InputRange("lambda", 0.5, 1),
            InputRange("tc", 0.08, 0.18),
            InputRange("Nz", 2.5, 6),
            InputRange("Wdg", 1700, 2500, "lb"),
            InputRange("Wp", 0.025, 0.08, "lb/ft²"),
        ),
        formula=formulas.wing_weight,
        output="wing weight (lb)",
        source="Forrester, Sóbester and Keane (2008)",
    ),
    Simulator(
        name="friedman",
        inputs=_numbered(5, 0, 1),
        formula=formulas.friedman,
        output="response",
        source="Friedman, Grosse and Stuetzle (1983); Friedman (1991)",
    ),
    Simulator(
        name="ishigami",
        inputs=_numbered(3, -pi, pi),
        formula=formulas.ishigami,
        output="response",
        source="Ishigami and Homma (1990), a = 7, b = 0.1",
    ),
    Simulator(
        name="sobol_g",
        inputs=_numbered(8, 0, 1),
        formula=formulas.sobol_g,
        output="response",
        source="Saltelli and Sobol' (1995), a = (0, 1, 4.5, 9, 99, 99, 99, 99)",
    ),
    Simulator(
        name="branin",
        inputs=(InputRange("x1", -5, 10), InputRange("x2", 0, 15)),
        formula=formulas.branin,
        output="response",
        source="Dixon and Szegő (1978)",
    ),
    Simulator(
        name="six_hump_camel",
        inputs=(InputRange("x1", -3, 3), InputRange("x2", -2, 2)),
        formula=formulas.six_hump_camel,
        output="response",
        source="Dixon and Szegő (1978)",
    ),
    Simulator(
        name="franke",
        inputs=_numbered(2, 0, 1),
        formula=formulas.franke,
        output="response",
        source="Franke (1979)",
    ),
    Simulator(
        name="hartmann3",
        inputs=_numbered(3, 0, 1),
        formula=formulas.hartmann3,
        output="response",
        source="Hartman (1973); Dixon and Szegő (1978)",
    ),
    Simulator(
        name="hartmann6",
        inputs=_numbered(6, 0, 1),
        formula=formulas.hartmann6,
        output="response",
        source="Hartman (1973); Dixon and Szegő (1978)",
    ),
)

SIMULATORS: Mapping[str, Simulator] = MappingProxyType({each.name: each for each in _RECORDS})
