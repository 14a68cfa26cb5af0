"""Scores as sentences, and numbers formatted for readers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whvi.plots.curves import chance_band, risk_coverage
from whvi.predictive import Predictive
from whvi.report.scores import IntervalScore, LabelScores, RegressionScores

_FEW_ROWS = 30


def regression_sentences(scores: RegressionScores, predictive: Predictive, y: Tensor) -> list[str]:
    """Describe errors, coverage, the sources of uncertainty, and whether it can rank rows."""
    explains = f", so the model explains {share(scores.r2)} of the variance" * (scores.r2 > 0)
    sentences = [
        f"The root mean squared error is {number(scores.rmse)}, the mean absolute error "
        f"{number(scores.mae)}. Always predicting the mean of these rows would have a root mean "
        f"squared error of {number(scores.rmse_of_mean)}{explains}."
    ]
    if scores.r2 <= 0:
        sentences.append("The model predicts no better here than a constant would.")
    sentences += [interval_sentence(each, scores.num_rows) for each in scores.intervals]
    sentences.append(
        f"{share(scores.epistemic_share)} of the predicted variance is uncertainty about the "
        f"model, which more data would reduce; the rest is noise in the target."
    )
    loss = (predictive.mean - y).square()
    return sentences + _last_sentences(loss, predictive.std, "root mean squared error")


def interval_sentence(interval: IntervalScore, num_rows: int) -> str:
    """Describe the coverage of one level, and whether chance explains the difference."""
    low, high = _by_chance(interval.level, num_rows)
    few = "too few: the intervals are too narrow"
    many = "too many: the intervals are wider than necessary"
    verdict = _verdict(interval.coverage, (low, high), few, many, "consistent with the level")
    return (
        f"{level(interval.level)} intervals cover {share(interval.coverage)} of "
        f"{count(num_rows, 'test row')} ({verdict}; a calibrated model covers {share(low)} to "
        f"{share(high)} in 95 of 100 tables of this size). Their median width is "
        f"{number(interval.median_width)}."
    )


def label_sentences(scores: LabelScores, predictive: Predictive, labels: Tensor) -> list[str]:
    """Describe accuracy, confidence, and whether the uncertainty can rank rows."""
    ends = _by_chance(scores.mean_confidence, scores.num_rows)
    over = "higher than the accuracy, so the model is overconfident"
    under = "lower than the accuracy, so the model is underconfident"
    verdict = _verdict(scores.accuracy, ends, over, under, "consistent with the accuracy")
    sentences = [
        f"The predicted label is correct for {share(scores.accuracy)} of "
        f"{count(scores.num_rows, 'test row')}. Always predicting the most frequent class of these "
        f"rows would be correct for {share(scores.accuracy_of_most_frequent)}.",
        f"The mean confidence is {share(scores.mean_confidence)}, {verdict}.",
        f"The log loss is {number(scores.log_loss)} nats per row, the Brier score "
        f"{number(scores.brier)} (0 is best, 2 is worst), the expected calibration error "
        f"{share(scores.ece)}.",
    ]
    if scores.auroc is not None:
        sentences.append(
            f"In {share(scores.auroc)} of all pairs of a row of each class, the row of the second "
            f"class has the higher probability of that class (area under the ROC curve)."
        )
    wrong = (predictive.mode != labels).double()
    return sentences + _last_sentences(wrong, predictive.entropy(), "share of wrong labels")


def _by_chance(probability: float, num_rows: int) -> tuple[float, float]:
    low, high = chance_band(torch.tensor([probability], dtype=torch.float64), num_rows)
    return low.item(), high.item()


def _verdict(value: float, ends: tuple[float, float], below: str, above: str, inside: str) -> str:
    return below if value < ends[0] else above if value > ends[1] else inside


def _last_sentences(loss: Tensor, uncertainty: Tensor, risk: str) -> list[str]:
    """Compare the most certain half of the rows, if there is one, with all; warn of few rows."""
    few = f"{count(len(loss), 'row')} is a small test set: every number above is uncertain."
    warning = [few] if len(loss) < _FEW_ROWS else []
    kept, mean = risk_coverage(loss, uncertainty)
    half = int((kept - 0.5).abs().argmin())
    if not 0.4 <= kept[half] <= 0.6:
        return ["All rows have (nearly) the same uncertainty: it cannot rank them.", *warning]
    part, whole = mean[half].item(), mean[-1].item()
    if risk.startswith("root"):
        shown = f"{number(part**0.5)} instead of {number(whole**0.5)}"
    else:
        shown = f"{share(part)} instead of {share(whole)}"
    useless = ": here it does not tell good predictions from bad ones" * (part >= whole)
    ranked = f"Over the half of the rows with the least uncertainty, the {risk} is {shown}"
    return [f"{ranked}{useless}.", *warning]


def number(value: float) -> str:
    """Format with three or four significant digits: ``1,234`` or ``0.0123``."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else f"{value}"
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 1e7 or size < 1e-4:
        return f"{value:.3g}"
    decimals = max(0, 3 - math.floor(math.log10(size)) - (size < 1))
    return f"{value:,.{min(decimals, 6)}f}"


def share(value: float) -> str:
    """Format a fraction in percent with one decimal: ``88.7 %``."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def level(value: float) -> str:
    """Format the level of an interval: ``90 %``, ``99.5 %``."""
    return f"{100 * value:.10g} %"


def count(amount: int, noun: str) -> str:
    """Format ``1 row`` or ``1,024 rows``."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"
