r"""Random weight matrices: what a Bayesian layer multiplies by.

A :class:`Weight` stands for a matrix ``W`` of shape ``(*batch_shape, out_features, in_features)``
with a posterior. A layer asks it for ``W x + b`` under a sampler, for its KL and its moments; it
does not ask how ``W`` is represented.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whvi.errors import ShapeError
from whvi.posteriors import Posterior
from whvi.priors import Prior
from whvi.sampling import LocalReparameterization, MeanWeights, Sampler, WeightDraws


class WeightMoments(NamedTuple):
    """Mean ``(…, n)`` and covariance ``(…, n, n)`` of ``vec(W)``, ``n = out · in``."""

    mean: Tensor
    covariance: Tensor


class OutputMoments(NamedTuple):
    """Mean and (marginal) variance of an output, of one shape."""

    mean: Tensor
    variance: Tensor


class Weight(nn.Module, ABC):
    """A random matrix ``W``, shape ``(*batch_shape, out_features, in_features)``."""

    in_features: int
    out_features: int
    batch_shape: tuple[int, ...]
    posterior: Posterior
    prior: Prior

    def multiply(self, x: Tensor, bias: Tensor | None, sampler: Sampler) -> Tensor:
        """Return ``W x + bias`` with ``W`` as ``sampler`` says.

        Args:
            x: Shape ``(*batch_shape, *inner, in_features)``; checked by the layer.
            bias: ``(*batch_shape, out_features)`` or ``None``.
            sampler: Mean weights, one draw for all rows, or a draw for every row.
        """
        if isinstance(sampler, LocalReparameterization):
            return self._multiply_local(x, bias, sampler)
        if isinstance(sampler, MeanWeights):
            return self._multiply_given(x, bias, self._mean())
        check_draws_axis(x, sampler, self.batch_shape)
        draw = sampler.draw_once(self, lambda: self._draw(sampler.sample_shape, sampler.generator))
        return self._multiply_given(x, bias, draw)

    def sample(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw dense matrices, shape ``(*batch_shape, *sample_shape, out, in)``."""
        return self._dense(self._draw(sample_shape, generator))

    def mean(self) -> Tensor:
        """Return ``E[W]``, shape ``(*batch_shape, out, in)``."""
        return self._dense(self._mean())

    @abstractmethod
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Set a starting point that trains."""

    def kl(self) -> Tensor:
        """Return the KL of this matrix in nats, shape ``batch_shape``."""
        return self.posterior.kl(self.prior)

    @abstractmethod
    def moments(self) -> WeightMoments:
        """Return mean ``(…, out·in)`` and covariance ``(…, out·in, out·in)`` of ``vec(W)``."""

    @abstractmethod
    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return exact mean and variance of ``W x``, each ``(*batch_shape, *inner, out)``."""

    @abstractmethod
    def _mean(self) -> Tensor:
        """Return the mean of the random vector or matrix behind ``W``."""

    @abstractmethod
    def _draw(self, sample_shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Draw the random vector or matrix behind ``W``."""

    @abstractmethod
    def _dense(self, draw: Tensor) -> Tensor:
        """Turn what :meth:`_draw` gives into dense matrices."""

    @abstractmethod
    def _multiply_given(self, x: Tensor, bias: Tensor | None, draw: Tensor) -> Tensor:
        """Return ``W x + bias`` for what :meth:`_draw` or :meth:`_mean` gave."""

    @abstractmethod
    def _multiply_local(
        self, x: Tensor, bias: Tensor | None, sampler: LocalReparameterization
    ) -> Tensor:
        """Return ``W_n x_n + bias`` with independent ``W_n`` for every row."""


def check_draws_axis(x: Tensor, sampler: WeightDraws, batch_shape: tuple[int, ...]) -> None:
    """Refuse an input without the draws axis that the sampler announces."""
    if sampler.num_samples is None:
        return
    axis = len(batch_shape)
    if x.dim() <= axis + 1 or x.shape[axis] != sampler.num_samples:
        raise ShapeError(
            f"with WeightDraws(num_samples={sampler.num_samples}) the input needs shape "
            f"(*batch_shape, {sampler.num_samples}, ..., features), got {tuple(x.shape)}"
        )


def lift(v: Tensor, batch_ndim: int, inner_ndim: int, own_ndim: int = 1) -> Tensor:
    """Insert axes of size 1 so that ``(*batch, *some_inner, *own)`` meets ``inner_ndim`` axes."""
    missing = inner_ndim - (v.dim() - batch_ndim - own_ndim)
    split = v.dim() - own_ndim
    return v.reshape(*v.shape[:split], *(1,) * missing, *v.shape[split:]) if missing else v
