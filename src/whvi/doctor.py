"""``whvi doctor``: which kernel runs, and whether its results are right.

The exit code is 0, or 1 if a result of the self-check is wrong. A missing kernel or package is
not an error: everything works without it, only slower or with fewer features.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whvi._kernel.backend import backend
from whvi.functional import dense_matrix, structured_product
from whvi.transforms import fwht
from whvi.transforms.plain import fwht_plain

_REQUIRED = ("whvi", "torch", "numpy", "safetensors")
_EXTRAS = {  # optional package -> the extra that installs it
    "rich": "progress",
    "pandas": "tables",
    "scikit-learn": "sklearn",
    "typer": "cli",
    "matplotlib": "plots",
    "pooch": "data",
    "scipy": "data",
    "gpytorch": "gp",
    "joblib": "experiments",
}
_VARIABLES = {
    "WHVI_KERNEL": "0 turns the compiled kernel off",
    "WHVI_ISA": "avx512, avx2 or baseline chooses its instruction set",
    "WHVI_DATA": "folder that holds UCI_Datasets, tables, images, text, weights",
    "OMP_NUM_THREADS": "threads torch starts with",
}
_ROWS, _SIZE = 256, 1024  # of the timing: one mebibyte of float32
_SECONDS_PER_TIMING = 0.15


@dataclass(frozen=True)
class KernelStatus:
    """The compiled kernel: whether it runs, and on what."""

    is_active: bool
    reason: str  # a sentence that says so, or why not
    instruction_set: str | None  # in use
    instruction_sets: tuple[str, ...]  # that this processor and build could use
    has_threads: bool  # an OpenMP runtime was found in the process
    num_threads: int  # torch.get_num_threads()


@dataclass(frozen=True)
class Check:
    """One result of the self-check: a largest error and what it may be."""

    name: str
    error: float
    bound: float

    @property
    def is_passed(self) -> bool:
        """Whether the error is within the bound; NaN is not."""
        return self.error <= self.bound


@dataclass(frozen=True)
class Timing:
    """Seconds for a transform of ``rows`` × ``size`` float32 numbers: one thread, best of many."""

    rows: int
    size: int
    active: float  # fwht as it is called by a user
    plain: float  # the same in plain torch


@dataclass(frozen=True)
class Diagnosis:
    """Everything the doctor found."""

    kernel: KernelStatus
    versions: dict[str, str]
    optional: dict[str, str | None]  # package -> version, or None where it is absent
    variables: dict[str, str | None]  # environment variable -> value, or None where it is not set
    checks: tuple[Check, ...]
    timing: Timing

    @property
    def is_healthy(self) -> bool:
        """Whether every result of the self-check is right."""
        return all(check.is_passed for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def diagnose() -> Diagnosis:
    """Look at kernel, versions and environment, and check results against a dense matrix."""
    return Diagnosis(
        kernel=kernel_status(),
        versions={
            "python": platform.python_version(),
            **{n: _version(n) or "?" for n in _REQUIRED},
        },
        optional={name: _version(name) for name in _EXTRAS},
        variables={name: os.environ.get(name) for name in _VARIABLES},
        checks=(_check_inverse(), _check_product()),
        timing=_time_transform(),
    )


def kernel_status() -> KernelStatus:
    """Say which kernel is active, and why not if none is."""
    kernel = backend.kernel
    return KernelStatus(
        is_active=kernel is not None,
        reason=backend.reason,
        instruction_set=None if kernel is None else kernel.instruction_set(),
        instruction_sets=() if kernel is None else tuple(kernel.instruction_sets()),
        has_threads=kernel is not None and bool(kernel.has_threads()),
        num_threads=torch.get_num_threads(),
    )


def describe_kernel(status: KernelStatus) -> str:
    """Return the status in one line."""
    threads = f"{status.num_threads} thread{'s' * (status.num_threads != 1)}"
    if not status.is_active:
        return f"plain torch, {threads} ({status.reason})"
    if not status.has_threads:
        threads = "1 thread: no OpenMP runtime found in this process"
    return f"compiled, {status.instruction_set}, {threads}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _check_inverse() -> Check:
    x = _normal(8, _SIZE).float()
    error = (fwht(fwht(x)) - x).abs().max().item()
    # each of 2 log2(D) levels rounds once, and entries stay below 5
    return Check("fwht(fwht(x)) = x", error, 5 * 20 * torch.finfo(x.dtype).eps)


def _check_product() -> Check:
    x, (s1, g, s2) = _normal(8, 64), _normal(3, 64)
    dense = x @ dense_matrix(s1, g, s2).T
    error = (structured_product(x, s1, g, s2) - dense).abs().max().item()
    return Check("structured_product = dense matrix", error, 1e-12 * dense.abs().max().item())


def _time_transform() -> Timing:
    x = _normal(_ROWS, _SIZE).float()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine measure that
    try:
        active = _best_of(lambda: fwht(x))
        plain = _best_of(lambda: fwht_plain(x, normalize=True))
    finally:
        torch.set_num_threads(num_threads)
    return Timing(_ROWS, _SIZE, active, plain)


def _best_of(call: Callable[[], Tensor]) -> float:
    """Seconds of the fastest call within a fixed time: others may be using the machine."""
    best, end = float("inf"), time.perf_counter() + _SECONDS_PER_TIMING
    while (start := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _lines(found: Diagnosis) -> list[str]:
    kernel, timing = found.kernel, found.timing
    lines = [f"kernel         {describe_kernel(kernel)}"]
    if kernel.is_active:
        lines.append(f"  available    {', '.join(kernel.instruction_sets)}")
        lines.append(f"  OpenMP       {'found' if kernel.has_threads else 'not found'}")
    lines.append(f"torch threads  {kernel.num_threads}")
    lines += ["", "versions"]
    lines += [f"  {name:<15}{version}" for name, version in found.versions.items()]
    lines += ["", "optional packages"]
    for name, version in found.optional.items():
        absent = f"absent (pip install 'whvi[{_EXTRAS[name]}]')"
        lines.append(f"  {name:<15}{version or absent}")
    lines += ["", "environment"]
    lines += [
        f"  {name:<17}{'not set' if value is None else value}  ({_VARIABLES[name]})"
        for name, value in found.variables.items()
    ]
    lines += ["", "self-check"]
    for check in found.checks:
        verdict = "ok" if check.is_passed else "WRONG"
        lines.append(f"  {verdict:<7}{check.name}: error {check.error:.1e} (<= {check.bound:.1e})")
    lines.append(
        f"  fwht of {timing.rows} x {timing.size} float32, one thread: "
        f"{1e6 * timing.active:.0f} us; plain torch {1e6 * timing.plain:.0f} us "
        f"({timing.plain / timing.active:.1f} x)"
    )
    return lines


def main() -> int:
    """Print the diagnosis and return the exit code."""
    found = diagnose()
    print(found)
    return 0 if found.is_healthy else 1


if __name__ == "__main__":
    sys.exit(main())
