r"""The predictive distribution of a Gaussian process: exact marginals of every row."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from whvi.errors import ShapeError
from whvi.predictive import Predictive
from whvi.predictive.components import Components

_LOG_2PI = math.log(2 * math.pi)


@final
class GaussianMarginals(Components):
    """``y ~ N(m, e² + n²)`` as two sigma points ``m ± e``: exact, with its uncertainty split.

    A :class:`~whvi.predictive.Predictive` reads the epistemic variance off the spread of its
    components' means and the aleatoric one off their variances. Two points at ``m ± e`` carry
    exactly ``m``, ``e²`` and ``n²``; density, cdf and samples are those of the Gaussian itself.

    Parameters: ``m``, ``±e`` (the first component has the minus) and ``n``, each ``(2, N)``.
    """

    name = "Gaussian process"

    def _scale(self) -> Tensor:
        _, deviation, noise = self.parameters
        return (deviation.square() + noise.square()).sqrt()

    def mean(self) -> Tensor:
        """``m ± e``."""
        return self.parameters[0] + self.parameters[1]

    def variance(self) -> Tensor:
        """``n²``."""
        return self.parameters[2].square()

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of at most ``y``, the same for both components."""
        value: Tensor = torch.special.ndtr((y - self.parameters[0]) / self._scale())
        return value

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density at ``y`` in nats, the same for both components."""
        scale = self._scale()
        return -0.5 * (((y - self.parameters[0]) / scale).square() + _LOG_2PI) - scale.log()

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Draw from the marginals: rows are independent. Functions come from function draws."""
        loc = self.parameters[0]
        noise = torch.randn(loc.shape, generator=generator, dtype=loc.dtype, device=loc.device)
        return loc + self._scale() * noise


def gaussian_marginals(mean: Tensor, epistemic: Tensor, aleatoric: Tensor) -> Predictive:
    """Return ``N(mean, epistemic² + aleatoric²)`` per row.

    Args:
        mean: Mean, shape ``(N,)``.
        epistemic: Standard deviation of the function, shape ``(N,)``, not negative.
        aleatoric: Standard deviation of the noise, broadcastable to ``(N,)``, above 0.
    """
    if mean.dim() != 1 or epistemic.shape != mean.shape:
        raise ShapeError(
            f"mean and epistemic must have one shape (N,), got {tuple(mean.shape)} and "
            f"{tuple(epistemic.shape)}"
        )
    loc, spread = mean.double(), epistemic.double()
    noise = aleatoric.double().expand(2, len(loc))
    deviation = torch.stack([-spread, spread])
    return Predictive(GaussianMarginals(loc.expand(2, -1), deviation, noise))
