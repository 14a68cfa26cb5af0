"""What the pictures of calibration show, as pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.errors import DataError, ShapeError
from whvi.plots.style import row_of


def calibration_curve(pit: Tensor, probabilities: Sequence[float] | Tensor) -> Tensor:
    """Return the share of targets below their predicted quantile, for every probability.

    Args:
        pit: ``predictive.cdf(y)``, one value per row.
        probabilities: K of them, in [0, 1]; a calibrated prediction returns them unchanged.
    """
    values = _probabilities("pit", pit)
    levels = torch.as_tensor(probabilities, dtype=torch.float64)
    return (values.unsqueeze(0) <= levels.unsqueeze(-1)).double().mean(-1)


def coverage_by_level(pit: Tensor, levels: Sequence[float] | Tensor) -> Tensor:
    """Return the share of targets inside the central interval of every level.

    ``y`` lies in the central interval of level ``p`` exactly if ``|2 cdf(y) − 1| <= p``, so all
    levels come from one evaluation of the cdf. For continuous targets.
    """
    distance = (2 * _probabilities("pit", pit) - 1).abs()
    levels = torch.as_tensor(levels, dtype=torch.float64)
    return (distance.unsqueeze(0) <= levels.unsqueeze(-1)).double().mean(-1)


def chance_band(probabilities: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return where a share lies in 95 of 100 data sets if the probabilities are right.

    The normal approximation ``p ± 1.96 √(p (1 − p) / n)``, cut to [0, 1]; for one level at a time.
    """
    reach = 1.959964 * (probabilities * (1 - probabilities) / num_rows).sqrt()
    return (probabilities - reach).clamp(0, 1), (probabilities + reach).clamp(0, 1)


class ErrorBins(NamedTuple):
    """Rows sorted by predicted deviation, in bins of (nearly) equal counts; each ``(B,)``."""

    std: Tensor  # root of the mean predicted variance
    rmse: Tensor  # root of the mean squared error
    num_rows: Tensor


def error_by_std(error: Tensor, std: Tensor, *, num_bins: int = 10) -> ErrorBins:
    """Compare the error with the predicted standard deviation; equal if calibrated.

    Args:
        error: ``mean − y``, one value per row.
        std: Predicted standard deviation, noise included.
        num_bins: At most; a bin has at least five rows if there are so many.
    """
    check_positive_int("num_bins", num_bins)
    error, std = row_of("error", error).double(), row_of("std", std, error.numel()).double()
    order = std.argsort()
    parts = torch.tensor_split(order, max(1, min(num_bins, len(order) // 5)))

    def roots(values: Tensor) -> Tensor:
        return torch.stack([values[part].square().mean().sqrt() for part in parts])

    return ErrorBins(roots(std), roots(error), torch.tensor([len(part) for part in parts]))


def risk_coverage(loss: Tensor, uncertainty: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is lost if only the surest predictions are kept.

    Args:
        loss: One value per row, such as a squared error or 0/1 for a wrong label.
        uncertainty: One value per row; the surest rows are kept first. Rows of equal uncertainty
            are kept or left out together.

    Returns:
        Shares of rows kept, ascending to 1, and the mean loss over the rows kept.
    """
    loss = row_of("loss", loss).double()
    values, order = row_of("uncertainty", uncertainty, len(loss)).sort()
    kept = torch.arange(1, len(loss) + 1, dtype=torch.float64)
    mean = loss[order].cumsum(0) / kept
    last = torch.ones(len(loss), dtype=torch.bool)
    last[:-1] = values[1:] != values[:-1]
    return kept[last] / len(loss), mean[last]


class Reliability(NamedTuple):
    """Bins of confidence that hold rows; each ``(B,)``."""

    confidence: Tensor  # mean predicted probability of the top class
    accuracy: Tensor  # share of right labels
    num_rows: Tensor


def reliability(probs: Tensor, labels: Tensor, *, num_bins: int = 10) -> Reliability:
    """Compare confidence with accuracy over equal bins ``(k/B, (k+1)/B]`` of the confidence.

    Args:
        probs: Shape ``(N, C)``.
        labels: Whole numbers 0, …, C − 1, shape ``(N,)``.
        num_bins: ``B``; empty bins are left out.
    """
    check_positive_int("num_bins", num_bins)
    if probs.dim() != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ShapeError(
            f"expected probs (N, C) and labels (N,), got {tuple(probs.shape)} and "
            f"{tuple(labels.shape)}"
        )
    confidence, predicted = probs.double().max(-1)
    bins = ((confidence * num_bins).ceil() - 1).clamp(0, num_bins - 1).long()
    count = torch.bincount(bins, minlength=num_bins)
    used = count > 0

    def mean(values: Tensor) -> Tensor:
        return (torch.bincount(bins, values, minlength=num_bins) / count)[used]

    return Reliability(mean(confidence), mean((predicted == labels).double()), count[used])


def _probabilities(name: str, values: Tensor) -> Tensor:
    flat = row_of(name, values).double()
    low, high = flat.min().item(), flat.max().item()
    if math.isnan(low) or low < 0 or high > 1:
        raise DataError(f"{name} must lie within [0, 1], got {low:g} to {high:g}: give cdf(y)")
    return flat
