"""The command ``whvi``: verbs over tables and model files. Needs typer and rich."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

try:
    from whvi.cli.app import main
except ImportError as absent:
    _REASON = str(absent)

    def main(arguments: Sequence[str] | None = None) -> int:
        """Say what is missing."""
        print(f"error: {_REASON}; pip install 'whvi[cli]'", file=sys.stderr)
        return 2
