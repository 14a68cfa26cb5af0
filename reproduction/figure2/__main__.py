"""``python -m reproduction.figure2``."""

import sys

from reproduction.figure2.run import main

if __name__ == "__main__":
    sys.exit(main())
