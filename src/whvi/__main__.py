"""``python -m whvi`` is the command ``whvi``."""

from __future__ import annotations

import sys

from whvi.cli import main

if __name__ == "__main__":
    sys.exit(main())
