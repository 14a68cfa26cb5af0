"""Time rivals side by side: in bursts, interleaved, the minimum of several rounds.

A burst is as many calls as take some milliseconds, after half as many that are not timed, so that
a rival is measured with its own data in the cache and not with what the previous rival left there.
All rivals take their turn in every round: a slow spell of the machine meets all of them. Other
work can only add time, so the minimum over rounds is the estimate.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_LONG_CALL = 0.1  # seconds; noise is a small part of calls this long, so they take fewer rounds
_LONG_ROUNDS = 3


def _nothing() -> None:
    """Prepare nothing."""


class Rival(NamedTuple):
    """One way to do the work of a cell.

    Attributes:
        call: Does it once.
        prepare: Runs before every burst, not timed.
        parts: Pieces of work in one call; the time is given per piece.
    """

    call: Callable[[], Any]
    prepare: Callable[[], None] = _nothing
    parts: int = 1


class Effort(NamedTuple):
    """How long to measure."""

    rounds: int = 9
    burst: float = 0.012  # seconds
    longest_call: float = 2.0  # seconds; rivals that take longer are left out

    @classmethod
    def quick(cls) -> Effort:
        """Enough to see a factor of two."""
        return cls(rounds=7, burst=0.004, longest_call=0.3)


class Times(NamedTuple):
    """Seconds per piece of work of each rival, and why the others have none."""

    seconds: dict[str, float]
    left_out: dict[str, str]


def measure(rivals: Mapping[str, Rival], effort: Effort) -> Times:
    """Return the minimum time of each rival over interleaved bursts."""
    singles: dict[str, float] = {}
    left_out: dict[str, str] = {}
    best: dict[str, float] = {}
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for name, rival in rivals.items():
            single = _single_call(rival, effort)
            if single > effort.longest_call:
                left_out[name] = f"a call takes more than {effort.longest_call:g} s"
            else:
                singles[name] = single
        for turn in range(effort.rounds):
            for name, single in singles.items():
                if turn < _LONG_ROUNDS or single < _LONG_CALL:
                    number = max(1, round(effort.burst / single))
                    burst = _burst(rivals[name], number)
                    best[name] = min(best.get(name, burst), burst)
    finally:
        if was_enabled:
            gc.enable()
    return Times({name: best[name] / rivals[name].parts for name in best}, left_out)


def _single_call(rival: Rival, effort: Effort) -> float:
    """Estimate one call; the first ones may meet code that never ran or memory never touched."""
    rival.prepare()
    estimate = _timed(rival.call, 1)
    while estimate < 2 * effort.longest_call and (again := _timed(rival.call, 1)) < 0.9 * estimate:
        estimate = again
    number = 1
    while number * estimate < effort.burst / 2:
        number *= 2
        estimate = min(estimate, _timed(rival.call, number))
    return estimate


def _burst(rival: Rival, number: int) -> float:
    rival.prepare()
    _timed(rival.call, number // 2)
    return _timed(rival.call, number)


def _timed(call: Callable[[], Any], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / max(1, number)
