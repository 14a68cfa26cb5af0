"""Monte-Carlo dropout (Gal and Ghahramani, 2016) behind the same samplers as everything else."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from whvi.errors import ConfigError, ShapeError
from whvi.layers.protocol import BayesianLayer
from whvi.layers.weights import check_draws_axis, lift
from whvi.sampling import LocalReparameterization, MeanWeights, current_sampler


@final
class MCDropout(BayesianLayer):
    """Zero each feature with probability ``p`` and scale the rest by ``1 / (1 − p)``.

    Unlike ``torch.nn.Dropout`` it does not look at ``.training``: the sampler decides. A weight
    draw uses one mask for all rows (a draw is a function), local reparameterization one per row,
    mean weights none. Its KL is zero here: the usual surrogate is weight decay.

    Args:
        p: Probability of dropping a feature, in ``[0, 1)``.
        batch_shape: Replicas; each has its own masks.
    """

    _zero: Tensor

    def __init__(self, p: float = 0.5, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ConfigError(f"p must be in [0, 1), got {p!r}")
        self.p = p
        self.batch_shape = tuple(batch_shape)
        self.register_buffer("_zero", torch.zeros(self.batch_shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mask the last dimension of ``(*batch_shape, *inner, features)``."""
        axes = len(self.batch_shape)
        if x.dim() <= axes or tuple(x.shape[:axes]) != self.batch_shape:
            raise ShapeError(
                f"input of MCDropout with batch_shape {self.batch_shape} must have shape "
                f"(*batch_shape, ..., features), got {tuple(x.shape)}"
            )
        sampler = current_sampler()
        if self.p == 0 or isinstance(sampler, MeanWeights):
            return x
        if isinstance(sampler, LocalReparameterization):
            return x * self._mask(x, tuple(x.shape), sampler.generator)
        check_draws_axis(x, sampler, self.batch_shape)
        shape = (*self.batch_shape, *sampler.sample_shape, x.shape[-1])
        mask = sampler.draw_once(self, lambda: self._mask(x, shape, sampler.generator))
        return x * lift(mask, len(self.batch_shape), x.dim() - len(self.batch_shape) - 1)

    def kl(self) -> Tensor:
        """Return zeros of shape ``batch_shape``."""
        return self._zero

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"p={self.p}"

    def _mask(
        self, like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None
    ) -> Tensor:
        keep = 1 - self.p
        mask = torch.empty(shape, dtype=like.dtype, device=like.device)
        return mask.bernoulli_(keep, generator=generator).div_(keep)
