"""``whvi doctor``: which kernel runs, and whether its results are correct.

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
from typing import NamedTuple

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
    "jinja2": "report",
    "typer": "cli",
    "pyarrow": "cli",
    "openpyxl": "cli",
    "matplotlib": "plots",
    "pooch": "data",
    "scipy": "data",
    "gpytorch": "gp",
    "joblib": "experiments",
    "triton": "gpu",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "clients",
}
_VARIABLES = {
    "WHVI_KERNEL": "0 turns the compiled kernel off",
    "WHVI_ISA": "avx512, avx2 or baseline chooses its instruction set",
    "WHVI_TRITON": "0 turns the kernels for CUDA tensors off",
    "WHVI_DATA": "folder that holds UCI_Datasets, tables, images, text, weights",
    "OMP_NUM_THREADS": "threads torch starts with",
}
_ROWS, _SIZE = 256, 1024  # of the timing: one mebibyte of float32
_SECONDS_PER_TIMING = 0.15


class Check(NamedTuple):
    """One result of the self-check: a largest error and what it may be."""

    name: str
    error: float
    bound: float

    @property
    def is_passed(self) -> bool:
        """Whether the error is within the bound; NaN is not."""
        return self.error <= self.bound


def run_checks(device: str = "cpu") -> list[Check]:
    """Compare the transform with its inverse, and the structured product with a dense matrix."""
    where = "" if device == "cpu" else f" on {device}"
    x = _normal(8, _SIZE).float().to(device)
    inverse_error = (fwht(fwht(x)) - x).abs().max().item()
    # each of 2 log2(D) levels rounds once, and entries stay below 5
    inverse_bound = 5 * 20 * torch.finfo(x.dtype).eps
    rows, (s1, g, s2) = _normal(8, 64).to(device), _normal(3, 64).to(device)
    dense = rows @ dense_matrix(s1, g, s2).T
    product_error = (structured_product(rows, s1, g, s2) - dense).abs().max().item()
    return [
        Check(f"fwht(fwht(x)) = x{where}", inverse_error, inverse_bound),
        Check(
            f"structured_product = dense matrix{where}",
            product_error,
            1e-12 * dense.abs().max().item(),
        ),
    ]


def _normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _kernel_lines() -> list[str]:
    kernel, num_threads = backend.kernel, torch.get_num_threads()
    threads = f"{num_threads} thread{'s' * (num_threads != 1)}"
    last = f"torch threads  {num_threads}"
    if kernel is None:
        return [f"kernel         plain torch, {threads} ({backend.reason})", last]
    if not kernel.has_threads():
        threads = "1 thread: no OpenMP runtime found in this process"
    return [
        f"kernel         compiled, {kernel.instruction_set()}, {threads}",
        f"  available    {', '.join(kernel.instruction_sets())}",
        f"  OpenMP       {'found' if kernel.has_threads() else 'not found'}",
        last,
    ]


def _version(package: str, otherwise: str = "?") -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return otherwise


def _environment_lines() -> list[str]:
    """List the versions of packages and the environment variables that are read."""
    lines = ["", "versions", f"  {'python':<15}{platform.python_version()}"]
    lines += [f"  {name:<15}{_version(name)}" for name in _REQUIRED]
    lines += ["", "optional packages"]
    for name, extra in _EXTRAS.items():
        absent = f"absent (pip install 'whvi[{extra}]')"
        lines.append(f"  {name:<15}{_version(name, absent)}")
    lines += ["", "environment"]
    for name, meaning in _VARIABLES.items():
        lines.append(f"  {name:<17}{os.environ.get(name, 'not set')}  ({meaning})")
    return lines


def _timing_line() -> str:
    """Time the transform as a user calls it and in plain torch, on one thread."""
    x = _normal(_ROWS, _SIZE).float()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine measure that
    try:
        active = _best_of(lambda: fwht(x))
        plain = _best_of(lambda: fwht_plain(x, normalize=True))
    finally:
        torch.set_num_threads(num_threads)
    return (
        f"  fwht of {_ROWS} x {_SIZE} float32, one thread: {1e6 * active:.0f} us; "
        f"plain torch {1e6 * plain:.0f} us ({plain / active:.1f} x)"
    )


def _best_of(call: Callable[[], Tensor]) -> float:
    """Seconds of the fastest call within a fixed time: others may be using the machine."""
    best, end = float("inf"), time.perf_counter() + _SECONDS_PER_TIMING
    while (start := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> int:
    """Print kernel, versions, environment and self-check, and return the exit code."""
    checks = run_checks() + (run_checks("cuda") if torch.cuda.is_available() else [])
    lines = [*_kernel_lines(), *_environment_lines(), "", "self-check"]
    for check in checks:
        verdict = "ok" if check.is_passed else "WRONG"
        lines.append(f"  {verdict:<7}{check.name}: error {check.error:.1e} (<= {check.bound:.1e})")
    print("\n".join([*lines, _timing_line()]))
    return 0 if all(check.is_passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
