"""``whvi bench``: the benchmarks of a source checkout, or a short measurement without one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from whvi.errors import ConfigError

_SIZES = (128, 512, 1024, 2048)
_ROWS = 64


def run_benchmarks(options: Sequence[str]) -> int:
    """Run ``benchmarks`` if the current folder has them, else time transform and product."""
    if Path("benchmarks/__main__.py").is_file():
        return subprocess.run([sys.executable, "-m", "benchmarks", *options]).returncode
    if options:
        raise ConfigError(
            f"options such as {options[0]!r} go to the benchmarks of a source checkout, and the "
            f"current folder is none; run 'whvi bench' alone for a short measurement"
        )
    print(
        "no benchmarks/ in this folder (it comes with the source): a short measurement instead",
        file=sys.stderr,
    )
    print("\n".join(_measure()))
    return 0


def _measure() -> list[str]:
    import torch
    from torch.utils.benchmark import Timer

    from whvi.product import structured_product
    from whvi.transforms import fwht

    calls = {
        "fwht": "fwht(x)",
        "WHVI product": "structured_product(x, s1, g, s2)",
        "dense": "x @ W",
    }
    lines = [f"median microseconds for {_ROWS} rows of D float32 numbers, one thread"]
    lines.append(f"{'D':>6}" + "".join(f"{name:>16}" for name in calls))
    generator = torch.Generator().manual_seed(0)
    for size in _SIZES:
        x, (s1, g, s2) = torch.randn(_ROWS, size, generator=generator), torch.randn(3, size)
        names = {"x": x, "s1": s1, "g": g, "s2": s2, "W": torch.randn(size, size)}
        names |= {"fwht": fwht, "structured_product": structured_product}
        times = [
            1e6 * Timer(call, globals=names).blocked_autorange(min_run_time=0.1).median
            for call in calls.values()
        ]
        lines.append(f"{size:>6}" + "".join(f"{each:>16,.1f}" for each in times))
    return lines
