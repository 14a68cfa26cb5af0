r"""A planar normalizing flow (Rezende and Mohamed, 2015, equations 10–12 and appendix A.1).

    g = μ + σ ⊙ (f_F ∘ … ∘ f_1)(ε),   ε ~ N(0, I),   f(z) = z + û tanh(wᵀz + b)
    log |∂g/∂ε| = Σ_k log σ_k + Σ_f log(1 + h' wᵀû),   h' = 1 − tanh²(wᵀz + b)

Scaling after the flow instead of before it gives the same family (``σ w`` and ``û / σ`` take the
place of ``w`` and ``û``) in coordinates where everything is of order one. Each ``f`` is invertible
because ``û = u + (m(wᵀu) − wᵀu) w/‖w‖²`` has ``wᵀû = m(wᵀu) > −1``. We take
``m(x) = softplus(x + log(e − 1)) − 1``; the shift makes ``u = 0`` the identity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn, final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from whvi._checks import check_positive_int
from whvi._kernel.noise import normal_from_seed
from whvi.posteriors.base import (
    Device,
    NoClosedFormError,
    Posterior,
    standard_normal,
)
from whvi.priors import Prior
from whvi.sampling import current_sampler

_INITIAL_BEND = 0.1  # std of u: near the identity, but with gradients for u, w and b
_MEAN_PAIRS = 128  # antithetic pairs of draws that estimate the mean


@final
class PlanarFlow(Posterior):
    """A diagonal Gaussian bent by ``num_flows`` planar maps; moments and KL by Monte Carlo only.

    Parameters: ``loc`` (μ) and ``log_scale`` (log σ), ``(*batch_shape, K·D)``; ``u``, ``w`` of
    shape ``(*batch_shape, K, num_flows, D)`` and ``b`` of shape ``(*batch_shape, K, num_flows)``.

    Args:
        shape: ``(*batch_shape, K, D)``.
        num_flows: ``F``, how many planar maps follow one another.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        num_flows: int = 4,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, device=device, dtype=dtype)
        check_positive_int("num_flows", num_flows)
        K, D = self.block_shape
        self.log_scale = self._parameter(K * D, device=device, dtype=dtype)
        self.u = self._parameter(K, num_flows, D, device=device, dtype=dtype)
        self.w = self._parameter(K, num_flows, D, device=device, dtype=dtype)
        self.b = self._parameter(K, num_flows, device=device, dtype=dtype)
        self.reset(1.0, 0.1)

    def _reset_spread(self, scale: float, generator: torch.Generator | None) -> None:
        """Set the spread to ``scale`` up to a slight bend at random."""
        self.log_scale.fill_(math.log(scale))
        self.u.normal_(0.0, _INITIAL_BEND, generator=generator)
        self.w.normal_(0.0, self.shape[-1] ** -0.5, generator=generator)  # wᵀε ~ N(0, 1)
        self.b.zero_()

    def transform(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Map base noise to draws.

        Args:
            noise: ``ε``, shape ``(*batch_shape, I, K, D)``.

        Returns:
            ``g``, shape ``(*batch_shape, I, K·D)``, and ``log |det ∂g/∂ε|``, shape
            ``(*batch_shape, I, K)``.
        """
        z = noise
        log_det = self.blocks(self.log_scale).sum(-1).unsqueeze(-2)
        for u, w, b in zip(self.u.unbind(-2), self.w.unbind(-2), self.b.unbind(-1), strict=True):
            z, log_det_f = planar_map(z, u.unsqueeze(-3), w.unsqueeze(-3), b.unsqueeze(-2))
            log_det = log_det + log_det_f
        loc, scale = self.loc.unsqueeze(-2), self.log_scale.exp().unsqueeze(-2)
        return torch.addcmul(loc, scale, z.flatten(-2)), log_det

    def _noise(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        shape = (*self.batch_shape, num_draws, *self.block_shape)
        return standard_normal(self.loc, shape, generator)

    def draw(
        self, inner_shape: tuple[int, ...] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return ``μ + σ ⊙ f(ε)``."""
        draws, _ = self.transform(self._noise(math.prod(inner_shape), generator))
        return draws.reshape(*self.batch_shape, *inner_shape, self.num_entries)

    def kl(
        self, prior: Prior, *, num_draws: int = 16, generator: torch.Generator | None = None
    ) -> Tensor:
        """Estimate the KL with ``num_draws`` draws: its log-volume is ``E log |det ∂g/∂ε|``.

        Unbiased for a given ``λ``, with reparameterized gradients; the entropy of the base is
        exact. A single estimate can be negative. See :class:`whvi.priors.EmpiricalBayesPrior` for
        the (small) bias with that prior. Without a generator, the draws come from that of the
        sampler in force, so that :func:`whvi.elbo` and :func:`whvi.fit` are reproducible.
        """
        check_positive_int("num_draws", num_draws)
        generator = current_sampler().generator if generator is None else generator
        g, log_det = self.transform(self._noise(num_draws, generator))
        mean_square = g.square().mean((-2, -1))
        log_volume = log_det.sum(-1).mean(-1)
        return prior.kl(mean_square, log_volume, self.num_entries)

    @property
    def mean(self) -> Tensor:
        """``E[g]``, estimated with 128 antithetic pairs of draws that are always the same.

        Exact where the flow is linear, differentiable, and not random: the generator stays as it
        is. Use :attr:`loc` for the location of the base.
        """
        shape = (_MEAN_PAIRS, *self.block_shape)
        half = normal_from_seed(shape, 0, dtype=self.loc.dtype, device=self.loc.device)
        noise = torch.cat([half, -half]).expand(*self.batch_shape, -1, -1, -1)
        return self.transform(noise)[0].mean(-2)

    @property
    def variance(self) -> Tensor:
        """Not available: it has no closed form."""
        return self._no_closed_form("variance")

    def covariance(self) -> Tensor:
        """Raise: it has no closed form."""
        return self._no_closed_form("covariance")

    def log_volume(self) -> Tensor:
        """Raise: it has no closed form."""
        return self._no_closed_form("entropy")

    def _no_closed_form(self, quantity: str) -> NoReturn:
        raise NoClosedFormError(
            f"the {quantity} of a planar flow has no closed form; "
            "estimate it from draws, such as rsample((1000,))"
        )

    def extra_repr(self) -> str:
        """Show shape and number of maps."""
        return f"{super().extra_repr()}, num_flows={self.b.shape[-1]}"


def planar_map(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Apply ``f(z) = z + û tanh(wᵀz + b)``, invertible for every ``u``, ``w`` and ``b``.

    Args:
        z: Points, shape ``(..., D)``.
        u, w: Directions, broadcastable to ``z``.
        b: Offset, broadcastable to ``z[..., 0]``.

    Returns:
        ``f(z)`` and ``log det ∂f/∂z = log(1 + h' wᵀû)``, shapes ``(..., D)`` and ``(...)``.
    """
    u_hat, one_plus_wu = invertible_direction(u, w)
    bend = torch.tanh((w * z).sum(-1) + b)
    slope = 1 - bend.square()
    # 1 + h' wᵀû = (1 − h') + h' (1 + wᵀû): a sum of non-negative terms, nothing cancels.
    log_det = torch.log(bend.square() + slope * one_plus_wu)
    return z + u_hat * bend.unsqueeze(-1), log_det


def invertible_direction(u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``û = u + (m(wᵀu) − wᵀu) w/‖w‖²`` and ``1 + wᵀû = softplus(wᵀu + log(e − 1)) > 0``."""
    tiny = torch.finfo(w.dtype).tiny  # keeps both results usable where softplus or w underflows
    inner = (w * u).sum(-1)
    one_plus_wu = softplus(inner + math.log(math.e - 1)).clamp_min(tiny)
    correction = (one_plus_wu - 1 - inner) / w.square().sum(-1).clamp_min(tiny)
    return u + correction.unsqueeze(-1) * w, one_plus_wu
