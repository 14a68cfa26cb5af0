"""The command ``whvi``: verbs over tables and model files. Needs typer and rich."""

from __future__ import annotations

__all__ = ["main"]

try:
    from whvi.cli.app import main
except ImportError as absent:
    _REASON = str(absent)

    def main(arguments: object = None) -> int:
        """Say what is missing."""
        import sys

        print(f"error: {_REASON}; pip install 'whvi[cli]'", file=sys.stderr)
        return 2
