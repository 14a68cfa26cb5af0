r"""Convolutions of any dimension with a random kernel: a linear map on unfolded patches.

The kernel ``(out_channels, in_channels / groups, *kernel_size)`` is, for each group, a matrix
``(out_channels / groups) × (in_channels / groups · Π kernel_size)`` that multiplies the patches of
the padded input: the same random matrix as in a linear layer (section 2 of the paper). Groups are
an inner axis of replicas. Local reparameterization draws a matrix for every patch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from whvi._checks import check_dtype, check_positive_int
from whvi.errors import ConfigError, ShapeError
from whvi.layers.linear import Bias, Device
from whvi.layers.meanfield import DenseGaussianWeight
from whvi.layers.protocol import BayesianLayer
from whvi.layers.structured import StructuredWeight
from whvi.layers.weights import Weight, lift
from whvi.sampling import WeightDraws, current_sampler

Sizes = int | Sequence[int]
_PADDING_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}


class Window(NamedTuple):
    """How a kernel slides: one entry per spatial axis."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after
    dilation: tuple[int, ...]
    padding_mode: str

    @property
    def num_axes(self) -> int:
        """Spatial axes."""
        return len(self.kernel_size)

    @property
    def reach(self) -> tuple[int, ...]:
        """Input positions that a kernel spans along each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))

    def patches(self, x: Tensor) -> Tensor:
        """Unfold ``(M, channels, *spatial)`` to ``(M, *positions, channels, Π kernel_size)``."""
        x = self._pad(x)
        for axis, (reach, stride, dilation) in enumerate(
            zip(self.reach, self.stride, self.dilation, strict=True)
        ):
            x = x.unfold(2 + axis, reach, stride)[..., ::dilation]
        n = self.num_axes
        x = x.movedim(1, 1 + n)  # (M, *positions, channels, *kernel_size)
        return x.flatten(2 + n) if n else x

    def _pad(self, x: Tensor) -> Tensor:
        if not any(map(sum, self.padding)):
            return x
        amounts = [amount for pair in reversed(self.padding) for amount in pair]
        return functional.pad(x, amounts, mode=_PADDING_MODES[self.padding_mode])


class RandomConv(BayesianLayer):
    """A convolution with a random kernel; final classes say how many axes and which weight.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode: As in ``torch.nn.Conv1d/2d/3d``.
        batch_shape: ``(R,)`` for R independent replicas trained in one pass.
        weight_options: ``posterior`` and ``prior`` of the kernel (structured weights) or
            ``prior`` (mean-field weights), as in the linear layer of the same name.
    """

    weight: Weight
    num_axes: int
    weight_class: type[Weight]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        batch_shape: tuple[int, ...] = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
        **weight_options: Any,
    ) -> None:
        super().__init__()
        _check_channels(in_channels, out_channels, groups)
        self.window = make_window(
            self.num_axes, kernel_size, stride, padding, dilation, padding_mode
        )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.batch_shape = tuple(batch_shape)
        self.weight = self.weight_class(
            in_channels // groups * math.prod(self.window.kernel_size),
            out_channels // groups,
            batch_shape=(*self.batch_shape, groups),
            device=device,
            dtype=dtype,
            **weight_options,
        )
        self.bias = None
        if bias:
            self.bias = Bias(out_channels, batch_shape=self.batch_shape, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``(*batch_shape, *inner, in_channels, *spatial)``, any inner axes."""
        self._check(x)
        n, axes = self.window.num_axes, len(self.batch_shape)
        inner = tuple(x.shape[axes : -1 - n])
        patches = self.window.patches(x.reshape(-1, *x.shape[-1 - n :]))
        positions = tuple(patches.shape[1 : 1 + n])
        # (*batch, *inner, *positions, groups, patch) -> groups next to the replicas
        width = self.weight.in_features
        rows = patches.reshape(*self.batch_shape, *inner, *positions, self.groups, width)
        rows = rows.movedim(-2, axes)
        y = self.weight.multiply(rows, None, current_sampler())
        y = y.movedim(axes, -2).flatten(-2)  # (*batch, *inner, *positions, out_channels)
        if self.bias is not None:
            drawn = self.bias.draw((), current_sampler())
            y = y + lift(drawn, axes, len(inner) + n)
        return y.movedim(-1, axes + len(inner))

    def kl(self) -> Tensor:
        """Return the KL of all groups in nats, shape ``batch_shape``."""
        return self.weight.kl().sum(-1)

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point."""
        self.weight.reset_parameters(generator=generator)
        if self.bias is not None:
            self.bias.reset_parameters(generator=generator)

    def sample_weight(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a kernel ``(*batch_shape, out_channels, in_channels / groups, *kernel_size)``."""
        matrix = self.weight.sample(generator=generator).flatten(-3, -2)
        kernel = (self.in_channels // self.groups, *self.window.kernel_size)
        return matrix.reshape(*matrix.shape[:-1], *kernel)

    def extra_repr(self) -> str:
        """Show what torch shows."""
        w = self.window
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={w.kernel_size}, "
            f"stride={w.stride}, padding={w.padding}, dilation={w.dilation}, groups={self.groups}"
        )

    def _check(self, x: Tensor) -> None:
        check_dtype("input", x, self.weight.posterior.loc)
        n, axes = self.window.num_axes, len(self.batch_shape)
        expected = "(*batch_shape, ..., in_channels" + ", size" * n + ")"
        fits = x.dim() >= axes + 1 + n and x.shape[-1 - n] == self.in_channels
        if not fits or tuple(x.shape[:axes]) != self.batch_shape:
            raise ShapeError(
                f"input must have shape {expected} with batch_shape {self.batch_shape} and "
                f"{self.in_channels} channels, got {tuple(x.shape)}"
            )
        sampler = current_sampler()
        if isinstance(sampler, WeightDraws) and sampler.num_samples is not None:
            inner = x.shape[axes : -1 - n]
            if not inner or inner[0] != sampler.num_samples:
                raise ShapeError(
                    f"with WeightDraws(num_samples={sampler.num_samples}) the input needs shape "
                    f"(*batch_shape, {sampler.num_samples}, ..., in_channels{', size' * n}), "
                    f"got {tuple(x.shape)}"
                )
        padded = [s + sum(p) for s, p in zip(x.shape[-n:], self.window.padding, strict=True)]
        if any(size < reach for size, reach in zip(padded, self.window.reach, strict=True)):
            raise ShapeError(
                f"the kernel spans {self.window.reach} positions but the padded input has only "
                f"{tuple(padded)}"
            )


@final
class WHVIConv1d(RandomConv):
    """``torch.nn.Conv1d`` whose kernel has a Walsh-Hadamard structured posterior."""

    num_axes, weight_class = 1, StructuredWeight


@final
class WHVIConv2d(RandomConv):
    """``torch.nn.Conv2d`` whose kernel has a Walsh-Hadamard structured posterior."""

    num_axes, weight_class = 2, StructuredWeight


@final
class WHVIConv3d(RandomConv):
    """``torch.nn.Conv3d`` whose kernel has a Walsh-Hadamard structured posterior."""

    num_axes, weight_class = 3, StructuredWeight


@final
class MeanFieldConv1d(RandomConv):
    """``torch.nn.Conv1d`` with an independent Gaussian posterior for every weight."""

    num_axes, weight_class = 1, DenseGaussianWeight


@final
class MeanFieldConv2d(RandomConv):
    """``torch.nn.Conv2d`` with an independent Gaussian posterior for every weight."""

    num_axes, weight_class = 2, DenseGaussianWeight


@final
class MeanFieldConv3d(RandomConv):
    """``torch.nn.Conv3d`` with an independent Gaussian posterior for every weight."""

    num_axes, weight_class = 3, DenseGaussianWeight


def _check_channels(in_channels: int, out_channels: int, groups: int) -> None:
    check_positive_int("in_channels", in_channels)
    check_positive_int("out_channels", out_channels)
    check_positive_int("groups", groups)
    if in_channels % groups or out_channels % groups:
        raise ConfigError(
            f"groups must divide in_channels and out_channels, got groups {groups}, "
            f"in_channels {in_channels}, out_channels {out_channels}"
        )


def make_window(
    num_axes: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    padding_mode: str,
) -> Window:
    """Spread torch's ``int | tuple | "same" | "valid"`` over the spatial axes."""
    kernel, step, spread = (
        _spread(name, value, num_axes, 1)
        for name, value in (
            ("kernel_size", kernel_size),
            ("stride", stride),
            ("dilation", dilation),
        )
    )
    if padding_mode not in _PADDING_MODES:
        raise ConfigError(
            f"padding_mode must be one of {sorted(_PADDING_MODES)}, got {padding_mode!r}"
        )
    if padding == "valid":
        padding = 0
    if padding == "same":
        if any(s != 1 for s in step):
            raise ConfigError(f"padding='same' needs stride 1, got {step}")
        total = [d * (k - 1) for k, d in zip(kernel, spread, strict=True)]
        pads = tuple((t // 2, t - t // 2) for t in total)
    elif isinstance(padding, str):
        raise ConfigError(f"padding must be 'same', 'valid' or sizes, got {padding!r}")
    else:
        pads = tuple((p, p) for p in _spread("padding", padding, num_axes, 0))
    return Window(kernel, step, pads, spread, padding_mode)


def _spread(name: str, value: Sizes, num_axes: int, least: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,) * num_axes
    if len(sizes) != num_axes or any(not isinstance(s, int) or s < least for s in sizes):
        raise ConfigError(
            f"{name} must be one integer or {num_axes} of at least {least}, got {value!r}"
        )
    return sizes
