"""Monte-Carlo dropout (Gal and Ghahramani, 2016) behind the same samplers as everything else."""

from __future__ import annotations

from typing import Any, cast, final

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.fx import Proxy

from whvi._checks import check_tensor
from whvi._kernel import traced
from whvi.errors import ConfigError, ShapeError
from whvi.layers.protocol import BayesianLayer, as_fx_leaf
from whvi.sampling import (
    LocalReparameterization,
    MeanWeights,
    check_draws_axis,
    current_sampler,
    insert_inner_axes,
)

_WORDS = 1 << 31  # that ``random_`` draws from


@final
class MCDropout(BayesianLayer):
    """Zero each feature with probability ``p`` and scale the rest by ``1 / (1 − p)``.

    Unlike ``torch.nn.Dropout`` it does not look at ``.training``: the sampler decides. A weight
    draw uses one mask for all rows (a draw is a function), local reparameterization one per row,
    mean weights none. Its KL is zero here: the usual surrogate is weight decay.

    Args:
        p: Probability of dropping a feature, in ``[0, 1)``; a tensor of shape ``batch_shape``
            gives every replica its own.
        batch_shape: Replicas; each has its own masks.
    """

    _least_kept: Tensor
    _zero: Tensor

    def __init__(self, p: float | Tensor = 0.5, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.batch_shape = tuple(batch_shape)
        rates = torch.as_tensor(p, dtype=torch.float64)
        if rates.dim() and tuple(rates.shape) != self.batch_shape:
            raise ShapeError(
                f"p must be a number or have shape batch_shape {self.batch_shape}, "
                f"got {tuple(rates.shape)}"
            )
        if not ((rates >= 0) & (rates < 1)).all():
            raise ConfigError(f"p must be in [0, 1), got {p!r}")
        self.p = p
        self._drops = bool((rates > 0).any())
        self._keep = 1 - rates  # no buffer: some devices have no float64
        least = (rates * _WORDS).round().clamp(max=_WORDS - 1).int()
        self.register_buffer("_least_kept", least, persistent=False)
        self.register_buffer("_zero", torch.zeros(self.batch_shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mask the last dimension of ``(*batch_shape, *inner, features)``."""
        given: Any = x
        if isinstance(given, Proxy):
            return cast(Tensor, as_fx_leaf(self, given))
        check_tensor("input", x)
        axes = len(self.batch_shape)
        if x.dim() <= axes or tuple(x.shape[:axes]) != self.batch_shape:
            raise ShapeError(
                f"input of MCDropout with batch_shape {self.batch_shape} must have shape "
                f"(*batch_shape, ..., features), got {tuple(x.shape)}"
            )
        sampler = current_sampler()
        if not self._drops or isinstance(sampler, MeanWeights):
            return x
        if isinstance(sampler, LocalReparameterization):
            return x * self._mask(x, tuple(x.shape), sampler.generator)
        check_draws_axis(x, sampler, axes)
        shape = (*self.batch_shape, *sampler.sample_shape, x.shape[-1])
        mask = sampler.draw_once(self, lambda source: self._mask(x, shape, source))
        return x * insert_inner_axes(mask, axes, x.dim() - axes - 1)

    def kl(self) -> Tensor:
        """Return zeros of shape ``batch_shape``."""
        return self._zero

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"p={self.p}"

    def _mask(
        self, like: Tensor, shape: tuple[int, ...], generator: torch.Generator | None
    ) -> Tensor:
        # kept if a word of 31 random bits is at least p 2³¹: twice as fast as bernoulli_
        words = _words(shape, like.device, generator)
        least, keep = self._least_kept, self._keep.to(like)
        if keep.dim():
            axes = (*self.batch_shape, *(1,) * (len(shape) - len(self.batch_shape)))
            least, keep = least.view(axes), keep.view(axes)
        return (words >= least).to(like.dtype).div_(keep)


def _words(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None
) -> Tensor:
    if is_compiling() and generator is None and device.type == "cpu":
        return traced.words(shape)
    return torch.empty(shape, dtype=torch.int32, device=device).random_(generator=generator)
