"""Outputs: checked before the work begins, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from whvi.errors import ConfigError

STREAM = "-"


def check_output(output: str, inputs: Sequence[str]) -> None:
    """Refuse an output that is an input, a folder, or in a folder that is not there."""
    if output == STREAM:
        return
    path = Path(output)
    if not output or "\0" in output:
        raise ConfigError(f"the output must be the name of a file, got {output!r}")
    if path.is_dir():
        raise ConfigError(f"the output {output!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of the output {output!r} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"the folder of the output {output!r} cannot be written to")
    for each in inputs:
        if each != STREAM and Path(each).exists() and path.resolve() == Path(each).resolve():
            raise ConfigError(
                f"the output {output!r} is also an input and would be lost; name another file"
            )


@contextlib.contextmanager
def open_output(output: str) -> Iterator[IO[str]]:
    """Open a text file that takes its name only when all of it is written; ``-`` is stdout."""
    if output == STREAM:
        yield sys.stdout
        return
    with (
        replaced(Path(output)) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that becomes it, unless an error comes first."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # as a file that was simply opened
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
