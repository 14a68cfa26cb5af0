"""The bases of Figure 2 as tests use them."""

from __future__ import annotations

import torch

from whvi.gp.basis import FeatureBasis
from whvi.gp.features import RandomFeatures
from whvi.gp.projections import MixtureProjection
from whvi.gp.psi import ColumnWeights, PlainWeights, Weights


def column(num_inputs: int, side: int, *, dtype: torch.dtype = torch.float32) -> FeatureBasis:
    return _mixture(num_inputs, ColumnWeights(side**2, gain=1.0), False, dtype)


def fourier(num_inputs: int, size: int, *, dtype: torch.dtype = torch.float32) -> FeatureBasis:
    return _mixture(num_inputs, PlainWeights(size), False, dtype)


def spectrum(num_inputs: int, size: int, *, dtype: torch.dtype = torch.float32) -> FeatureBasis:
    return _mixture(num_inputs, PlainWeights(size), True, dtype)


def _mixture(num_inputs: int, weights: Weights, learned: bool, dtype: torch.dtype) -> FeatureBasis:
    size = weights.num_features
    projection = MixtureProjection(num_inputs, size // 2, learned=learned)
    features = RandomFeatures(num_inputs, size, projection=projection, dtype=dtype)
    return FeatureBasis(features, weights)
