"""Two source trees side by side: ``python -m benchmarks --compare OTHER_SRC``.

Each tree runs in a process of its own, which waits for orders; bursts of the same work alternate
between them, and each counts with its minimum. The work goes through public names of ``whvi`` only,
so that the other tree may be an old one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.records import Cell, Section, save

TITLE = "Two source trees"
_ROUNDS, _BURST = 15, 0.03  # seconds
_ROOT = Path(__file__).resolve().parents[1]

Call = Callable[[], object]


def _transform(power: int, size: int) -> Call:
    from whvi import fwht

    x = torch.zeros(2**power // size, size)
    out = torch.empty_like(x)
    return lambda: fwht(x, out=out)


def _in_place(power: int, size: int) -> Call:
    from whvi import fwht_

    x = torch.zeros(2**power // size, size)
    return lambda: fwht_(x)


def _layer(inputs: int, outputs: int, batch: int) -> Call:
    from whvi import WHVILinear

    layer = WHVILinear(inputs, outputs)
    x, grad = torch.randn(batch, inputs), torch.randn(batch, outputs)
    return lambda: torch.autograd.grad(layer(x), list(layer.parameters()), grad, allow_unused=True)


def _own_loop(width: int) -> Call:
    import whvi
    from whvi.likelihoods import Gaussian

    model, likelihood = whvi.mlp(13, (width, width), 1), Gaussian(1)
    x, y = torch.randn(64, 13), torch.randn(64, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], fused=True)

    def step() -> None:
        (-whvi.elbo(model, likelihood, x, y, num_data=500).value / 500).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _fit(width: int, steps: int = 200) -> Call:
    import whvi
    from whvi.likelihoods import Gaussian

    x, y = torch.randn(500, 13), torch.randn(500, 1)
    config = whvi.FitConfig(num_steps=steps, batch_size=64)
    return lambda: whvi.fit(whvi.mlp(13, (width, width), 1), Gaussian(1), (x, y), config=config)


WORKS: dict[str, Callable[[], Call]] = {
    **{
        f"fwht {mode}, 2^{power} entries, D = {size}": partial(make, power, size)
        for mode, make in (("into output", _transform), ("in place", _in_place))
        for power in (20, 22, 24)
        for size in (256, 512, 1024, 2048, 4096, 8192)
    },
    "WHVILinear(128, 128), batch 64": partial(_layer, 128, 128, 64),
    "WHVILinear(1024, 1024), batch 64": partial(_layer, 1024, 1024, 64),
    "WHVILinear(10^6, 1), batch 16": partial(_layer, 10**6, 1, 16),
    "own loop, 13-128-128-1": partial(_own_loop, 128),
    "own loop, 13-1024-1024-1": partial(_own_loop, 1024),
    "200 steps of fit, 13-128-128-1": partial(_fit, 128),
    "200 steps of fit, 13-1024-1024-1": partial(_fit, 1024),
}


class _Tree:
    """A process with one source tree."""

    def __init__(self, source: Path) -> None:
        path = os.pathsep.join([str(source.resolve()), str(_ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compare"],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, work: str, number: int) -> float:
        """Let it do ``number`` calls after half as many; return seconds per call."""
        assert self._process.stdin is not None  # both are pipes
        assert self._process.stdout is not None
        print(json.dumps([work, number]), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(other: Path, output: Path) -> None:
    """Time all works in this tree and in ``other``; save them as a section and print ratios."""
    from benchmarks.machine import describe_machine  # of this tree: the other has its own modules

    trees = {"other": _Tree(other), "this": _Tree(_ROOT / "src")}
    cells: list[Cell] = []
    for work in WORKS:
        best = {name: tree.seconds(work, 1) for name, tree in trees.items()}
        for _ in range(_ROUNDS):
            for name, tree in trees.items():
                number = max(1, round(_BURST / best[name]))
                best[name] = min(best[name], tree.seconds(work, number))
        cells.append(Cell({"work": work}, best, {}))
        ratio = best["this"] / best["other"]
        print(f"{work:45} {best['other'] * 1e3:9.3f} ms {best['this'] * 1e3:9.3f} ms {ratio:6.2f}")
    for tree in trees.values():
        tree.close()
    save(Section("compare", TITLE, describe_machine(1), cells), output)


def _obey() -> None:
    """Do what is asked for on standard input; keep only the last work in memory."""
    torch.set_num_threads(1)
    opened, call = "", None
    for line in sys.stdin:
        work, number = json.loads(line)
        if work != opened or call is None:
            call = None  # before the next one needs memory
            torch.manual_seed(0)
            opened, call = work, WORKS[work]()
            call()
        for _ in range(number // 2):
            call()
        start = time.perf_counter()
        for _ in range(number):
            call()
        print((time.perf_counter() - start) / number, flush=True)


if __name__ == "__main__":
    _obey()
