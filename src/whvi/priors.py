r"""Priors ``p(g) = N(0, λ I)`` over the variational vectors of a layer (section 2 of the paper).

A prior sees a posterior only through three numbers per replica: the number ``n`` of entries, the
mean square ``E‖g‖² / n`` and the log-volume ``H[q] − H[N(0, I)]``, which is ``½ log det Σ`` for a
Gaussian. With these

    KL(q ‖ p) = ½ n [mean_square / λ − 1 + log λ] − log_volume,

so every prior works with every posterior. What differs is where the variance ``λ`` comes from:
fixed, learned by gradient, or the minimiser of the KL in closed form (empirical Bayes).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from whvi._checks import check_positive
from whvi.errors import ConfigError, ShapeError


class Prior(nn.Module, ABC):
    """A zero-mean isotropic Gaussian prior ``N(0, λ I)``; members say what ``λ`` is."""

    @abstractmethod
    def variance(self, mean_square: Tensor) -> Tensor:
        """Return ``λ``.

        Args:
            mean_square: ``E‖g‖² / n`` under the posterior, shape ``batch_shape``.

        Returns:
            The prior variance, shape ``batch_shape``.
        """

    def kl(self, mean_square: Tensor, log_volume: Tensor, n: int) -> Tensor:
        """Return ``KL(q ‖ p) = ½ n [mean_square / λ − 1 + log λ] − log_volume``.

        Args:
            mean_square: ``E‖g‖² / n``, shape ``batch_shape``.
            log_volume: ``H[q] − H[N(0, I)]``, shape ``batch_shape``.
            n: Number of entries of ``g`` in one replica.

        Returns:
            Nats, shape ``batch_shape``.
        """
        variance = self.variance(mean_square)
        return 0.5 * n * (mean_square / variance - 1 + torch.log(variance)) - log_volume


@final
class FixedPrior(Prior):
    """``λ`` is a number chosen by the user.

    Args:
        variance: ``λ``, a variance (not a standard deviation). It is a setting, not a state:
            ``state_dict`` does not hold it.
    """

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        check_positive("variance", variance)
        self.fixed_variance = float(variance)

    def variance(self, mean_square: Tensor) -> Tensor:
        """Return the fixed ``λ``."""
        return torch.full_like(mean_square, self.fixed_variance)

    def kl(self, mean_square: Tensor, log_volume: Tensor, n: int) -> Tensor:
        """Return ``½ n [mean_square / λ − 1 + log λ] − log_volume``, constants as plain numbers."""
        constant = 0.5 * n * (math.log(self.fixed_variance) - 1)
        return mean_square * (0.5 * n / self.fixed_variance) + constant - log_volume

    def extra_repr(self) -> str:
        """Show ``λ``."""
        return f"variance={self.fixed_variance:g}"


@final
class LearnedPrior(Prior):
    """``λ`` is a parameter of each replica, trained together with the posterior.

    Args:
        batch_shape: Replicas; ``()`` shares one ``λ`` between all of them.
        variance: Initial ``λ``.
    """

    def __init__(
        self,
        batch_shape: tuple[int, ...] = (),
        *,
        variance: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive("variance", variance)
        start = torch.full(batch_shape, math.log(variance), device=device, dtype=dtype)
        self.log_variance = nn.Parameter(start)

    def variance(self, mean_square: Tensor) -> Tensor:
        """Return ``λ = exp(log_variance)``."""
        if self.log_variance.dim() > mean_square.dim():
            raise ShapeError(
                f"the prior has replicas {tuple(self.log_variance.shape)} but the posterior "
                f"has {tuple(mean_square.shape)}; give both the same batch_shape"
            )
        return self.log_variance.exp().expand_as(mean_square)


@final
class EmpiricalBayesPrior(Prior):
    r"""``λ`` is the minimiser of the KL, in closed form, for each replica of the layer.

    ``λ* = E‖g‖² / n = (‖μ‖² + tr Σ) / n`` over all ``n = K·D`` entries. It is recomputed from
    the posterior whenever it is needed; there is nothing to train. The gradient of the profiled
    KL, ``½ [n log λ* − log det Σ]`` for a Gaussian, is that of the KL at fixed ``λ = λ*``.

    When the mean square is itself a Monte-Carlo estimate (flows), the logarithm makes the
    estimate of the KL too small by about ``n · var(estimate) / (4 λ²)``.
    """

    def variance(self, mean_square: Tensor) -> Tensor:
        """Return ``λ* = E‖g‖² / n``."""
        return mean_square

    def kl(self, mean_square: Tensor, log_volume: Tensor, n: int) -> Tensor:
        """Return ``½ n log λ* − log_volume``: at the optimum ``mean_square / λ* = 1``."""
        return torch.add(-log_volume, torch.log(mean_square), alpha=0.5 * n)


PriorFactory = Callable[..., Prior]
"""Builds a prior from ``(batch_shape, *, device, dtype)``: ``LearnedPrior``, or a partial of it."""


def make_prior(
    prior: str | Prior | PriorFactory,
    batch_shape: tuple[int, ...] = (),
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Prior:
    """Return the prior that ``prior`` describes.

    Args:
        prior: ``"empirical_bayes"``, ``"learned"``, ``"standard_normal"``; or a prior, returned as
            it is (a :class:`LearnedPrior` given to several layers is shared by them); or a factory
            such as ``functools.partial(LearnedPrior, variance=0.1)``.
        batch_shape: Replicas of the layer.
        device, dtype: Where parameters of the prior live.
    """
    if isinstance(prior, Prior):
        return prior
    if not isinstance(prior, str):
        return prior(batch_shape, device=device, dtype=dtype)
    if prior == "empirical_bayes":
        return EmpiricalBayesPrior()
    if prior == "learned":
        return LearnedPrior(batch_shape, device=device, dtype=dtype)
    if prior == "standard_normal":
        return FixedPrior(1.0)
    raise ConfigError(
        "prior must be 'empirical_bayes', 'learned', 'standard_normal', a Prior or a factory, "
        f"got {prior!r}"
    )
