r"""Scores of the predictions for a table, as frozen records of numbers.

A score is a mean over rows, :math:`\bar\ell = \frac1N \sum_n \ell_n`, with the standard error
:math:`\operatorname{std}(\ell_n) / \sqrt N`; the root :math:`r` of a mean of squares is one too, to
first order, with :math:`\ell_n = r + (e_n^2 - r^2) / 2r`. On the same rows two models differ by
:math:`\ell_n - \ell'_n`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whvi.errors import DataError, ShapeError
from whvi.metrics import (
    accuracy,
    auroc,
    brier,
    calibration_error,
    coverage,
    crps_values,
    ece,
    mnll,
    rmse,
)
from whvi.predictive import Predictive

LEVELS = (0.5, 0.8, 0.9, 0.95)
SCORE_NAMES = {  # for readers
    "num_rows": "rows",
    "rmse": "RMSE",
    "rmse_of_mean": "RMSE of the mean",
    "mae": "mean absolute error",
    "r2": "R²",
    "mnll": "MNLL (nats)",
    "crps": "CRPS",
    "calibration_error": "calibration error",
    "epistemic_share": "epistemic share of variance",
    "accuracy": "accuracy",
    "accuracy_of_most_frequent": "accuracy of the most frequent class",
    "log_loss": "log loss (nats)",
    "brier": "Brier score",
    "ece": "expected calibration error",
    "mean_confidence": "mean confidence",
    "auroc": "area under the ROC curve",
}
RowScores = dict[str, Tensor]  # of every row, by the name of the score that is their mean


@dataclass(frozen=True)
class IntervalScore:
    """Scores of the central intervals of one level."""

    level: float
    coverage: float  # fraction of targets inside
    median_width: float  # in units of the target


@dataclass(frozen=True)
class _Record:
    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class RegressionScores(_Record):
    """Scores of a regression. Errors are in units of the target, ``mnll`` in nats per row."""

    num_rows: int
    rmse: float
    rmse_of_mean: float  # if the mean of these rows were always predicted
    mae: float
    r2: float  # NaN for a constant target
    mnll: float
    crps: float
    calibration_error: float
    epistemic_share: float  # fraction of the predicted variance
    intervals: tuple[IntervalScore, ...]


@dataclass(frozen=True)
class LabelScores(_Record):
    """Scores of a classification. ``log_loss`` is in nats per row."""

    num_rows: int
    accuracy: float
    accuracy_of_most_frequent: float  # if the most frequent class of these rows were predicted
    log_loss: float
    brier: float
    ece: float
    mean_confidence: float
    auroc: float | None  # for two classes, both present


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Return the mean of independent values and its standard error, which one value has not."""
    error = values.std().item() / len(values) ** 0.5 if len(values) > 1 else None
    return values.mean().item(), error


def score_regression(
    predictive: Predictive, y: Tensor, *, levels: Sequence[float] = LEVELS
) -> RegressionScores:
    """Score predictions of one output.

    Args:
        predictive: One output, no replicas, N rows.
        y: True values, shape ``(N,)``.
        levels: Levels of the intervals to score.
    """
    return judge_blocks([(predictive, y)], levels=levels)[0]


def judge_blocks(
    blocks: Iterable[tuple[Predictive, Tensor]], *, levels: Sequence[float] = LEVELS
) -> tuple[RegressionScores, RowScores]:
    """Score predictions one block of rows after the other, so that few rows need memory at once."""
    parts = [_row_values(predictive, y.double(), levels) for predictive, y in blocks]
    y, mean, variance, epistemic, log_prob, pit, crps, *ends = torch.cat(parts, dim=1)
    deviation, error = rmse(y.mean().expand_as(y), y), rmse(mean, y)
    intervals = zip(levels, ends[::2], ends[1::2], strict=True)
    squares = (mean - y).square()
    rows = {
        "rmse": error + (squares - error.square()) / (2 * error) if error > 0 else squares,
        "mae": (mean - y).abs(),
        "mnll": -log_prob,
        "crps": crps,
    }
    scores = RegressionScores(
        num_rows=len(y),
        rmse=error.item(),
        rmse_of_mean=deviation.item(),
        mae=rows["mae"].mean().item(),
        r2=1 - (error / deviation).square().item() if deviation > 0 else float("nan"),
        mnll=mnll(log_prob).item(),
        crps=crps.mean().item(),
        calibration_error=calibration_error(pit).item(),
        epistemic_share=(epistemic.square().mean() / variance.mean()).item(),  # NaN without any
        intervals=tuple(
            IntervalScore(level, coverage(low, high, y).item(), (high - low).median().item())
            for level, low, high in intervals
        ),
    )
    return scores, rows


def _row_values(predictive: Predictive, y: Tensor, levels: Sequence[float]) -> Tensor:
    """Return what the scores need of every row, ``(7 + 2 levels, N)``."""
    mean = predictive.mean
    if mean.shape != y.shape or y.dim() != 1:
        raise ShapeError(
            f"expected one target per row, got predictions of shape {tuple(mean.shape)} and "
            f"targets of shape {tuple(y.shape)}"
        )
    ends = [end for level in levels for end in predictive.interval(level)]
    scores = predictive.log_prob(y), pit_values(predictive, y), crps_values(predictive, y)
    return torch.stack([y, mean, predictive.variance, predictive.epistemic, *scores, *ends])


def pit_values(predictive: Predictive, y: Tensor) -> Tensor:
    """Return ``cdf(y)``; for counts halfway between ``P(Y < y)`` and ``P(Y <= y)``."""
    below = predictive.cdf(y)
    below = (below + predictive.cdf(y - 1)) / 2 if predictive.discrete else below
    return below.clamp(max=1)  # a sum over components may round to more


def score_labels(predictive: Predictive, labels: Tensor) -> LabelScores:
    """Score predictions of classes; ``labels`` are integers 0, …, C − 1, shape ``(N,)``."""
    return judge_probs(predictive.probs, labels)[0]


def judge_probs(probs: Tensor, labels: Tensor) -> tuple[LabelScores, RowScores]:
    """Score probabilities ``(N, C)`` of classes."""
    labels = labels.long()
    both = probs.shape[-1] == 2 and len(labels.unique()) == 2
    chosen = probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    rows = {
        "accuracy": (probs.argmax(-1) == labels).double(),
        "log_loss": -chosen.log(),
        "brier": probs.square().sum(-1) - 2 * chosen + 1,
    }
    scores = LabelScores(
        num_rows=len(labels),
        accuracy=accuracy(probs.argmax(-1), labels).item(),
        accuracy_of_most_frequent=labels.bincount().max().item() / len(labels),
        log_loss=mnll(chosen.log()).item(),
        brier=brier(probs, labels).item(),
        ece=ece(probs, labels).item(),
        mean_confidence=probs.max(-1).values.mean().item(),
        auroc=auroc(probs[:, 1], labels).item() if both else None,
    )
    return scores, rows


def label_numbers(classes: Iterable[Any], y: Iterable[Any]) -> Tensor:
    """Return the position of every label in ``classes``; raise if one is not there."""
    places = {str(name): k for k, name in enumerate(classes)}
    numbers = []
    for row, value in enumerate(y):
        if str(value) not in places and isinstance(value, float) and value == int(value):
            value = int(value)  # 1.0 in a table, 1 among the classes
        if str(value) not in places:
            raise DataError(
                f"row {row + 1} has the label {str(value)!r}, which training did not have; "
                f"expected one of {', '.join(map(repr, list(places)[:10]))}"
            )
        numbers.append(places[str(value)])
    return torch.tensor(numbers)
