"""What belongs to the whole process: signals, threads and freed memory.

:func:`whvi.fit` only defers signals. Threads and memory are for programs that own their process to
set: the estimators, the command line, benchmarks.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn, final

import torch

from whvi._checks import check_positive_int

_CAUGHT = (signal.SIGINT, signal.SIGTERM)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 1 << 29  # at most so much stays with an idle process
_MAPPED_BYTES = 1 << 25  # larger blocks come from the system anyway; glibc allows no more


@final
class Interrupts:
    """Remembers a signal until the loop asks for it; a second SIGINT is not waited for."""

    def __init__(self) -> None:
        self.received: int | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note the signal (a handler for :func:`signal.signal`)."""
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def reraise(self) -> NoReturn:
        """Leave as Python would have: ``KeyboardInterrupt``, or ``SystemExit(143)``.

        The latter also where only another process of a distributed fit got the signal.
        """
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[Interrupts]:
    """Catch SIGINT and SIGTERM inside the block; put the former handlers back afterwards.

    Only the main thread may do so; elsewhere nothing is caught. A signal that the process
    ignores stays ignored.
    """
    interrupts = Interrupts()
    former = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _CAUGHT:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    former[number] = signal.signal(number, interrupts.handle)
        yield interrupts
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def limited_threads(num_threads: int) -> Iterator[None]:
    """Let torch and the kernel use at most ``num_threads`` threads inside the block.

    Never more than before it, and as many as before it afterwards.
    """
    check_positive_int("num_threads", num_threads)
    former = torch.get_num_threads()
    torch.set_num_threads(min(num_threads, former))
    try:
        yield
    finally:
        torch.set_num_threads(former)


def keep_freed_memory() -> bool:
    """Ask the C library to keep up to 512 MiB of freed memory; return whether that worked.

    A training step frees its intermediate tensors and the next one asks for the same sizes again.
    glibc returns large blocks to the system in between, so every step pays for a page fault per
    4 KiB: a third of the time of 20 replicas at width 128.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library than glibc
        return False
    options = ((_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _MAPPED_BYTES))
    return all(mallopt(option, value) == 1 for option, value in options)
