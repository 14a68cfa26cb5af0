"""Rivals whose packages are not among the requirements of the project."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable


def tell_absent(methods: Iterable[str], missing_package: Callable[[str], str | None]) -> None:
    """Say on stderr which methods are left out, and which package each of them needs."""
    for name in methods:
        package = missing_package(name)
        if package:
            print(f"{name} is left out: the package {package} is not installed", file=sys.stderr)
