"""Write files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    mode: Literal["wb", "w"] = "wb",
    *,
    encoding: str | None = None,
    newline: str | None = None,
    follow_symlinks: bool = True,
) -> Iterator[IO[Any]]:
    """Open a stream whose content becomes the file at the end of the block, or not at all.

    The content goes to a temporary file in the same folder, is flushed to the disk and takes the
    place of the old file in one step; then the folder is flushed. After any exception, also
    ``KeyboardInterrupt``, the old file is as before and the temporary one is gone; only a killed
    process leaves a temporary file, whose name matches ``.*.tmp``. An existing file's permissions
    are kept. What is not a regular file (``/dev/null``, ``/dev/stdout``, a FIFO) is written to
    directly.

    Args:
        path: The file.
        mode: ``"wb"`` for bytes, ``"w"`` for text.
        encoding: Of text, as for :func:`open`.
        newline: Of text, as for :func:`open`.
        follow_symlinks: Whether to replace the file that a link points to, as :func:`open` would,
            or the link itself.

    Raises:
        OSError: The file cannot be written.
    """
    target, former = _resolve(Path(path), follow_symlinks)
    if former is not None and not stat.S_ISREG(former):
        append: Any = mode.replace(
            "w", "a"
        )  # after "program >> log", /dev/stdout has content to keep
        with target.open(append, encoding=encoding, newline=newline) as stream:
            yield stream
        return
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open(_exclusive(mode), encoding=encoding, newline=newline) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if former is not None:
            temporary.chmod(stat.S_IMODE(former))
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _resolve(path: Path, follow_symlinks: bool) -> tuple[Path, int | None]:
    """Return the file to write and its ``st_mode``: ``None`` if there is no file yet."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # also a link to nowhere
        mode = None
    is_stream = os.path.abspath(path).startswith(_STREAMS)  # even if redirected to a file
    if is_stream or (mode is not None and not stat.S_ISREG(mode)):
        return path, stat.S_IFIFO if is_stream else mode
    return Path(os.path.realpath(path)) if follow_symlinks else path, mode


def _exclusive(mode: str) -> Any:
    """Return the mode that creates a file and refuses one that is there."""
    return mode.replace("w", "x")


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entries to the disk, where the system lets us open it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # writable but not readable; or Windows, which renames durably anyway
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
