"""The bases of Figure 2 as tests use them."""

from __future__ import annotations

import torch

from reproduction.figure2.models import waves
from whvi.gp.basis import ColumnWeights, FeatureBasis, PlainWeights


def column(num_inputs: int, side: int, *, dtype: torch.dtype = torch.float32) -> FeatureBasis:
    return waves(num_inputs, ColumnWeights(side**2, gain=1.0), dtype=dtype)


def fourier(num_inputs: int, size: int, *, dtype: torch.dtype = torch.float32) -> FeatureBasis:
    return waves(num_inputs, PlainWeights(size), dtype=dtype)


def spectrum(num_inputs: int, size: int, *, dtype: torch.dtype = torch.float32) -> FeatureBasis:
    return waves(num_inputs, PlainWeights(size), learned=True, dtype=dtype)
