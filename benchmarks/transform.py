"""The transform beside a copy of the same bytes and other ways to transform."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.records import Cell, timed_cell
from benchmarks.rivals import butterflies, optional
from benchmarks.timing import Effort, Rival
from whvi.transforms import fwht, fwht_, hadamard_matrix
from whvi.transforms.plain import fwht_plain

TITLE = "Transform"
SIZES = [2**k for k in range(5, 14)]
_QUICK_SIZES = [128, 1024, 4096]
_NAMES = {torch.float32: "float32", torch.float64: "float64"}
_ENTRIES = {"2^20": 2**20, "2^24": 2**24}
_BEST_RATE = 1e11  # multiply-adds per second of a matrix product in one thread, at best


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Into a given output with every rival; then in place, and in float64."""
    sizes = _QUICK_SIZES if quick else SIZES
    for entries in _ENTRIES:
        for size in sizes:
            yield _into_output(entries, size, effort)
    for mode, dtype in (("in place", torch.float32), ("output", torch.float64)):
        for entries in ["2^20"] if quick else _ENTRIES:
            for size in sizes:
                yield _beside_copy(entries, size, mode, dtype, effort)


def _into_output(entries: str, size: int, effort: Effort) -> Cell:
    x = torch.randn(_ENTRIES[entries] // size, size)
    out = x.clone()
    rivals: dict[str, Rival | str] = {
        "whvi": Rival(lambda: fwht(x, out=out)),
        "memcpy": Rival(_copy(x, out)),
        "whvi, new output": Rival(lambda: fwht(x)),
        "Kronecker matmul": Rival(lambda: fwht_plain(x, True)),
        "eager butterflies": Rival(lambda: butterflies(x)),
        "dense matmul": _dense(x, out, effort),
        "hadamard-transform": _package(x),
    }
    with torch.no_grad():
        if entries == "2^20":
            _check_agreement(x, rivals)
        return timed_cell(_case(entries, size, "output", x.dtype), rivals, effort)


def _beside_copy(entries: str, size: int, mode: str, dtype: torch.dtype, effort: Effort) -> Cell:
    x = torch.randn(_ENTRIES[entries] // size, size, dtype=dtype)
    out = x.clone()
    in_place = x.clone()
    rivals = {
        "whvi": Rival(
            (lambda: fwht_(in_place)) if mode == "in place" else lambda: fwht(x, out=out)
        ),
        "memcpy": Rival(_copy(x, out)),
    }
    with torch.no_grad():
        return timed_cell(_case(entries, size, mode, dtype), rivals, effort)


def _case(entries: str, size: int, mode: str, dtype: torch.dtype) -> dict[str, str | int]:
    return {"mode": mode, "dtype": _NAMES[dtype], "entries": entries, "D": size}


def _copy(source: Tensor, target: Tensor) -> Callable[[], object]:
    pointers = (target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
    return lambda: ctypes.memmove(*pointers)


def _dense(x: Tensor, out: Tensor, effort: Effort) -> Rival | str:
    if x.numel() * x.shape[-1] / _BEST_RATE > effort.longest_call:
        return f"a call takes more than {effort.longest_call:g} s"
    H = hadamard_matrix(x.shape[-1], dtype=x.dtype)
    return Rival(lambda: torch.matmul(x, H, out=out))


def _package(x: Tensor) -> Rival | str:
    package = optional("hadamard_transform")
    if isinstance(package, str):
        return package
    return Rival(lambda: package.hadamard_transform(x))


def _check_agreement(x: Tensor, rivals: dict[str, Rival | str]) -> None:
    """Refuse to compare ways that do not compute the same."""
    ours = fwht(x)
    for name in ("Kronecker matmul", "eager butterflies", "hadamard-transform"):
        rival = rivals[name]
        if isinstance(rival, Rival):
            torch.testing.assert_close(rival.call(), ours, rtol=1e-4, atol=1e-4)
