"""SIGINT and SIGTERM during a fit: finish the step, then stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn, final

_CAUGHT = (signal.SIGINT, signal.SIGTERM)


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
