"""What happened during a fit: records of single steps, kept as columns, and a progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from whvi.errors import MissingDependencyError

Value = float | list[Any]  # a number, or nested lists of numbers with replicas


class StepRecord(NamedTuple):
    """One recorded step. Values per model are numbers, or lists over the replicas."""

    step: int  # steps done, counted from 1
    learning_rate: float
    beta: float  # weight of the KL in this step
    expected_log_lik: Value  # of this step's batch, scaled to the whole data set, nats
    kl: Value  # nats
    layer_kl: dict[str, Value]  # of each Bayesian layer by its name, after the step
    noise: list[Value]  # the likelihood's noise parameters after the step
    validation: Value | None  # mean log predictive density per row, where it was evaluated


@dataclass(repr=False)
class History:
    """The recorded steps of a fit as columns of equal length.

    ``compiled`` tells whether all steps ran without a call of the layers; see
    :class:`whvi.FitConfig`. It is ``False`` for models that this cannot run, such as one with a
    forward hook.
    """

    step: list[int] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    beta: list[float] = field(default_factory=list)
    expected_log_lik: list[Value] = field(default_factory=list)
    kl: list[Value] = field(default_factory=list)
    layer_kl: list[dict[str, Value]] = field(default_factory=list)
    noise: list[list[Value]] = field(default_factory=list)
    validation: list[Value | None] = field(default_factory=list)
    compiled: bool = False

    def append(self, record: StepRecord) -> None:
        """Add one record to the columns."""
        for name, value in record._asdict().items():
            getattr(self, name).append(value)

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        steps = f"{len(self)} records" + (f" up to step {self.step[-1]}" if self.step else "")
        return f"History({steps}, compiled={self.compiled})"

    def as_dict(self) -> dict[str, Any]:
        """Return the columns as plain lists, and ``compiled``, ready for JSON."""
        return asdict(self)


@contextlib.contextmanager
def progress_bar(num_steps: int, start: int = 0) -> Iterator[Callable[[StepRecord], None]]:
    """Show steps, steps per second, ELBO, KL and noise on stderr; yields the callback for that.

    With replicas, their means are shown. Needs rich.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
        from rich.table import Column
    except ImportError as error:
        raise MissingDependencyError(
            "a progress bar needs rich: pip install 'whvi[progress]'"
        ) from error
    fold = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    status = TextColumn("{task.fields[status]}", table_column=fold)
    # what must be seen in 80 columns comes first
    columns = (TextColumn("fit"), BarColumn(12), MofNCompleteColumn(), Remaining(), status)
    with Progress(*columns, console=Console(stderr=True), expand=True) as bar:
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
    """Mean of nested lists of numbers: the mean of the means of the inner lists."""
    if isinstance(value, list):
        return sum(_mean(part) for part in value) / len(value)
    return float(value)
