"""How a table of a given size is fitted: every default, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from whvi._checks import check_positive_int
from whvi.errors import ConfigError
from whvi.training import FitConfig

T = TypeVar("T")

FEW_ROWS = 3000
"""Below, members leave out different rows; from here on all leave out the same ones."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Shape of the networks and how they are trained.

    Attributes:
        hidden: Widths of the hidden layers.
        sine: Whether the first layer has sine features on tiled inputs.
        members: Networks of the ensemble.
        steps, batch, learning_rate: Of Adam.
        beta: Weight of the KL; below 1 the objective is tempered and no longer a bound.
        validation_fraction: Share of the rows that each member leaves out for early stopping and
            for the calibration of the noise.
        rotate: Whether every member leaves out rows of its own, or all the same.
    """

    hidden: tuple[int, ...]
    sine: bool
    members: int
    steps: int
    batch: int
    learning_rate: float
    beta: float
    validation_fraction: float
    rotate: bool

    def fit_config(self, seed: int, *, factor: float = 1.0) -> FitConfig:
        """Return the options of :func:`whvi.fit`; ``factor`` lowers the learning rate."""
        every = max(1, self.steps // 20)
        return FitConfig(
            num_steps=self.steps,
            batch_size=self.batch,
            learning_rate=factor * self.learning_rate,
            beta=self.beta,
            eval_every=every,
            patience=8 if self.validation_fraction else None,
            record_every=max(1, self.steps // 100),
            seed=seed,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**asdict(self), "hidden": list(self.hidden)}


def plan_for(
    num_rows: int,
    *,
    hidden: int | Sequence[int] | None = None,
    members: int | None = None,
    max_iter: int | None = None,
    validation_fraction: float | None = None,
) -> Plan:
    """Choose what the user left open by the number of rows.

    Few rows: eight narrow networks, each of which leaves out another tenth, so that the ensemble
    has seen every row. Many rows: four wide networks and one common part for validation.
    """
    few = num_rows < FEW_ROWS
    members = _default(members, 8 if few else 4)
    check_positive_int("n_members", members)
    steps = _default(max_iter, 8000 if few else 3000)
    check_positive_int("max_iter", steps)
    share = _default(validation_fraction, 0.1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ConfigError(f"validation_fraction must lie in [0, 1), got {share!r}")
    return Plan(
        hidden=_widths(hidden, (128, 128) if few else (512, 512, 512)),
        sine=not few,
        members=members,
        steps=steps,
        batch=32 if few else 128,
        learning_rate=1.5e-2 if few else 2e-2,
        beta=0.3 if few else 0.2,
        validation_fraction=float(share),
        rotate=few and members > 1,
    )


def _widths(hidden: int | Sequence[int] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if hidden is None:
        return default
    widths = (hidden,) if isinstance(hidden, int) else tuple(int(width) for width in hidden)
    if not widths:
        raise ConfigError("hidden_layer_sizes must name at least one layer, such as (128, 128)")
    for width in widths:
        check_positive_int("every entry of hidden_layer_sizes", width)
    return widths


def _default(value: T | None, default: T) -> T:
    return default if value is None else value
