"""Kill fits and resume them: ``python killer.py FOLDER COUNT SEED``; prints one JSON document.

This process never computes; every fit runs in a forked child.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch._dynamo  # noqa: F401  # torch.optim imports it on first use: once, not per child

from tests.crash.job import die_inside_write, run

MOMENTS = ("half", "before", "after")


def child(act) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        except KeyboardInterrupt:
            code = 130
        except SystemExit as error:
            code = error.code
        finally:
            os._exit(code)
    return pid


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_then_resumed(folder: Path, rng: random.Random, duration: float, inside: bool) -> dict:
    """One trial: how the first process ended, and the outcome of the second."""
    folder.mkdir()

    def first():
        if inside:
            die_inside_write(rng.randrange(1, 30), rng.choice(MOMENTS))
        run(folder)

    pid = child(first)
    if not inside:
        time.sleep(rng.uniform(0, duration))
        os.kill(pid, signal.SIGKILL)
    ended = wait(pid)
    resumed = wait(child(lambda: run(folder)))
    return {"ended": ended, "resumed": resumed, "inside": inside, "outcome": outcome(folder)}


def interrupted_then_resumed(folder: Path, number: int) -> dict:
    """One trial with a polite signal: its exit code, how long it took, and the outcome."""
    folder.mkdir()

    def first():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        run(folder, pause=0.05)

    pid = child(first)
    while not list(folder.glob("checkpoints/step-*")):
        time.sleep(0.01)
    sent = time.monotonic()
    os.kill(pid, number)
    ended = wait(pid)
    took = time.monotonic() - sent
    resumed = wait(child(lambda: run(folder)))
    return {"ended": ended, "took": took, "resumed": resumed, "outcome": outcome(folder)}


def outcome(folder: Path) -> str:
    return (folder / "outcome").read_bytes().hex() if (folder / "outcome").exists() else ""


def main() -> None:
    base, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    (base / "reference").mkdir()
    start = time.monotonic()
    wait(child(lambda: run(base / "reference")))
    duration = time.monotonic() - start
    trials = [
        killed_then_resumed(base / f"kill-{i}", rng, duration, inside=i % 5 < 2)
        for i in range(count)
    ]
    signals = {
        name: interrupted_then_resumed(base / name, getattr(signal, name))
        for name in ("SIGINT", "SIGTERM")
    }
    report = {"reference": outcome(base / "reference"), "trials": trials, "signals": signals}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
