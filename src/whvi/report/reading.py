"""What the scores say, in plain sentences; each is computed from the numbers it tells."""

from __future__ import annotations

import torch
from torch import Tensor

from whvi.plots import risk_coverage
from whvi.plots.curves import chance_band
from whvi.report.scores import IntervalScore, LabelScores, RegressionScores
from whvi.report.text import count, level, number, share

_FEW_ROWS = 30


def read_regression(scores: RegressionScores, loss: Tensor, std: Tensor) -> list[str]:
    """Tell error, coverage, where the uncertainty comes from, and whether it can be used to sort.

    Args:
        scores: Of all rows.
        loss: Squared error of every row.
        std: Predicted standard deviation of every row.
    """
    sentences = [
        f"Predictions are off by {number(scores.rmse)} (root mean squared error; "
        f"{number(scores.mae)} in the mean of absolute errors). Always predicting the mean of "
        f"these rows would be off by {number(scores.rmse_of_mean)}"
        + (f", so the model explains {share(scores.r2)} of the variance." if scores.r2 > 0 else ".")
    ]
    if scores.r2 <= 0:
        sentences.append("The model predicts no better here than a constant would.")
    sentences += [read_interval(each, scores.num_rows) for each in scores.intervals]
    sentences.append(
        f"{share(scores.epistemic_share)} of the predicted variance is the model's own doubt, "
        f"which more data would reduce; the rest is noise in the target."
    )
    sentences += _read_sorting(loss, std, "root mean squared error")
    return sentences + _read_size(scores.num_rows)


def read_interval(interval: IntervalScore, num_rows: int) -> str:
    """Tell the coverage of one level, and whether chance explains the difference."""
    low, high = _by_chance(interval.level, num_rows)
    if interval.coverage < low:
        verdict = "too few: at this level the intervals are too narrow"
    elif interval.coverage > high:
        verdict = "more than promised: at this level the intervals are wider than need be"
    else:
        verdict = "as promised, up to chance"
    return (
        f"{level(interval.level)} intervals covered {share(interval.coverage)} of "
        f"{count(num_rows, 'test row')} ({verdict}; a calibrated model gives {share(low)} to "
        f"{share(high)} in 95 of 100 tables of this size). Half of them are narrower than "
        f"{number(interval.median_width)}."
    )


def read_labels(scores: LabelScores, wrong: Tensor, entropy: Tensor) -> list[str]:
    """Tell accuracy, confidence, and whether the uncertainty can be used to sort.

    Args:
        scores: Of all rows.
        wrong: 1 for a wrong label, else 0.
        entropy: Of the predicted probabilities, every row.
    """
    low, high = _by_chance(scores.mean_confidence, scores.num_rows)
    if scores.accuracy < low:
        verdict = "the model is too sure of itself"
    elif scores.accuracy > high:
        verdict = "the model is more careful than it need be"
    else:
        verdict = "the two agree, up to chance"
    sentences = [
        f"The predicted label is right in {share(scores.accuracy)} of "
        f"{count(scores.num_rows, 'test row')}. Always predicting the most frequent class of these "
        f"rows would be right in {share(scores.accuracy_of_most_frequent)}.",
        f"The mean confidence is {share(scores.mean_confidence)}: {verdict}.",
        f"The log loss is {number(scores.log_loss)} nats per row, the Brier score "
        f"{number(scores.brier)} (0 is perfect, 2 the worst), the expected calibration error "
        f"{share(scores.ece)}.",
    ]
    if scores.auroc is not None:
        sentences.append(
            f"A row of the second class gets a higher probability of that class than a row of the "
            f"first in {share(scores.auroc)} of all pairs (area under the ROC curve)."
        )
    sentences += _read_sorting(wrong, entropy, "share of wrong labels")
    return sentences + _read_size(scores.num_rows)


def _by_chance(probability: float, num_rows: int) -> tuple[float, float]:
    low, high = chance_band(torch.tensor([probability], dtype=torch.float64), num_rows)
    return low.item(), high.item()


def _read_sorting(loss: Tensor, uncertainty: Tensor, risk: str) -> list[str]:
    """Tell what happens if only the surest half is kept; nothing if no half can be told apart."""
    kept, mean = risk_coverage(loss, uncertainty)
    half = int((kept - 0.5).abs().argmin())
    if not 0.4 <= kept[half] <= 0.6:
        return ["The model is equally sure of (nearly) all rows: it cannot tell good ones apart."]
    part, whole = mean[half].item(), mean[-1].item()
    if risk.startswith("root"):
        part, whole = part**0.5, whole**0.5
        shown = f"{number(part)} instead of {number(whole)}"
    else:
        shown = f"{share(part)} instead of {share(whole)}"
    if part < whole:
        return [f"Over the half of the rows that the model is surest of, the {risk} is {shown}."]
    return [
        f"Over the half of the rows that the model is surest of, the {risk} is {shown}: here its "
        f"uncertainty does not tell good predictions from bad ones."
    ]


def _read_size(num_rows: int) -> list[str]:
    if num_rows >= _FEW_ROWS:
        return []
    return [f"{count(num_rows, 'row')} is a small test: every number above is uncertain."]
