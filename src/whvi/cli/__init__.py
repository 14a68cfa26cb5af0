"""The command ``whvi``: verbs over tables and model files. Needs typer and rich.

Modules here import nothing heavy when they are imported, so that ``--help`` is quick: torch, pandas
and the rest of the package are imported inside the commands.
"""

from __future__ import annotations

from whvi.cli.run import main

__all__ = ["main"]
