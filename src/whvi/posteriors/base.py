r"""What every posterior ``q(g)`` is: a distribution over a stack of vectors, with its KL.

``g`` has shape ``(*batch_shape, K, D)``: replicas (independent models), ``K`` stacked blocks and
``D`` entries per block. Replicas and blocks are independent under every ``q`` here; what differs
between families is the dependence inside one vector of ``D`` entries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whvi._checks import check_positive
from whvi.errors import ConfigError, ShapeError, WhviError
from whvi.priors import Prior

Device = torch.device | str | None


class NoClosedFormError(WhviError, NotImplementedError):
    """A quantity has no closed form for this posterior; the message says how to estimate it."""


class Posterior(nn.Module, ABC):
    """A distribution ``q(g)`` over vectors of shape ``(*batch_shape, K, D)``.

    Every member is built as ``Member(shape, *, device=None, dtype=None)``, so that the class (or a
    ``functools.partial`` of it) can be handed to a layer, and starts as ``reset(1.0, 0.1)``.
    """

    loc: nn.Parameter

    @property
    def shape(self) -> tuple[int, ...]:
        """``(*batch_shape, K, D)``."""
        return tuple(self.loc.shape)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Replicas, ``()`` if there are none."""
        return self.shape[:-2]

    @property
    def num_entries(self) -> int:
        """``n = K·D``: random entries in one replica."""
        return self.loc.shape[-2] * self.loc.shape[-1]

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """``E[g]``, shape ``shape``."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Marginal variances ``var(g_k)``, shape ``shape``."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Return the covariance inside each block, shape ``(*batch_shape, K, D, D)``."""

    @abstractmethod
    def log_volume(self) -> Tensor:
        """Return ``H[q] − H[N(0, I)]`` in nats, summed over blocks, shape ``batch_shape``.

        For a Gaussian this is ``½ log det Σ``.
        """

    @abstractmethod
    def reset(
        self, mean_std: float, scale: float, *, generator: torch.Generator | None = None
    ) -> None:
        """Draw a new starting point, in place.

        Args:
            mean_std: Standard deviation of the means over entries: ``μ ~ N(0, mean_std²)``.
            scale: Standard deviation of ``q`` around its mean, the same for every entry.
            generator: Source of randomness; ``None`` is torch's default generator.
        """

    @abstractmethod
    def _draw(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        """Return reparameterized draws, shape ``(*batch_shape, num_draws, K, D)``."""

    def rsample(
        self, inner_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw ``g``, differentiably in the parameters of ``q`` (equation 3 of the paper).

        Args:
            inner_shape: Independent draws wanted from each replica, such as ``(S,)`` or ``(S, N)``.
            generator: Source of randomness; ``None`` is torch's default generator.

        Returns:
            Draws, shape ``(*batch_shape, *inner_shape, K, D)``: replicas first.
        """
        draws = self._draw(math.prod(inner_shape), generator)
        if len(inner_shape) == 1:
            return draws
        return draws.reshape(*self.batch_shape, *inner_shape, *self.shape[-2:])

    def mean_square(self) -> Tensor:
        """Return ``E‖g‖² / n``, the average of ``E[g_k]² + var(g_k)``, shape ``batch_shape``."""
        return (self.mean.square() + self.variance).mean((-2, -1))

    def entropy(self) -> Tensor:
        """Return ``H[q] = −E[log q(g)]`` in nats, summed over blocks, shape ``batch_shape``."""
        return self.log_volume() + standard_normal_entropy(self.num_entries)

    def kl(self, prior: Prior, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ``KL(q ‖ p)`` in nats, summed over all entries of a replica.

        Args:
            prior: ``p = N(0, λ I)``.
            generator: Source of randomness for families that estimate the KL; others ignore it.

        Returns:
            Shape ``batch_shape``. Never averaged over anything.
        """
        return prior.kl(self.mean_square(), self.log_volume(), self.num_entries)

    def extra_repr(self) -> str:
        """Show the shape."""
        return f"shape={self.shape}"


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Refuse a shape that is not ``(*batch_shape, K, D)`` with positive sizes."""
    if len(shape) < 2 or any(size < 1 for size in shape):
        raise ShapeError(
            f"a posterior needs a shape (*batch_shape, K, D) of positive sizes, got {tuple(shape)}"
        )
    return tuple(shape)


def check_start(mean_std: float, scale: float) -> None:
    """Refuse a starting point without a spread, or with a negative spread of the means."""
    check_positive("scale", scale)
    if not (math.isfinite(mean_std) and mean_std >= 0):
        raise ConfigError(f"mean_std must be a finite number of at least 0, got {mean_std!r}")


def empty_parameter(
    shape: Sequence[int], device: Device, dtype: torch.dtype | None
) -> nn.Parameter:
    """Return a parameter whose values the caller sets next."""
    return nn.Parameter(torch.empty(tuple(shape), device=device, dtype=dtype))


def standard_normal(
    like: Tensor, shape: Sequence[int], generator: torch.Generator | None
) -> Tensor:
    """Draw ``ε ~ N(0, I)`` of ``shape`` with the data type and device of ``like``."""
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def standard_normal_entropy(num_entries: int) -> float:
    """Return ``H[N(0, I)] = ½ n log(2πe)``."""
    return 0.5 * num_entries * math.log(2 * math.pi * math.e)
