"""From what went wrong to an exit code and one line on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from whvi.errors import MissingDependencyError, WhviError

WRONG_CALL, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0: done. 1: the command ran and its answer is bad news (``whvi doctor``). 2: a wrong call, an
    unusable file or an unusable table, told in one line on stderr. 130: stopped by Ctrl-C.
    """
    try:
        import typer

        from whvi.cli.app import app
    except ImportError as error:
        return _fail(MissingDependencyError(f"{error}; pip install 'whvi[cli]'"))
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]  # the base of all of typer's
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        code = app(words, prog_name="whvi", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except usage_error as error:
        return _fail(error)
    except (WhviError, OSError) as error:
        return _fail(error)
    except MemoryError:
        return _fail(MemoryError("not enough memory for a table or model of this size"))
    if code == INTERRUPTED:
        return _interrupted()
    return code if isinstance(code, int) else 0


def _fail(error: Exception) -> int:
    tell = getattr(error, "format_message", None)
    message = tell() if tell is not None else _describe(error)
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr)
    return WRONG_CALL


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, WhviError) and error.strerror:
        place = f"{os.fspath(error.filename)!r}: " if error.filename is not None else ""
        return f"{place}{error.strerror}"
    return str(error) or type(error).__name__


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


def _close_stdout() -> None:
    """Send what Python flushes at its end to nowhere: the reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
