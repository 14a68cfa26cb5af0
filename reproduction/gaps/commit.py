"""Which code made a record."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def commit(folder: Path = Path(__file__).parent) -> str | None:
    """Return the commit of the working copy of a folder, marked if files were changed since."""
    call = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # not a working copy
        return None
    return done.stdout.strip()
