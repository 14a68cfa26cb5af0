"""``python -m whvi.experiments.figure2``."""

import sys

from whvi.experiments.figure2.run import main

if __name__ == "__main__":
    sys.exit(main())
