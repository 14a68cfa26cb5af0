r"""Computer experiments as formulas: nothing to download, any number of rows.

:data:`SIMULATORS` has the box of inputs, the units and the source of every formula;
:func:`simulate` evaluates one on a space-filling design. Formulas follow the papers named beside
them, as collected by S. Surjanovic and D. Bingham in the *Virtual Library of Simulation
Experiments*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy import cos, log, pi, sin, sqrt
from numpy.typing import ArrayLike, NDArray
from scipy.stats import qmc

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, ShapeError

Array = NDArray[np.float64]


def simulate(name: str, num_points: int, seed: int) -> tuple[Array, Array]:
    """Evaluate a simulator on a scrambled Sobol' design.

    Args:
        name: A key of :data:`SIMULATORS`.
        num_points: N, from 1 to millions.
        seed: Fixes the design.

    Returns:
        Inputs ``(N, d)`` in their own units and outputs ``(N,)``, both float64.
    """
    if name not in SIMULATORS:
        raise ConfigError(f"there is no simulator {name!r}; choose one of {', '.join(SIMULATORS)}")
    simulator = SIMULATORS[name]
    x = simulator.from_unit_cube(sobol_design(num_points, simulator.num_inputs, seed))
    return x, simulator(x)


def sobol_design(num_points: int, num_inputs: int, seed: int) -> Array:
    """Return scrambled Sobol' points in [0, 1), shape ``(num_points, num_inputs)``.

    Any number of points may be asked for: they are the first ones of a sequence whose length is
    the next power of two, so a longer design with the same seed begins with the shorter one.
    """
    check_positive_int("num_points", num_points)
    check_positive_int("num_inputs", num_inputs)
    if seed < 0:
        raise ConfigError(f"seed must be an integer that is not negative, got {seed}")
    sampler = qmc.Sobol(num_inputs, scramble=True, seed=np.random.default_rng((seed,)))
    points: Array = sampler.random_base2((num_points - 1).bit_length())
    return points[:num_points]


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
        name: As :func:`simulate` takes it.
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


# Formulas: rows of inputs (..., d) to outputs (...), float64


def _columns(x: Array) -> tuple[Array, ...]:
    return tuple(np.moveaxis(x, -1, 0))


def borehole(x: Array) -> Array:
    r"""Flow of water through a borehole, m³/year.

    .. math:: \frac{2\pi T_u (H_u - H_l)}{\ln(r/r_w)
        \left(1 + \frac{2 L T_u}{\ln(r/r_w) r_w^2 K_w} + \frac{T_u}{T_l}\right)}
    """
    rw, r, Tu, Hu, Tl, Hl, L, Kw = _columns(x)
    log_ratio = log(r / rw)
    resistance = 1 + 2 * L * Tu / (log_ratio * rw**2 * Kw) + Tu / Tl
    return 2 * pi * Tu * (Hu - Hl) / (log_ratio * resistance)


def robot_arm(x: Array) -> Array:
    r"""Distance of the end of a 4-segment planar arm from its shoulder.

    .. math:: \Big|\sum_{i=1}^4 L_i e^{\mathrm{i}\sum_{j\le i}\theta_j}\Big|
    """
    angle = np.cumsum(x[..., :4], axis=-1)
    length = x[..., 4:]
    distance: Array = np.hypot((length * cos(angle)).sum(-1), (length * sin(angle)).sum(-1))
    return distance


def piston(x: Array) -> Array:
    r"""Cycle time of a piston in a cylinder, s.

    .. math:: 2\pi\sqrt{\frac{M}{k + S^2 \frac{P_0 V_0}{T_0}\frac{T_a}{V^2}}},\quad
        V = \frac{S}{2k}\Big(\sqrt{A^2 + 4k\tfrac{P_0 V_0}{T_0}T_a} - A\Big),\quad
        A = P_0 S + 19.62 M - \frac{k V_0}{S}
    """
    M, S, V0, k, P0, Ta, T0 = _columns(x)
    A = P0 * S + 19.62 * M - k * V0 / S
    gas = P0 * V0 / T0 * Ta
    V = S / (2 * k) * (sqrt(A**2 + 4 * k * gas) - A)
    return 2 * pi * sqrt(M / (k + S**2 * gas / V**2))


def otl_circuit(x: Array) -> Array:
    r"""Mid-point voltage of an output-transformerless push-pull circuit, V.

    .. math:: \frac{(V_{b1} + 0.74)\,b + 11.35 R_f + 0.74\,b R_f / R_{c1}}{b + R_f},\quad
        b = \beta (R_{c2} + 9),\quad V_{b1} = \frac{12 R_{b2}}{R_{b1} + R_{b2}}
    """
    Rb1, Rb2, Rf, Rc1, Rc2, beta = _columns(x)
    b = beta * (Rc2 + 9)
    Vb1 = 12 * Rb2 / (Rb1 + Rb2)
    return ((Vb1 + 0.74) * b + 11.35 * Rf + 0.74 * b * Rf / Rc1) / (b + Rf)


def friedman(x: Array) -> Array:
    r""":math:`10\sin(\pi x_1 x_2) + 20(x_3 - 1/2)^2 + 10 x_4 + 5 x_5`."""
    x1, x2, x3, x4, x5 = _columns(x)
    return 10 * sin(pi * x1 * x2) + 20 * (x3 - 0.5) ** 2 + 10 * x4 + 5 * x5


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
        formula=borehole,
        output="water flow (m³/year)",
        source="Harper and Gupta (1983); Morris, Mitchell and Ylvisaker (1993)",
    ),
    Simulator(
        name="robot_arm",
        inputs=(
            *(InputRange(f"theta{i}", 0, 2 * pi, "rad") for i in range(1, 5)),
            *(InputRange(f"L{i}", 0, 1) for i in range(1, 5)),
        ),
        formula=robot_arm,
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
        formula=piston,
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
        formula=otl_circuit,
        output="mid-point voltage (V)",
        source="Ben-Ari and Steinberg (2007)",
    ),
    Simulator(
        name="friedman",
        inputs=tuple(InputRange(f"x{i}", 0, 1) for i in range(1, 6)),
        formula=friedman,
        output="response",
        source="Friedman, Grosse and Stuetzle (1983); Friedman (1991)",
    ),
)

SIMULATORS = MappingProxyType({each.name: each for each in _RECORDS})
