"""What the commands of the experiments have in common: options, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from whvi.errors import ConfigError, WhviError


def grid_parser(
    module: str, description: str, *, methods: Collection[str], data: Collection[str], quick: str
) -> argparse.ArgumentParser:
    """Return a parser with the options that every grid of methods and data sets has.

    Args:
        module: Its name after ``reproduction.``, which is also that of its folder.
        description: One sentence.
        methods, data: Names to choose from.
        quick: What ``--quick`` leaves out.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m reproduction.{module}", description=description
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=quick)
    add("--methods", nargs="+", metavar="NAME", help=f"of {', '.join(methods)}")
    add("--data", nargs="+", metavar="NAME", help=f"of {', '.join(data)}")
    add("--seeds", nargs="+", type=int, help="by default those of the full grid")
    add("--jobs", type=int, default=1, help="processes")
    add(
        "--output",
        help=f"folder of records and report; by default reproduction/results/{module}[-quick]",
    )
    add("--no-progress", action="store_true", help="no progress bar")
    return parser


def run_to_report(run: Callable[[], Path]) -> int:
    """Run an experiment, name its report, and return the exit code; an error is one line."""
    try:
        folder = run()
    except WhviError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(folder / "README.md")
    return 0


def check_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Refuse names that are not known."""
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no {kind} {name!r}; choose from {', '.join(known)}")
