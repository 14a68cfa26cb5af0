"""A progress bar on stderr. Needs rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from whvi.errors import MissingDependencyError
from whvi.training.history import StepRecord


@contextlib.contextmanager
def progress_bar(num_steps: int, start: int = 0) -> Iterator[Callable[[StepRecord], None]]:
    """Show steps, steps per second, ELBO, KL and noise; yields the callback that updates them.

    With replicas, their means are shown. Data on stdout stays clean.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
    except ImportError as error:
        raise MissingDependencyError(
            "a progress bar needs rich: pip install 'whvi[progress]'"
        ) from error
    columns = (
        TextColumn("fit"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        Remaining(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("fit", total=num_steps, completed=start, status="")

        def show(record: StepRecord) -> None:
            speed = bar.tasks[task].speed or 0.0
            status = f"{speed:.0f} steps/s  {describe(record)}"
            bar.update(task, completed=record.step, status=status)

        yield show


def describe(record: StepRecord) -> str:
    """Return the record as a short line: ELBO, KL, noise parameters, validation."""
    log_lik, kl = _mean(record.expected_log_lik), _mean(record.kl)
    parts = [f"ELBO {log_lik - record.beta * kl:.5g}", f"KL {kl:.4g}"]
    if record.noise:
        parts.append(f"log noise {_mean(record.noise):.3g}")
    if record.validation is not None:
        parts.append(f"validation {_mean(record.validation):.4g}")
    return "  ".join(parts)


def _mean(value: Any) -> float:
    """Mean of nested lists of numbers, each list first by itself."""
    if isinstance(value, list):
        return sum(_mean(part) for part in value) / len(value)
    return float(value)
