"""The paper's numbers, as data: Table 1, and what this project asks of its own columns.

Table 1 of "Walsh-Hadamard Variational Inference for Bayesian Deep Learning": two hidden layers of
128 ReLU units, mean ± standard deviation over random 90/10 splits. ``MNLL`` is printed as the
authors' code computed it; see :data:`MNLL_OFFSET`.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import NamedTuple

MNLL_OFFSET = 0.5 * (math.log(2 * math.pi) - math.log2(math.pi))
"""0.093: the authors' public code has ``log2(π)`` where ``log(2π)`` belongs, so every MNLL comes
out this much lower. ``log(RMSE) + ½ log(2πe) − 0.093`` gives the printed 2.71, 2.79 and −1.19 of
powerplant, protein and kin8nm."""


class Printed(NamedTuple):
    """A printed value: mean and standard deviation over splits."""

    mean: float
    std: float


class PaperRow(NamedTuple):
    """RMSE and MNLL of one method on one data set, in the units of the target."""

    rmse: Printed
    mnll: Printed


class Goal(NamedTuple):
    """An upper limit for both scores."""

    rmse: float
    mnll: float


def _row(rmse: float, rmse_std: float, mnll: float, mnll_std: float) -> PaperRow:
    return PaperRow(Printed(rmse, rmse_std), Printed(mnll, mnll_std))


DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "powerplant", "protein", "yacht")

_TABLE_1 = {
    "mc-dropout": {
        "boston": _row(3.91, 0.86, 6.90, 2.93),
        "concrete": _row(5.12, 0.79, 3.20, 0.36),
        "energy": _row(2.07, 0.11, 4.15, 0.15),
        "kin8nm": _row(0.09, 0.00, -0.87, 0.02),
        "naval": _row(0.30, 0.30, -1.00, 2.27),
        "powerplant": _row(3.97, 0.14, 2.74, 0.05),
        "protein": _row(4.23, 0.10, 2.76, 0.02),
        "yacht": _row(1.90, 0.54, 2.95, 1.27),
    },
    "noisy-kfac": {
        "boston": _row(3.56, 0.43, 2.72, 0.09),
        "concrete": _row(8.21, 0.55, 3.56, 0.08),
        "energy": _row(1.96, 0.28, 2.11, 0.12),
        "kin8nm": _row(0.07, 0.00, -1.19, 0.04),
        "naval": _row(0.00, 0.00, -6.52, 0.09),
        "powerplant": _row(4.23, 0.09, 2.86, 0.02),
        "protein": _row(4.57, 0.47, 2.95, 0.12),
        "yacht": _row(5.16, 1.48, 3.06, 0.27),
    },
    "whvi": {
        "boston": _row(3.14, 0.71, 4.33, 1.80),
        "concrete": _row(4.70, 0.72, 3.17, 0.37),
        "energy": _row(0.58, 0.07, 2.00, 0.60),
        "kin8nm": _row(0.08, 0.00, -1.19, 0.04),
        "naval": _row(0.01, 0.00, -6.25, 0.01),
        "powerplant": _row(4.00, 0.12, 2.71, 0.03),
        "protein": _row(4.36, 0.11, 2.79, 0.01),
        "yacht": _row(0.69, 0.16, 1.80, 1.01),
    },
}
TABLE_1 = MappingProxyType({name: MappingProxyType(rows) for name, rows in _TABLE_1.items()})
"""``TABLE_1[method][dataset]``; the paper's NNG column is ``noisy-kfac`` here."""

PAPER_COLUMN = MappingProxyType(
    {
        "whvi": "whvi",
        "whvi-ensemble": "whvi",
        "whvi-best": "whvi",
        "WHVIRegressor": "whvi",
        "mc-dropout": "mc-dropout",
        "noisy-kfac": "noisy-kfac",
    }
)
"""Which column of the paper each of our methods is compared with; others have none."""

_WHVI_FLOOR = {
    "boston": Goal(2.75, 2.45),
    "concrete": Goal(4.70, 3.06),
    "energy": Goal(0.46, 0.66),
    "kin8nm": Goal(0.074, -1.17),
    "naval": Goal(0.0005, -7.2),
    "powerplant": Goal(3.90, 2.78),
    "protein": Goal(4.25, 2.85),
    "yacht": Goal(0.55, 0.72),
}
_BEST_FLOOR = {
    "boston": Goal(2.60, 2.32),
    "concrete": Goal(4.50, 2.92),
    "energy": Goal(0.44, 0.60),
    "kin8nm": Goal(0.069, -1.26),
    "naval": Goal(0.0002, -7.4),
    "powerplant": Goal(3.55, 2.70),
    "protein": Goal(3.50, 2.68),
    "yacht": Goal(0.55, 0.20),
}
_AIM = {
    "boston": Goal(2.5, 2.25),
    "concrete": Goal(4.2, 2.85),
    "energy": Goal(0.40, 0.5),
    "kin8nm": Goal(0.065, -1.3),
    "naval": Goal(0.0001, -7.6),
    "powerplant": Goal(3.1, 2.6),
    "protein": Goal(3.3, 2.5),
    "yacht": Goal(0.4, -0.4),
}
FLOORS = MappingProxyType(
    {"whvi": MappingProxyType(_WHVI_FLOOR), "whvi-best": MappingProxyType(_BEST_FLOOR)}
)
"""What the two columns must reach at least."""
AIMS = MappingProxyType(_AIM)
"""What ``whvi-best`` aims at."""
