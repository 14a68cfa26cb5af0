"""From encoded columns to network inputs: scale in float64 first, then round to float32."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whvi.tabular.scaling import Standardizer

_FARTHEST = 1e6
"""Inputs further from the mean than so many standard deviations are moved to that distance."""


@final
class Inputs:
    """Standardises columns by the rows it was fitted on."""

    def __init__(self, scaling: Standardizer) -> None:
        self.scaling = scaling

    @classmethod
    def fit(cls, encoded: NDArray[np.float64]) -> Inputs:
        """Measure ``encoded (N, d)``."""
        return cls(Standardizer.fit(encoded))

    def transform(self, encoded: NDArray[np.float64], device: torch.device | str) -> Tensor:
        """Return network inputs ``(N, d)``, float32."""
        with np.errstate(over="ignore"):
            scaled = np.clip(self.scaling.transform(encoded), -_FARTHEST, _FARTHEST)
        return torch.as_tensor(scaled, dtype=torch.float32, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """Return what :meth:`from_tensors` needs."""
        return {
            "mean": torch.as_tensor(self.scaling.mean),
            "scale": torch.as_tensor(self.scaling.scale),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Inputs:
        """Rebuild it from :meth:`tensors`."""
        return cls(Standardizer(mean=tensors["mean"].numpy(), scale=tensors["scale"].numpy()))
