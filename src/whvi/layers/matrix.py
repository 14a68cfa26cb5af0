r"""Random matrices: what a Bayesian layer multiplies by.

A :class:`RandomMatrix` stands for a matrix ``W`` of shape
``(*batch_shape, out_features, in_features)`` with a posterior. A layer asks it for ``W x + b``
under a sampler, for its KL and its moments; it does not ask how ``W`` is represented.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whvi.posteriors import Posterior
from whvi.posteriors.base import samples_first
from whvi.priors import Prior
from whvi.sampling import Sampler


class WeightMoments(NamedTuple):
    """Mean ``(…, n)`` and covariance ``(…, n, n)`` of ``vec(W)``, ``n = out · in``."""

    mean: Tensor
    covariance: Tensor


class OutputMoments(NamedTuple):
    """Mean and (marginal) variance of an output, of one shape."""

    mean: Tensor
    variance: Tensor


class RandomMatrix(nn.Module, ABC):
    """A random matrix ``W``, shape ``(*batch_shape, out_features, in_features)``."""

    in_features: int
    out_features: int
    batch_shape: tuple[int, ...]
    posterior: Posterior
    prior: Prior

    @abstractmethod
    def multiply(self, x: Tensor, bias: Tensor | None, sampler: Sampler) -> Tensor:
        """Return ``W x + bias`` with ``W`` as ``sampler`` says.

        Args:
            x: Shape ``(*batch_shape, *inner, in_features)``; checked by the layer.
            bias: ``(*batch_shape, out_features)`` or ``None``.
            sampler: Mean weights, one draw for all rows, or a draw for every row.
        """

    @abstractmethod
    def dense(self, draw: Tensor) -> Tensor:
        """Return ``(*batch_shape, *some, out, in)`` for draws ``(*batch_shape, *some, n)``."""

    @abstractmethod
    def moments(self) -> WeightMoments:
        """Return mean ``(…, out·in)`` and covariance ``(…, out·in, out·in)`` of ``vec(W)``."""

    @abstractmethod
    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return exact mean and variance of ``W x``, each ``(*batch_shape, *inner, out)``."""

    @abstractmethod
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Set a starting point that trains."""

    def sample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw dense matrices, ``(*sample_shape, *batch_shape, out, in)``, with gradients."""
        draws = self.dense(self.posterior.draw(sample_shape, generator))
        return samples_first(draws, len(self.batch_shape), 2)

    @property
    def mean(self) -> Tensor:
        """``E[W]``, shape ``(*batch_shape, out, in)``."""
        return self.dense(self.posterior.mean)

    @property
    def variance(self) -> Tensor:
        """``var(W)``, entry by entry, shape ``(*batch_shape, out, in)``: that of ``W e_j``."""
        loc = self.posterior.loc
        unit = torch.eye(self.in_features, dtype=loc.dtype, device=loc.device)
        return self.output_moments(unit.expand(*self.batch_shape, *unit.shape)).variance.mT
