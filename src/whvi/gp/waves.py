r"""Cosines and sines of phases, and a map of rows to them whose frequencies may be learned.

``φ(x) = σ_f (2/M)^{1/2} [cos(xΩ), sin(xΩ)]`` has ``M/2`` frequencies, the columns of ``Ω``.
"""

from __future__ import annotations

import math
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from whvi._checks import check_last_dim, check_positive_int
from whvi._kernel.backend import is_tracing, is_transformed
from whvi.errors import ConfigError


def cos_sin(phases: Tensor) -> Tensor:
    """Return ``[cos p, sin p]`` of phases ``(..., J)``, shape ``(..., 2J)``."""
    if is_tracing() or is_transformed():
        return torch.cat([phases.cos(), phases.sin()], -1)
    if not (phases.requires_grad and torch.is_grad_enabled()):
        return _both(phases)
    # apply() is not annotated in torch.
    return cast(Tensor, _CosSin.apply(phases))  # type: ignore[no-untyped-call]


def _both(phases: Tensor) -> Tensor:
    half = phases.shape[-1]
    out = phases.new_empty(*phases.shape[:-1], 2 * half)
    torch.cos(phases, out=out[..., :half])
    torch.sin(phases, out=out[..., half:])
    return out


class _CosSin(torch.autograd.Function):
    """The derivative of each half is the other half: no sine is computed twice."""

    @staticmethod
    def forward(ctx: Any, phases: Tensor) -> Tensor:
        out = _both(phases)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return wave_slopes(ctx.saved_tensors[0], gradient)


def wave_slopes(waves: Tensor, weights: Tensor) -> Tensor:
    """Return ``∂(waves·weights)/∂p``, shape ``(..., J)``, for ``waves = [cos p, sin p]``."""
    cos, sin = waves.chunk(2, -1)
    to_cos, to_sin = weights.chunk(2, -1)
    return torch.addcmul(cos * to_sin, sin, to_cos, value=-1)


@final
class Waves(nn.Module):
    r"""``[cos(xΩ), sin(xΩ)]``, ``Ω = diag(1/ℓ) frequencies``, and the scale ``σ_f (2/M)^{1/2}``.

    Args:
        num_inputs: ``d``.
        num_features: ``M``, even.
        learned: Whether the frequencies are trained.
        dtype: Of the features.
    """

    def __init__(
        self, num_inputs: int, num_features: int, *, learned: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        check_positive_int("num_inputs", num_inputs)
        check_positive_int("num_features", num_features)
        if num_features % 2:
            raise ConfigError(
                f"num_features must be even, a cosine and a sine per frequency, got {num_features}"
            )
        self.num_features, self.dtype = num_features, dtype
        zeros = torch.zeros(num_inputs, num_features // 2, dtype=torch.float64)
        self.frequencies = nn.Parameter(zeros, requires_grad=learned)
        self.log_lengthscale = nn.Parameter(torch.zeros(num_inputs, dtype=torch.float64))
        self.log_variance = nn.Parameter(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def restart(self, generator: torch.Generator) -> None:
        """Set ``ℓ = √d``, ``σ_f = 1`` and draw frequencies."""
        shape = self.frequencies.shape
        self.frequencies.copy_(_draw_mixture(shape[0], shape[1], generator))
        self.log_lengthscale.fill_(0.5 * math.log(shape[0]))
        self.log_variance.zero_()

    @property
    def scale(self) -> Tensor:
        """``σ_f (2/M)^{1/2}``."""
        scale: Tensor = (0.5 * self.log_variance).exp() * (2 / self.num_features) ** 0.5
        return scale

    @property
    def omega(self) -> Tensor:
        """``Ω``, shape ``(d, M/2)``, float64."""
        return (-self.log_lengthscale).exp().unsqueeze(-1) * self.frequencies

    def forward(self, x: Tensor, omega: Tensor | None = None) -> Tensor:
        """Return ``[cos(xΩ), sin(xΩ)]``, shape ``(n, M)``, without the scale; ``Ω`` if known."""
        check_last_dim("x", x, len(self.log_lengthscale))
        omega = self.omega if omega is None else omega
        return cos_sin(x.to(self.dtype) @ omega.to(self.dtype))


def _draw_mixture(num_inputs: int, num: int, generator: torch.Generator) -> Tensor:
    r"""Draw frequencies of a mixture of RBF kernels with lengthscales between ``1/e`` and ``e``.

    ``ω = e^u z``, ``u ~ U(-1, 1)``, ``z ~ N(0, I)``, shape ``(num_inputs, num)``: slow and fast
    waves side by side, with a higher bound than those of one lengthscale.
    """
    normal = torch.randn(num_inputs, num, generator=generator, dtype=torch.float64)
    uniform = torch.rand(num, generator=generator, dtype=torch.float64)
    return normal * (2 * uniform - 1).exp()
