"""What happened during a fit: records of single steps, kept as columns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

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


@dataclass
class History:
    """The recorded steps of a fit as columns of equal length."""

    step: list[int] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    beta: list[float] = field(default_factory=list)
    expected_log_lik: list[Value] = field(default_factory=list)
    kl: list[Value] = field(default_factory=list)
    layer_kl: list[dict[str, Value]] = field(default_factory=list)
    noise: list[list[Value]] = field(default_factory=list)
    validation: list[Value | None] = field(default_factory=list)

    def append(self, record: StepRecord) -> None:
        """Add one record to the columns."""
        for name, value in record._asdict().items():
            getattr(self, name).append(value)

    def __len__(self) -> int:
        return len(self.step)

    def as_dict(self) -> dict[str, list[Any]]:
        """Return the columns as plain lists, ready for JSON."""
        return asdict(self)
