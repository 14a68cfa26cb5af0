"""Which posterior fits a budget of memory, said before anything is computed.

| form           | covariance                                            | numbers held         |
|----------------|-------------------------------------------------------|----------------------|
| ``full``       | of all parameters, from all rows                      | ``R · P²``           |
| ``rows``       | of all parameters, from ``n`` rows that stand for all | ``R · n O · P``      |
| ``last_layer`` | of the last layer's parameters, from all rows         | ``R · P_last²``      |

``auto`` takes ``full`` if it fits ``max_bytes``, else ``rows`` with as many rows as fit if they are
64 or more, else ``last_layer`` if that fits, else ``rows`` with what there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from whvi.errors import ConfigError

FORMS = ("full", "rows", "last_layer")
_FEWEST_ROWS = 64
_FLOPS = 3e10  # of a matrix product in float64 on one core, for the estimate of time
_FACTORIZATIONS = 5  # of the evidence


@dataclass(frozen=True)
class Sizes:
    """What a plan depends on; parameters and outputs are those of one replica."""

    num_parameters: int
    num_last: int  # parameters of the last layer
    num_outputs: int
    num_replicas: int
    itemsize: int  # bytes of a number of the model
    num_data: int | None  # rows, if they are known beforehand


@dataclass(frozen=True)
class Plan:
    """A form, what it costs and why it was chosen."""

    form: str
    num_parameters: int
    num_rows: int | None  # rows that stand for all; ``None``: all of them
    num_bytes: int
    seconds: float | None  # on one core; ``None`` if the number of rows is not known
    reason: str

    def __str__(self) -> str:
        kind = {
            "full": "full covariance of",
            "rows": f"covariance from {self.num_rows} rows of",
            "last_layer": "full covariance of the last layer's",
        }[self.form]
        time = "" if self.seconds is None else f", about {self.seconds:.2g} s"
        size = f"{self.num_bytes / 1e6:.3g} MB{time}"
        return f"{kind} {self.num_parameters:,} parameters: {size} ({self.reason})"


def make_plan(sizes: Sizes, form: str, max_bytes: int, num_rows: int | None) -> Plan:
    """Choose a form by the rule of this module, or take the one asked for."""
    if form not in ("auto", *FORMS):
        raise ConfigError(f"form must be 'auto', {', '.join(map(repr, FORMS))}, got {form!r}")
    if form != "auto":
        return _plan(sizes, form, _rows_that_fit(sizes, max_bytes, num_rows), "asked for")
    budget = f"of {max_bytes / 1e6:.3g} MB"
    if _root_bytes(sizes, sizes.num_parameters) <= max_bytes:
        return _plan(sizes, "full", None, f"fits the budget {budget}")
    fit = _rows_that_fit(sizes, max_bytes, num_rows)
    full = f"the full covariance takes {_root_bytes(sizes, sizes.num_parameters) / 1e6:.3g} MB"
    if fit < _FEWEST_ROWS and _root_bytes(sizes, sizes.num_last) <= max_bytes:
        return _plan(sizes, "last_layer", None, f"{full} and only {fit} rows fit {budget}")
    return _plan(sizes, "rows", fit, f"{full}, {fit} rows fit {budget}")


def _plan(sizes: Sizes, form: str, num_rows: int | None, reason: str) -> Plan:
    P = sizes.num_last if form == "last_layer" else sizes.num_parameters
    if form != "rows":
        outputs = None if sizes.num_data is None else sizes.num_data * sizes.num_outputs
        seconds = None if outputs is None else _root_seconds(sizes.num_replicas, P, outputs)
        return Plan(form, P, None, _root_bytes(sizes, P), seconds, reason)
    if num_rows is not None and sizes.num_data is not None:
        num_rows = min(num_rows, sizes.num_data)
    assert num_rows is not None
    outputs = num_rows * sizes.num_outputs
    held = sizes.num_replicas * outputs * (sizes.itemsize * P + 8 * outputs)
    work = outputs**2 * P + _FACTORIZATIONS * outputs**3
    return Plan(form, P, num_rows, held, sizes.num_replicas * work / _FLOPS, reason)


def _root_bytes(sizes: Sizes, P: int) -> int:
    return sizes.num_replicas * P**2 * sizes.itemsize


def _root_seconds(num_replicas: int, P: int, outputs: int) -> float:
    small = min(P, outputs)  # the evidence works on the smaller side
    gram = outputs * P**2 + P**3
    return num_replicas * (gram + _FACTORIZATIONS * small**3) / _FLOPS


def _rows_that_fit(sizes: Sizes, max_bytes: int, num_rows: int | None) -> int:
    """Solve ``R m (itemsize P + 8 m) = max_bytes`` for the outputs ``m`` of the rows."""
    if num_rows is not None:
        return num_rows
    half = sizes.itemsize * sizes.num_parameters / 16
    outputs = math.sqrt(half**2 + max_bytes / (8 * sizes.num_replicas)) - half
    return max(int(outputs) // sizes.num_outputs, 1)
