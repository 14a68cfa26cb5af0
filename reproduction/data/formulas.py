r"""Formulas of computer experiments: rows of inputs ``(..., d)`` to outputs ``(...)``, float64.

Units and ranges of the inputs are in :data:`reproduction.data.simulators.SIMULATORS`. Formulas
follow the papers named beside them, as collected by S. Surjanovic and D. Bingham in the *Virtual
Library of Simulation Experiments*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy import cos, exp, log, pi, sin, sqrt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


def _columns(x: Array) -> tuple[Array, ...]:
    return tuple(np.moveaxis(x, -1, 0))


# Engineering models


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


def wing_weight(x: Array) -> Array:
    r"""Weight of the wing of a light aircraft, lb; the sweep :math:`\Lambda` comes in degrees.

    .. math:: 0.036\, S_w^{0.758} W_{fw}^{0.0035} \Big(\frac{A}{\cos^2\Lambda}\Big)^{0.6} q^{0.006}
        \lambda^{0.04} \Big(\frac{100\, t_c}{\cos\Lambda}\Big)^{-0.3} (N_z W_{dg})^{0.49} + S_w W_p
    """
    Sw, Wfw, A, sweep, q, taper, tc, Nz, Wdg, Wp = _columns(x)
    cosine = cos(np.deg2rad(sweep))
    plan = Sw**0.758 * Wfw**0.0035 * (A / cosine**2) ** 0.6 * q**0.006 * taper**0.04
    weight: Array = 0.036 * plan * (100 * tc / cosine) ** -0.3 * (Nz * Wdg) ** 0.49 + Sw * Wp
    return weight


# Functions for screening and sensitivity analysis


def friedman(x: Array) -> Array:
    r""":math:`10\sin(\pi x_1 x_2) + 20(x_3 - 1/2)^2 + 10 x_4 + 5 x_5`."""
    x1, x2, x3, x4, x5 = _columns(x)
    return 10 * sin(pi * x1 * x2) + 20 * (x3 - 0.5) ** 2 + 10 * x4 + 5 * x5


def ishigami(x: Array) -> Array:
    r""":math:`\sin x_1 + 7\sin^2 x_2 + 0.1\,x_3^4\sin x_1`."""
    x1, x2, x3 = _columns(x)
    response: Array = sin(x1) + 7 * sin(x2) ** 2 + 0.1 * x3**4 * sin(x1)
    return response


SOBOL_G_WEIGHTS = (0.0, 1.0, 4.5, 9.0, 99.0, 99.0, 99.0, 99.0)


def sobol_g(x: Array) -> Array:
    r""":math:`\prod_i (|4x_i - 2| + a_i)/(1 + a_i)`; inputs matter the less, the larger their a."""
    a = np.array(SOBOL_G_WEIGHTS)
    result: Array = ((np.abs(4 * x - 2) + a) / (1 + a)).prod(-1)
    return result


# Test functions of optimisation and interpolation


def branin(x: Array) -> Array:
    r""":math:`(x_2 - b x_1^2 + c x_1 - 6)^2 + 10(1 - 1/8\pi)\cos x_1 + 10`.

    With :math:`b = 5.1/4\pi^2` and :math:`c = 5/\pi`; three minima of 0.397887.
    """
    x1, x2 = _columns(x)
    valley = x2 - 5.1 / (4 * pi**2) * x1**2 + 5 / pi * x1 - 6
    return valley**2 + 10 * (1 - 1 / (8 * pi)) * cos(x1) + 10


def six_hump_camel(x: Array) -> Array:
    r""":math:`(4 - 2.1x_1^2 + x_1^4/3)x_1^2 + x_1x_2 + 4(x_2^2 - 1)x_2^2`; minima of -1.0316."""
    x1, x2 = _columns(x)
    return (4 - 2.1 * x1**2 + x1**4 / 3) * x1**2 + x1 * x2 + 4 * (x2**2 - 1) * x2**2


def franke(x: Array) -> Array:
    """Two Gaussian peaks, a dip and a slope: the usual test of scattered-data interpolation."""
    a, b = 9 * x[..., 0], 9 * x[..., 1]
    slope = 0.75 * exp(-((a + 1) ** 2) / 49 - (b + 1) / 10)
    peaks = 0.75 * exp(-((a - 2) ** 2 + (b - 2) ** 2) / 4)
    peaks += 0.5 * exp(-((a - 7) ** 2 + (b - 3) ** 2) / 4)
    dip = 0.2 * exp(-((a - 4) ** 2) - (b - 7) ** 2)
    result: Array = slope + peaks - dip
    return result


_HARTMANN_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN3_A = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
_HARTMANN3_P = 1e-4 * np.array(
    [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
)
_HARTMANN6_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_HARTMANN6_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def _hartmann(x: Array, A: Array, P: Array) -> Array:
    r""":math:`-\sum_i \alpha_i \exp(-\sum_j A_{ij}(x_j - P_{ij})^2)`."""
    squares = (A * (x[..., None, :] - P) ** 2).sum(-1)
    result: Array = -exp(-squares) @ _HARTMANN_ALPHA
    return result


def hartmann3(x: Array) -> Array:
    r""":math:`-\sum_i \alpha_i \exp(-\sum_j A_{ij}(x_j - P_{ij})^2)` in 3 inputs; min -3.86278."""
    return _hartmann(x, _HARTMANN3_A, _HARTMANN3_P)


def hartmann6(x: Array) -> Array:
    r""":math:`-\sum_i \alpha_i \exp(-\sum_j A_{ij}(x_j - P_{ij})^2)` in 6 inputs; min -3.32237."""
    return _hartmann(x, _HARTMANN6_A, _HARTMANN6_P)
