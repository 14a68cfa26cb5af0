r"""The interface of posteriors ``q(g)``: distributions over vectors made of blocks, with a KL.

``g`` has shape ``(*batch_shape, K·D)``: for each replica (independent model) a vector of ``K``
blocks of ``D`` entries, one after the other. Replicas and blocks are independent under every ``q``
here; what differs between families is the dependence inside a block.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from whvi._checks import check_positive
from whvi._kernel import traced
from whvi._kernel.kl import KLTerm
from whvi._kernel.kl import sum_of_kls as sum_of_fused_kls
from whvi.errors import ConfigError, ShapeError, WhviError
from whvi.priors import Prior

Device = torch.device | str | None


class NoClosedFormError(WhviError, NotImplementedError):
    """A quantity has no closed form for this posterior; the message says how to estimate it."""


class Posterior(nn.Module, ABC):
    """A distribution ``q(g)`` over vectors of shape ``(*batch_shape, K·D)``.

    Every member is built as ``Member(shape, *, device=None, dtype=None)``, so that the class (or a
    ``functools.partial`` of it) can be handed to a layer, and starts as ``reset(1.0, 0.1)``.

    Args:
        shape: ``(*batch_shape, K, D)``: replicas, blocks, entries per block.
    """

    def __init__(
        self, shape: Sequence[int], *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if len(shape) < 2 or any(size < 1 for size in shape):
            raise ShapeError(
                "a posterior needs a shape (*batch_shape, K, D) of positive sizes, "
                f"got {tuple(shape)}"
            )
        self.shape = tuple(shape)
        self.batch_shape, self.block_shape = self.shape[:-2], self.shape[-2:]
        self.num_entries = math.prod(self.block_shape)  # n = K·D
        self.loc = self._parameter(self.num_entries, device=device, dtype=dtype)

    def _parameter(
        self, *sizes: int, device: Device = None, dtype: torch.dtype | None = None
    ) -> nn.Parameter:
        """Return a parameter of each replica whose values :meth:`reset` sets."""
        return nn.Parameter(torch.empty(*self.batch_shape, *sizes, device=device, dtype=dtype))

    def blocks(self, v: Tensor) -> Tensor:
        """View ``(..., K·D)`` as ``(..., K, D)``."""
        blocks: Tensor = v.unflatten(-1, self.block_shape)
        return blocks

    @property
    def mean(self) -> Tensor:
        """``E[g]``, shape ``(*batch_shape, K·D)``: the location, but for flows."""
        return self.loc

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Marginal variances ``var(g_k)``, shape ``(*batch_shape, K·D)``."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Return the covariance inside each block, shape ``(*batch_shape, K, D, D)``."""

    @abstractmethod
    def log_volume(self) -> Tensor:
        """Return ``H[q] − H[N(0, I)]`` in nats, summed over blocks, shape ``batch_shape``.

        For a Gaussian this is ``½ log det Σ``.
        """

    @torch.no_grad()
    def reset(
        self, mean_std: float, scale: float, *, generator: torch.Generator | None = None
    ) -> None:
        """Draw a new starting point, in place.

        Args:
            mean_std: Standard deviation of the means over entries: ``μ ~ N(0, mean_std²)``.
            scale: Standard deviation of ``q`` around its mean, the same for every entry.
            generator: Source of randomness; ``None`` is torch's default generator.
        """
        check_positive("scale", scale)
        if not (math.isfinite(mean_std) and mean_std >= 0):
            raise ConfigError(f"mean_std must be a finite number of at least 0, got {mean_std!r}")
        if self.loc.is_meta:  # nothing to fill, and torch would import its compiler to say so
            return
        self.loc.normal_(0.0, mean_std, generator=generator)
        self._reset_spread(scale, generator)

    @abstractmethod
    def _reset_spread(self, scale: float, generator: torch.Generator | None) -> None:
        """Let ``q`` have the standard deviation ``scale`` around its mean."""

    @abstractmethod
    def draw(
        self, inner_shape: tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw as layers need it: ``(*batch_shape, *inner_shape, K·D)``, replicas first.

        Otherwise like :meth:`rsample`.
        """

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw ``g``, differentiably in the parameters of ``q`` (equation 3 of the paper).

        Args:
            sample_shape: Independent draws wanted from each replica, such as ``(S,)``.
            generator: Source of randomness; ``None`` is torch's default generator.

        Returns:
            Draws, shape ``(*sample_shape, *batch_shape, K·D)``, as in ``torch.distributions``.
        """
        return samples_first(self.draw(tuple(sample_shape), generator), len(self.batch_shape), 1)

    def mean_square(self) -> Tensor:
        """Return ``E‖g‖² / n``, the average of ``E[g_k]² + var(g_k)``, shape ``batch_shape``."""
        return (self.mean.square() + self.variance).mean(-1)

    def entropy(self) -> Tensor:
        """Return ``H[q] = −E[log q(g)]`` in nats, summed over blocks, shape ``batch_shape``."""
        return self.log_volume() + standard_normal_entropy(self.num_entries)

    def kl(self, prior: Prior, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ``KL(q ‖ p)`` in nats, summed over all entries of a replica.

        Args:
            prior: ``p = N(0, λ I)``.
            generator: Source of randomness for families that estimate the KL; others ignore it.
                ``None`` is that of the sampler in force (:func:`whvi.sampling.sampling`).

        Returns:
            Shape ``batch_shape``. Never averaged over anything.
        """
        return prior.kl(self.mean_square(), self.log_volume(), self.num_entries)

    def kl_term(self, prior: Prior) -> KLTerm | None:
        """Return what the kernel's KL of this pair needs; ``None`` where it has none."""
        return None

    def extra_repr(self) -> str:
        """Show the shape."""
        return f"shape={self.shape}"


def sum_of_kls(pairs: Sequence[tuple[Posterior, Prior]]) -> Tensor:
    """Return ``Σ KL(q ‖ p)`` over pairs of one ``batch_shape``, shape ``batch_shape``.

    All fully factorized pairs share one autograd node: in training, nodes are what a KL costs.
    """
    together: list[KLTerm] = []
    values: list[Tensor] = []
    for q, p in pairs:
        term = q.kl_term(p)
        if term is None:
            values.append(q.kl(p))
        else:
            together.append(term)
    if together:
        values.append(sum_of_fused_kls(together))
    return reduce(torch.add, values)


def samples_first(draws: Tensor, batch_ndim: int, own_ndim: int) -> Tensor:
    """Bring ``(*batch, *samples, *own)`` to ``(*samples, *batch, *own)``."""
    if not batch_ndim:
        return draws
    last = draws.dim() - own_ndim
    return draws.movedim(tuple(range(batch_ndim)), tuple(range(last - batch_ndim, last)))


def standard_normal(
    like: Tensor, shape: Sequence[int], generator: torch.Generator | None
) -> Tensor:
    """Draw ``ε ~ N(0, I)`` of ``shape`` with the data type and device of ``like``."""
    if is_compiling() and generator is None and like.device.type == "cpu":
        return traced.randn(tuple(shape), like.dtype)
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def standard_normal_entropy(num_entries: int) -> float:
    """Return ``H[N(0, I)] = ½ n log(2πe)``."""
    return 0.5 * num_entries * math.log(2 * math.pi * math.e)
