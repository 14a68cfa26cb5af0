"""Keep freed memory for the next step instead of giving it back to the system.

A training step frees its intermediate tensors and the next one asks for the same sizes again.
glibc returns large blocks to the system in between, so every step pays for a page fault per 4 KiB:
a third of the time of 20 replicas at width 128. The setting belongs to the whole process,
therefore the library never makes it by itself; programs of ours (experiments, the command line)
do.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1  # mallopt takes a C int


def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory; returns whether it could be asked.

    The process then holds on to its peak of memory until it ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library than glibc
        return False
    results = [mallopt(option, _LARGEST) for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD)]
    return all(result == 1 for result in results)
