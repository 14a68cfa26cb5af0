"""Who decides how stochastic layers draw their weights: an explicit sampler, set by a context.

A layer asks :func:`current_sampler` when it runs. There are three answers:

- :class:`WeightDraws` (the default): a draw of the weights is one function, shared by all rows.
- :class:`LocalReparameterization`: fresh weights for every row, for low-variance gradients.
- :class:`MeanWeights`: the posterior mean, no noise.

``.train()`` and ``.eval()`` change nothing here. Leading axes of a layer's input are
``(*batch_shape, *inner, features)``: replicas first, then draws and rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi._kernel.noise import draw_seed

_SEED_STEP = 0x1E3779B97F4A7C15  # odd: the steps visit every seed before one comes back
_NUM_SEEDS = 2**63


@final
class MeanWeights:
    """Use the posterior mean of every weight; nothing is random."""


@final
class LocalReparameterization:
    """Draw fresh weights for every row (Kingma et al., 2015; equation 3 of the paper).

    Args:
        generator: Source of randomness; ``None`` is torch's default generator.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self._seed: int | None = None

    def next_seed(self) -> int:
        """Return a new seed for a stream of noise; the first one is taken from the generator.

        Later ones are steps of a fixed odd size from it, so that a pass through many layers asks
        the generator only once.
        """
        if self._seed is None:
            self._seed = draw_seed(self.generator)
        else:
            self._seed = (self._seed + _SEED_STEP) % _NUM_SEEDS
        return self._seed


@final
class WeightDraws:
    """Draw functions: within one sampler a layer keeps its drawn weights for every call.

    Args:
        num_samples: ``S``: inputs carry a draws axis of that size right after ``batch_shape``,
            and each of its entries has its own weights. ``None``: one draw, no such axis.
        generator: Source of randomness; ``None`` is torch's default generator.
    """

    def __init__(
        self, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        if num_samples is not None:
            check_positive_int("num_samples", num_samples)
        self.num_samples = num_samples
        self.generator = generator
        self._draws: dict[nn.Module, Tensor] = {}

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """``(S,)`` or ``()``."""
        return () if self.num_samples is None else (self.num_samples,)

    def draw_once(self, layer: nn.Module, draw: Callable[[], Tensor]) -> Tensor:
        """Return what ``draw`` gave for ``layer`` the first time it was asked."""
        if layer not in self._draws:
            self._draws[layer] = draw()
        return self._draws[layer]


Sampler = MeanWeights | LocalReparameterization | WeightDraws

_current: ContextVar[Sampler | None] = ContextVar("whvi_sampler", default=None)


def current_sampler() -> Sampler:
    """Return the sampler in force: the innermost :func:`sampling`, else one new weight draw."""
    return _current.get() or WeightDraws()


@contextlib.contextmanager
def sampling(sampler: Sampler) -> Iterator[Sampler]:
    """Make ``sampler`` the one that stochastic layers use inside the ``with`` block."""
    token = _current.set(sampler)
    try:
        yield sampler
    finally:
        _current.reset(token)
