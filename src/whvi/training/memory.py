"""Keep freed memory for the next step instead of giving it back to the system.

A training step frees its intermediate tensors and the next one asks for the same sizes again.
glibc returns large blocks to the system in between, so every step pays for a page fault per 4 KiB:
a third of the time of 20 replicas at width 128. The setting belongs to the whole process,
therefore layers, :func:`whvi.fit` and :mod:`whvi.gp` never make it; estimators, experiments and the
command line do.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 1 << 29  # at most so much stays with an idle process
_MAPPED_BYTES = 1 << 25  # larger blocks come from the system anyway; glibc allows no more


def keep_freed_memory() -> bool:
    """Ask the C library to keep up to 512 MiB of freed memory; return whether that worked."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library than glibc
        return False
    options = ((_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _MAPPED_BYTES))
    return all(mallopt(option, value) == 1 for option, value in options)
