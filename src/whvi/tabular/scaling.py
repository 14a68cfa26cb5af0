r"""Standardise columns: :math:`z = (x - \mu) / \sigma`, with both taken from training rows only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whvi.errors import ConfigError, DataError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# A spread of a few rounding errors is not information: dividing by it would blow it up to one.
_ROUNDING_SPREAD = 4 * np.finfo(np.float64).eps


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
