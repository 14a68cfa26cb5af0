"""Two threads beside one, on work that is large enough to share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi._kernel.noise import normal_from_seed
from whvi.functional import noisy_structured_product, structured_product
from whvi.sampling import draw_seed
from whvi.transforms import fwht

TITLE = "Threads"
_SIZES = [128, 1024, 8192]
_POWERS = [20, 24]


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Transform, product forward + backward (shared g, noise per row) and noise."""
    before = torch.get_num_threads()
    try:
        for power in _POWERS:
            for size in [1024] if quick else _SIZES:
                for work, call in _works(2**power // size, size).items():
                    case = {"work": work, "entries": f"2^{power}", "D": size}
                    yield timed_cell(case, _rivals(call), effort)
    finally:
        torch.set_num_threads(before)


def _rivals(call: Callable[[], object]) -> dict[str, Rival]:
    return {
        f"{number} thread{'s' if number > 1 else ''}": Rival(
            call, prepare=partial(torch.set_num_threads, number)
        )
        for number in (1, 2)
    }


def _works(rows: int, size: int) -> dict[str, Callable[[], object]]:
    x = torch.randn(rows, size)
    out, grad = x.clone(), torch.randn(rows, size)
    s1, g, s2, scale = torch.randn(4, size).unbind()
    shared = [t.clone().requires_grad_() for t in (x, s1, g, s2)]
    noisy = [t.clone().requires_grad_() for t in (x, s1, g, scale, s2)]
    return {
        "transform": lambda: fwht(x, out=out),
        "product": lambda: torch.autograd.grad(structured_product(*shared), shared, grad),
        "product, noise per row": lambda: torch.autograd.grad(
            noisy_structured_product(*noisy), noisy, grad
        ),
        "noise": lambda: normal_from_seed((rows, size), draw_seed()),
    }
