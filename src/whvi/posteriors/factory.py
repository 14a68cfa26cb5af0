"""Make a posterior of a given shape from a name, a class or a partial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from whvi.errors import ConfigError
from whvi.posteriors.base import Device, Posterior
from whvi.posteriors.diagonal import DiagonalGaussian
from whvi.posteriors.full import FullGaussian
from whvi.posteriors.low_rank import LowRankGaussian
from whvi.posteriors.planar_flow import PlanarFlow
from whvi.posteriors.point_mass import PointMass


class PosteriorFactory(Protocol):
    """Anything that builds a posterior of a shape: ``DiagonalGaussian`` itself, a partial, …"""

    def __call__(  # noqa: D102 - the class says it
        self, shape: tuple[int, ...], *, device: Device, dtype: torch.dtype | None
    ) -> Posterior: ...


_BY_NAME: dict[str, PosteriorFactory] = {
    "diagonal": DiagonalGaussian,
    "low_rank": LowRankGaussian,
    "full": FullGaussian,
    "flow": PlanarFlow,
    "point": PointMass,
}


def make_posterior(
    posterior: str | PosteriorFactory,
    shape: Sequence[int],
    *,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> Posterior:
    """Build the posterior that ``posterior`` describes.

    Args:
        posterior: ``"diagonal"``, ``"low_rank"``, ``"full"``, ``"flow"`` or ``"point"``; or a
            factory: a class such as ``LowRankGaussian``, or one with options such as
            ``functools.partial(LowRankGaussian, rank=8)``.
        shape: ``(*batch_shape, K, D)``.
        device, dtype: Where its parameters live.
    """
    if isinstance(posterior, str):
        if posterior not in _BY_NAME:
            names = ", ".join(map(repr, _BY_NAME))
            raise ConfigError(f"posterior must be one of {names} or a factory, got {posterior!r}")
        posterior = _BY_NAME[posterior]
    if isinstance(posterior, Posterior) or not callable(posterior):
        raise ConfigError(
            "posterior must be a name or a factory such as DiagonalGaussian or "
            f"functools.partial(LowRankGaussian, rank=8), got {posterior!r}"
        )
    return posterior(tuple(shape), device=device, dtype=dtype)
