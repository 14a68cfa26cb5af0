"""The data behind the calibration plots, as pure functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.metrics import check_pit, confidence_bins
from whvi.plots.figures import flat_rows


def calibration_curve(pit: Tensor, probabilities: Sequence[float] | Tensor) -> Tensor:
    """Return the fraction of targets below their predicted quantile, for every probability.

    Args:
        pit: ``predictive.cdf(y)``, one value per row.
        probabilities: K of them, in [0, 1]; a calibrated prediction returns them unchanged.
    """
    levels = torch.as_tensor(probabilities, dtype=torch.float64)
    return (check_pit(pit) <= levels.unsqueeze(-1)).double().mean(-1)


def coverage_by_level(pit: Tensor, levels: Sequence[float] | Tensor) -> Tensor:
    """Return the fraction of targets inside the central interval of every level.

    ``y`` is in the central interval of level ``p`` exactly if ``|2 cdf(y) − 1| <= p``, so all
    levels need one evaluation of the cdf. For continuous targets.
    """
    return calibration_curve((2 * check_pit(pit) - 1).abs(), levels)


def chance_band(probabilities: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the 95 % interval of an observed fraction of ``n`` rows if its probability is ``p``.

    The normal approximation ``p ± 1.96 √(p (1 − p) / n)``, clipped to [0, 1], for each ``p``.
    """
    reach = 1.959964 * (probabilities * (1 - probabilities) / num_rows).sqrt()
    return (probabilities - reach).clamp(0, 1), (probabilities + reach).clamp(0, 1)


class ErrorBins(NamedTuple):
    """Rows sorted by predicted std, in bins of (nearly) equal counts; each ``(B,)``."""

    std: Tensor  # root of the mean predicted variance
    rmse: Tensor  # root of the mean squared error
    num_rows: Tensor


def error_by_std(error: Tensor, std: Tensor, *, num_bins: int = 10) -> ErrorBins:
    """Compare errors with predicted standard deviations in bins; equal if calibrated.

    Args:
        error: ``mean − y``, one value per row.
        std: Predicted standard deviation, noise included.
        num_bins: At most this many bins; each has at least five rows if there are so many.
    """
    check_positive_int("num_bins", num_bins)
    error, std = flat_rows("error", error).double(), flat_rows("std", std, error.numel()).double()
    order = std.argsort()
    parts = torch.tensor_split(order, max(1, min(num_bins, len(order) // 5)))

    def roots(values: Tensor) -> Tensor:
        return torch.stack([values[part].square().mean().sqrt() for part in parts])

    return ErrorBins(roots(std), roots(error), torch.tensor([len(part) for part in parts]))


def risk_coverage(loss: Tensor, uncertainty: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss if only the most certain predictions are kept.

    Args:
        loss: One value per row, such as a squared error or 0/1 for a wrong label.
        uncertainty: One value per row; the most certain rows are kept first. Rows of equal
            uncertainty are kept or left out together.

    Returns:
        Fractions of rows kept, ascending to 1, and the mean loss over the rows kept.
    """
    loss = flat_rows("loss", loss).double()
    values, order = flat_rows("uncertainty", uncertainty, len(loss)).sort()
    kept = torch.arange(1, len(loss) + 1, dtype=torch.float64)
    mean = loss[order].cumsum(0) / kept
    last = torch.ones(len(loss), dtype=torch.bool)
    last[:-1] = values[1:] != values[:-1]
    return kept[last] / len(loss), mean[last]


class Reliability(NamedTuple):
    """The bins of confidence that contain rows; each ``(B,)``."""

    confidence: Tensor  # mean predicted probability of the top class
    accuracy: Tensor  # fraction of correct labels
    num_rows: Tensor


def reliability(probs: Tensor, labels: Tensor, *, num_bins: int = 10) -> Reliability:
    """Compare confidence with accuracy over equal bins ``(k/B, (k+1)/B]`` of the confidence.

    Args:
        probs: Shape ``(N, C)``.
        labels: Integers 0, …, C − 1, shape ``(N,)``.
        num_bins: ``B``; empty bins are left out.
    """
    confidence, correct, bins = confidence_bins(probs, labels, num_bins)
    count = torch.bincount(bins, minlength=num_bins)
    used = count > 0

    def mean(values: Tensor) -> Tensor:
        return (torch.bincount(bins, values, minlength=num_bins) / count)[used]

    return Reliability(mean(confidence), mean(correct), count[used])
