"""How a kernel slides over an input: patches of padded images, for any number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional

from whvi.errors import ConfigError

Sizes = int | Sequence[int]
_CONVOLUTIONS: tuple[Any, ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
_PADDING_MODES = ("circular", "reflect", "replicate", "zeros")


class Window(NamedTuple):
    """How a kernel slides: one entry per spatial axis."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after
    dilation: tuple[int, ...]
    padding_mode: str

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
        n = len(self.kernel_size)
        return x.movedim(1, 1 + n).flatten(2 + n)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        """Slide ``weight (out, in / groups, *kernel_size)`` over ``x (M, in, *spatial)``."""
        convolution = _CONVOLUTIONS[len(self.kernel_size) - 1]
        padding = [before for before, _ in self.padding]
        if self.padding_mode != "zeros" or any(one != other for one, other in self.padding):
            x, padding = self._pad(x), [0] * len(padding)
        y: Tensor = convolution(x, weight, bias, self.stride, padding, self.dilation, groups)
        return y

    def _pad(self, x: Tensor) -> Tensor:
        if not any(map(sum, self.padding)):
            return x
        amounts = [amount for pair in reversed(self.padding) for amount in pair]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(x, amounts, mode=mode)


def make_window(
    num_axes: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    padding_mode: str,
) -> Window:
    """Spread torch's ``int | tuple | "same" | "valid"`` over the spatial axes."""
    kernel = _spread("kernel_size", kernel_size, num_axes, 1)
    step = _spread("stride", stride, num_axes, 1)
    spread = _spread("dilation", dilation, num_axes, 1)
    if padding_mode not in _PADDING_MODES:
        raise ConfigError(f"padding_mode must be one of {_PADDING_MODES}, got {padding_mode!r}")
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
