"""A work that reads and writes a file besides its records, and takes its worker with it once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reproduction.records import Record, Records
from reproduction.runner import Unit


@dataclass(frozen=True)
class NotedWork:
    """Notes every unit, and says how many it found noted when it began.

    ``deadly`` is a split at which the worker dies, unless ``flag`` exists.
    """

    notes: Records
    flag: str = ""
    deadly: int = -1
    seconds: float = 0.0

    def __call__(self, unit: Unit) -> Iterator[Record]:
        known = len(self.notes.read())
        for split in unit.splits:
            if split == self.deadly and not Path(self.flag).exists():
                Path(self.flag).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(self.seconds)
            name = {"method": unit.method, "dataset": unit.dataset, "split": split, "seed": 0}
            self.notes.append([name])
            yield {**name, "known": known, "pid": os.getpid(), "folder": str(Path.cwd())}
