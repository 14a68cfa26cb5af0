r"""Inputs of networks: :math:`z = (x - \mu) / \sigma`, or normal scores; of training rows only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from torch import Tensor

from whvi.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# A spread of a few rounding errors is not information: dividing by it would blow it up to one.
_ROUNDING_SPREAD = 4 * np.finfo(np.float64).eps
_FARTHEST = 1e6  # inputs so many standard deviations from the mean are moved to that distance


@dataclass(frozen=True, slots=True, eq=False)
class Standardizer:
    """A shift and a scale per column, in float64.

    Attributes:
        mean: Mean of each column, in its unit; the rows' axis has length 1.
        scale: Standard deviation (divisor N) of each column, in its unit; 1 where a column is
            constant.
        axis: The rows, counted from the end: -2 for inputs, -1 for targets.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    axis: int = -2

    @classmethod
    def fit(cls, x: ArrayLike, *, axis: int = -2) -> Standardizer:
        """Measure mean and standard deviation along the rows.

        Args:
            x: Training rows, shape ``(..., N, d)``: every leading index is scaled on its own.
                For targets of shape ``(..., N)`` pass ``axis=-1``.
            axis: The rows, counted from the end.
        """
        x = np.asarray(x, dtype=np.float64)
        if axis >= 0:
            raise ConfigError(f"axis must be counted from the end (-2 or -1), got {axis}")
        if x.ndim < -axis or x.shape[axis] == 0:
            raise ShapeError(f"x must have at least one row along axis {axis}, got {x.shape}")
        _check_finite(x)
        # Powers of two bring every column below 1 without rounding, so no square overflows.
        exponent = np.frexp(np.abs(x).max(axis, keepdims=True))[1]
        unit = np.ldexp(x, -exponent)
        # Sums of differences from the first row are exact where a column is constant.
        first = np.take(unit, [0], axis)
        shifted = unit - first
        drift = shifted.mean(axis, keepdims=True)
        spread = np.sqrt(np.square(shifted - drift).mean(axis, keepdims=True))
        scale = np.ldexp(spread, exponent)
        varies = (spread > _ROUNDING_SPREAD) & (scale > 0)
        return cls(
            mean=np.ldexp(np.where(varies, first + drift, first), exponent),
            scale=np.where(varies, scale, 1.0),
            axis=axis,
        )

    def transform(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return ``(x - mean) / scale``, without a unit, in the shape of ``x``."""
        x = self._checked(x)
        result: NDArray[np.float64] = (x - self.mean) / self.scale
        return result

    def network_inputs(self, x: ArrayLike, device: torch.device | str) -> Tensor:
        """Return the scaled rows in float32; values beyond 10⁶ standard deviations are cut."""
        with np.errstate(over="ignore"):
            scaled = np.clip(self.transform(x), -_FARTHEST, _FARTHEST)
        return torch.as_tensor(scaled, dtype=torch.float32, device=device)

    def inverse(self, z: ArrayLike) -> NDArray[np.float64]:
        """Return ``z * scale + mean``, in the unit of the column."""
        z = self._checked(z)
        result: NDArray[np.float64] = z * self.scale + self.mean
        return result

    def _checked(self, x: ArrayLike) -> NDArray[np.float64]:
        """Refuse shapes that numpy would stretch, or pair with the wrong replica."""
        x = np.asarray(x, dtype=np.float64)
        may_lead = self.mean.ndim == -self.axis  # fitted without replicas: serves any leading axes
        expected = list(self.mean.shape)
        found = list(x.shape[max(x.ndim - self.mean.ndim, 0) :] if may_lead else x.shape)
        if len(found) == len(expected):
            expected[self.axis] = found[self.axis]
        if found != expected:
            raise ShapeError(f"expected shape {self._pattern()}, as in fit, got {x.shape}")
        return x

    def _pattern(self) -> str:
        sizes = [str(size) for size in self.mean.shape]
        sizes[self.axis] = "N"
        leading = "..., " if self.mean.ndim == -self.axis else ""
        return f"({leading}{', '.join(sizes)})"


@final
class NormalScores:
    r"""Inputs by their ranks: ``z = Φ⁻¹(share of training rows below x)``, a feature at a time.

    Every feature of the training rows becomes standard normal, however skewed or heavy-tailed it
    was. Equal values have the middle of their ranks; the outermost are half a row from 0 and 1.

    Args:
        x: Training rows of R replicas, shape ``(R, N, d)``.
    """

    def __init__(self, x: Tensor) -> None:
        self._sorted = x.mT.contiguous().sort(dim=-1).values  # (R, d, N)

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``(R, M, d)`` to the same shape."""
        num_rows, values = self._sorted.shape[-1], x.mT.contiguous()
        below = torch.searchsorted(self._sorted, values)
        upto = torch.searchsorted(self._sorted, values, right=True)
        share = (below + upto).double() / (2 * num_rows)
        edge = 0.5 / num_rows
        z: Tensor = torch.special.ndtri(share.clamp(edge, 1 - edge)).to(x.dtype)
        return z.mT.contiguous()


def _check_finite(x: NDArray[np.float64]) -> None:
    finite = np.isfinite(x)
    if finite.all():
        return
    bad = np.argwhere(~finite)
    index = tuple(int(i) for i in bad[0])
    raise DataError(
        f"x holds {len(bad)} values that are not finite (first: {x[index]} at index {index}); "
        f"drop or fill them before scaling"
    )
