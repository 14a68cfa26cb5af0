"""Records of an experiment: JSON lines, appended whole or not at all, each key at most once.

The file is safe against ``kill -9`` at any moment and against several writers: appends hold a lock,
drop the torn last line that a killed writer may have left, skip keys that are there already, and
are flushed to the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol, final

import numpy as np
import torch

import whvi
from whvi.errors import DataError

Record = dict[str, Any]
Key = tuple[str | int, ...]
KEY_FIELDS = ("method", "dataset", "split", "seed")


class Records(Protocol):
    """What keeps records by key."""

    def read(self) -> dict[Key, Record]:
        """Return all records by key."""

    def append(self, records: Iterable[Record]) -> int:
        """Add those records whose keys are new; return how many that were."""


@final
class RecordStore:
    """A file of JSON lines.

    Args:
        path: The file; its folder is made if needed.
        key_fields: Fields that together name a record.
    """

    def __init__(
        self, path: str | os.PathLike[str], key_fields: Sequence[str] = KEY_FIELDS
    ) -> None:
        self.path = Path(path).absolute()  # other processes may run elsewhere
        self._key_fields = tuple(key_fields)

    def key(self, record: Record) -> Key:
        """Return the values that name ``record``."""
        return tuple(record[field] for field in self._key_fields)

    def read(self) -> dict[Key, Record]:
        """Return all whole records by key, in the order of the file."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        return self._parse(content)

    def read_some(self) -> dict[Key, Record]:
        """Return all records, for a report; refuses if there are none."""
        found = self.read()
        if not found:
            raise DataError(f"{self.path} has no records: there is nothing to report")
        return found

    def append(self, records: Iterable[Record]) -> int:
        """Add those records whose keys are new; return how many that were."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file, _locked(file):
            file.seek(0)
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)
            known = set(self._parse(content))
            new = {self.key(record): record for record in records}
            lines = [_line(record) for key, record in new.items() if key not in known]
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        return len(lines)

    def _parse(self, content: bytes) -> dict[Key, Record]:
        found: dict[Key, Record] = {}
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record = json.loads(line)
                found.setdefault(self.key(record), record)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{self.path}, line {number} is no record ({error!r}); delete that line to "
                    f"have it computed again"
                ) from error
        return found


@final
class CarriedRecords:
    """The records of a store in memory, for a worker that does not see its file."""

    def __init__(self, store: RecordStore) -> None:
        self._key, self._found = store.key, store.read()
        self.added: list[Record] = []

    def read(self) -> dict[Key, Record]:
        """Return the records of the store and those that were added."""
        return {**self._found, **{self._key(record): record for record in self.added}}

    def append(self, records: Iterable[Record]) -> int:
        """Add those records whose keys are new; return how many that were."""
        known = self.read()
        new = [record for record in records if self._key(record) not in known]
        self.added += new
        return len(new)


def software_versions() -> dict[str, str]:
    """Return what every record says about the software that made it."""
    return {
        "whvi": whvi.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@cache
def commit(folder: Path = Path(__file__).parent) -> str | None:
    """Return the commit of the working copy of a folder, marked if files were changed since."""
    call = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # not a working copy
        return None
    return done.stdout.strip()


def origin(data_sha256: str, *, quick: bool) -> Record:
    """Return what the records of an experiment say at their end: from what they were made."""
    return {
        "data_sha256": data_sha256,
        "versions": software_versions(),
        "quick": quick,
        "commit": commit(),
    }


def _line(record: Record) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


@contextlib.contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Hold an exclusive lock on an open file, where the system has such locks."""
    try:
        import fcntl
    except ImportError:  # other systems than Unix: one writer at a time is up to the user
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
