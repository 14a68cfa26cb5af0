"""A single point: no uncertainty, for MAP estimation and deterministic baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from whvi.errors import ConfigError
from whvi.posteriors.base import Device, Posterior, standard_normal_entropy
from whvi.priors import FixedPrior, Prior
from whvi.sampling import insert_inner_axes


@final
class PointMass(Posterior):
    """``g = loc`` with certainty.

    Args:
        shape: ``(*batch_shape, K, D)``.
    """

    def __init__(
        self, shape: Sequence[int], *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(shape, device=device, dtype=dtype)
        self.reset(1.0, 0.1)

    def _reset_spread(self, scale: float, generator: torch.Generator | None) -> None:
        """Do nothing: a point has no ``scale``."""

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.loc)

    def covariance(self) -> Tensor:
        """Return zeros."""
        return torch.diag_embed(self.blocks(torch.zeros_like(self.loc)))

    def log_volume(self) -> Tensor:
        """Return ``−∞``: a point has no volume."""
        return self.loc.new_full(self.batch_shape, -torch.inf)

    def draw(
        self, inner_shape: tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the point, repeated to the shape."""
        loc = insert_inner_axes(self.loc, len(self.batch_shape), len(inner_shape))
        return loc.expand(*self.batch_shape, *inner_shape, self.num_entries)

    def kl(self, prior: Prior, *, generator: torch.Generator | None = None) -> Tensor:
        """Return ``−log p(loc) = ½ [‖loc‖²/λ + n log(2πλ)]``: minimising it is MAP estimation.

        The KL of a point is infinite; this is its finite part, and it may be negative. With an
        adaptive ``λ`` it has no lower bound (``loc`` and ``λ`` shrink together), so only a
        :class:`FixedPrior` is accepted.
        """
        if not isinstance(prior, FixedPrior):
            raise ConfigError(
                "a point mass needs a FixedPrior: with an adaptive variance −log p(g) has no "
                f"lower bound; got {type(prior).__name__}"
            )
        n = self.num_entries
        kl_of_unit_volume = prior.kl(self.mean_square(), self.loc.new_zeros(self.batch_shape), n)
        return kl_of_unit_volume + standard_normal_entropy(n)
