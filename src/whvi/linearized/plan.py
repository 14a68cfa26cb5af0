"""Which posterior fits a budget of memory, said before anything is computed.

| form           | covariance                                                  | numbers held    |
|----------------|-------------------------------------------------------------|-----------------|
| ``full``       | of all parameters                                           | ``R · P²``      |
| ``low_rank``   | of all parameters, its inverse of rank ``l`` plus diagonal  | ``R · l · P``   |
| ``last_layer`` | of the last layer's parameters                              | ``R · P_last²`` |

In a file, where a triangle of a full covariance is kept, each takes half of ``max_bytes`` at most.
``auto`` takes ``full`` if it fits ``max_bytes``, else ``low_rank`` with the largest rank up to 256
that fits, if it is 32 or more, else ``last_layer`` if that fits, else ``low_rank`` all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from whvi.errors import ConfigError

FORMS = ("full", "low_rank", "last_layer")
_SMALLEST_RANK, _LARGEST_RANK = 32, 256
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
    rank: int | None  # of the form ``low_rank``
    num_bytes: int
    seconds: float | None  # on one core; ``None`` if the number of rows is not known
    reason: str

    def __str__(self) -> str:
        kind = {
            "full": "full covariance of",
            "low_rank": f"covariance by rank {self.rank} plus diagonal of",
            "last_layer": "full covariance of the last layer's",
        }[self.form]
        time = "" if self.seconds is None else f", about {self.seconds:.2g} s"
        size = f"{self.num_bytes / 1e6:.3g} MB{time}"
        return f"{kind} {self.num_parameters:,} parameters: {size} ({self.reason})"


def make_plan(sizes: Sizes, form: str, max_bytes: int) -> Plan:
    """Choose a form by the rule of this module, or take the one asked for."""
    if form not in ("auto", *FORMS):
        raise ConfigError(f"form must be 'auto', {', '.join(map(repr, FORMS))}, got {form!r}")
    rank = max_bytes // 2 // (sizes.num_replicas * sizes.num_parameters * sizes.itemsize)
    rank = max(1, min(rank, _LARGEST_RANK, sizes.num_parameters))
    if form != "auto":
        return _plan(sizes, form, rank, "asked for")
    budget = f"of {max_bytes / 1e6:.3g} MB"
    full_bytes = _root_bytes(sizes, sizes.num_parameters)
    if full_bytes <= max_bytes:
        return _plan(sizes, "full", rank, f"fits the budget {budget}")
    reason = f"the full one takes {full_bytes / 1e6:.3g} MB, more than the budget {budget}"
    if rank < _SMALLEST_RANK and _root_bytes(sizes, sizes.num_last) <= max_bytes:
        return _plan(sizes, "last_layer", rank, reason)
    return _plan(sizes, "low_rank", rank, reason)


def _plan(sizes: Sizes, form: str, rank: int, reason: str) -> Plan:
    P = sizes.num_last if form == "last_layer" else sizes.num_parameters
    outputs = None if sizes.num_data is None else sizes.num_data * sizes.num_outputs
    if form == "low_rank":
        held = sizes.num_replicas * rank * P * sizes.itemsize
        work = None if outputs is None else 4 * outputs * P * rank
    else:
        held = _root_bytes(sizes, P)
        work = None if outputs is None else _root_work(P, outputs)
    seconds = None if work is None else sizes.num_replicas * work / _FLOPS
    return Plan(form, P, rank if form == "low_rank" else None, held, seconds, reason)


def _root_bytes(sizes: Sizes, P: int) -> int:
    return sizes.num_replicas * P**2 * sizes.itemsize


def _root_work(P: int, outputs: int) -> int:
    """Count multiplications; the evidence works on the smaller side."""
    return outputs * P**2 + P**3 + _FACTORIZATIONS * min(P, outputs) ** 3
