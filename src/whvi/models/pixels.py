r"""What a decoder says about pixels: the density :math:`p(x \mid f)` of images given its outputs.

.. math::
   \text{Bernoulli:} \quad & \log p(x \mid f) = \textstyle\sum_i x_i f_i - \log(1 + e^{f_i}) \\
   \text{categorical:} \quad & \log p(x \mid f) = \textstyle\sum_i f_{i, x_i (L - 1)}
        - \log \textstyle\sum_l e^{f_{il}} \\
   \text{Gaussian:} \quad & \log p(x \mid f) = \textstyle\sum_i
        -\tfrac12 (x_i - f_i)^2 / \sigma^2 - \log \sigma - \tfrac12 \log 2 \pi

Sums go over the pixels of an image. Densities with respect to levels (Bernoulli, categorical) are
probabilities; that of the Gaussian is per unit of pixel value, so that the two do not compare.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import check_finite
from whvi.errors import ConfigError, DataError


class PixelModel(nn.Module, ABC):
    """``p(x | f)`` of flat images ``x (..., pixels)``, ``f (..., pixels · per_pixel)``.

    Axes of ``f`` before the last are those of ``x``, or more before them.
    """

    per_pixel = 1  # outputs of the decoder

    @abstractmethod
    def log_prob(self, f: Tensor, x: Tensor) -> Tensor:
        """Return ``log p(x | f)`` in nats, summed over the pixels."""

    @abstractmethod
    def mean(self, f: Tensor) -> Tensor:
        """Return the mean image, in the units of the images."""

    @abstractmethod
    def sample(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw one image for each row of ``f``."""

    def check(self, x: Tensor) -> None:
        """Raise :class:`~whvi.errors.DataError` for a pixel outside the support."""
        check_finite("images", x)


@final
class BernoulliPixels(PixelModel):
    """Black and white: pixels 0 and 1."""

    def log_prob(self, f: Tensor, x: Tensor) -> Tensor:
        return (x * f - functional.softplus(f)).sum(-1)

    def mean(self, f: Tensor) -> Tensor:
        return f.sigmoid()

    def sample(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.bernoulli(f.sigmoid(), generator=generator)

    def check(self, x: Tensor) -> None:
        _check_pixels(x, (x == 0) | (x == 1), "0 or 1; binarise grey levels first")


@final
class CategoricalPixels(PixelModel):
    """``L`` grey levels ``0, 1/(L − 1), …, 1``, each with its own probability.

    Args:
        num_levels: ``L``, at least 2; 256 for bytes divided by 255.
    """

    def __init__(self, num_levels: int) -> None:
        super().__init__()
        self.per_pixel = num_levels

    def log_prob(self, f: Tensor, x: Tensor) -> Tensor:
        log_probs = self._by_level(f).log_softmax(-1)
        levels = (x * (self.per_pixel - 1)).round().long().expand(log_probs.shape[:-1])
        return log_probs.gather(-1, levels.unsqueeze(-1)).squeeze(-1).sum(-1)

    def mean(self, f: Tensor) -> Tensor:
        values = torch.linspace(0, 1, self.per_pixel, dtype=f.dtype, device=f.device)
        return self._by_level(f).softmax(-1) @ values

    def sample(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        probs = self._by_level(f).softmax(-1)
        levels = torch.multinomial(probs.flatten(0, -2), 1, generator=generator)
        return levels.view(probs.shape[:-1]).to(f.dtype) / (self.per_pixel - 1)

    def check(self, x: Tensor) -> None:
        steps = x * (self.per_pixel - 1)
        is_level = (steps - steps.round()).abs() < 1e-3  # bytes / 255 are not exact in float32
        possible = is_level & (x >= 0) & (x <= 1)
        _check_pixels(x, possible, f"one of {self.per_pixel} levels 0, …, 1 at equal distances")

    def _by_level(self, f: Tensor) -> Tensor:
        return f.reshape(*f.shape[:-1], -1, self.per_pixel)


@final
class GaussianPixels(PixelModel):
    """Real values with one standard deviation ``exp(log_scale)``, a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-1.0))

    def log_prob(self, f: Tensor, x: Tensor) -> Tensor:
        z = (x - f) * torch.exp(-self.log_scale)
        log_norm = self.log_scale + 0.5 * math.log(2 * math.pi)
        return -0.5 * z.square().sum(-1) - x.shape[-1] * log_norm

    def mean(self, f: Tensor) -> Tensor:
        return f

    def sample(self, f: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = torch.randn(f.shape, generator=generator, dtype=f.dtype, device=f.device)
        return f + self.log_scale.exp() * noise


def make_pixels(decoder: str, num_levels: int) -> PixelModel:
    """Build the pixel model called ``"bernoulli"``, ``"categorical"`` or ``"gaussian"``."""
    if decoder == "bernoulli":
        return BernoulliPixels()
    if decoder == "gaussian":
        return GaussianPixels()
    if decoder != "categorical":
        raise ConfigError(
            f"decoder must be 'bernoulli', 'categorical' or 'gaussian', got {decoder!r}"
        )
    if isinstance(num_levels, bool) or not isinstance(num_levels, int) or num_levels < 2:
        raise ConfigError(f"num_levels must be an integer of at least 2, got {num_levels!r}")
    return CategoricalPixels(num_levels)


def _check_pixels(x: Tensor, possible: Tensor, expected: str) -> None:
    check_finite("images", x)
    if not bool(possible.all()):
        bad = (~possible).nonzero()
        first = tuple(bad[0].tolist())
        raise DataError(
            f"pixels must be {expected}; {len(bad)} are not "
            f"(first: {x[first].item():g} at index {first})"
        )
