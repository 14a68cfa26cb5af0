"""Input validation for public functions.

Each raises one of :mod:`whvi.errors` and says what was expected, what was found and what to do.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from whvi.errors import ConfigError, DataError, ShapeError


def is_power_of_two(size: int) -> bool:
    """Tell whether ``size`` is 1, 2, 4, 8, …, by bits: a float logarithm errs near 2**k."""
    return size >= 1 and size & (size - 1) == 0


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least ``size`` (and at least 1)."""
    return 1 << max(size - 1, 0).bit_length()


def hadamard_factor(size: int) -> int:
    """Return ``m`` of a size ``m · 2**k`` that has a transform: 1, 12, 20 or 28; 0 for others."""
    if size < 1:
        return 0
    odd = size // (size & -size)
    if odd == 1:
        return 1
    return 4 * odd if odd in (3, 5, 7) and size % 4 == 0 else 0


def next_hadamard_order(size: int) -> int:
    """Return the smallest size of a transform that is at least ``size``."""
    return min(order for order in _orders_around(size) if order >= size)


def _orders_around(size: int) -> list[int]:
    power = next_power_of_two(size)
    return [n for n in (power * eighths // 8 for eighths in range(4, 9)) if hadamard_factor(n)]


def refused_order(size: int) -> str:
    """Say which sizes a transform takes, and which of them are next to ``size``."""
    below = [f"{order} and " for order in _orders_around(size) if order < size]
    nearest = f"{below[-1] if below else ''}{next_hadamard_order(size)}"
    return f"m · 2**k with m = 1, 12, 20 or 28, got size {size} (nearest: {nearest})"


def check_positive_int(name: str, value: int) -> None:
    """Refuse anything but an ``int`` of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}")


def positive_int(name: str, value: Any) -> int:
    """Return an option as ``int``, also if it is one of numpy's, as from ``np.arange``."""
    is_bool = isinstance(value, bool)
    found = int(value) if not is_bool and isinstance(value, Integral) else value
    check_positive_int(name, found)
    return found


def check_positive(name: str, value: float) -> None:
    """Refuse anything but a finite number above zero."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a finite number above 0, got {value!r}")


def check_not_negative(name: str, value: float) -> None:
    """Refuse anything but a finite number of at least zero."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} must be a finite number of at least 0, got {value!r}")


def check_tensor(name: str, x: object) -> None:
    """Refuse anything but a tensor."""
    if not isinstance(x, Tensor):
        raise ShapeError(
            f"{name} must be a torch.Tensor, got {type(x).__name__}; use torch.as_tensor"
        )


def check_module(name: str, module: object) -> None:
    """Refuse anything but a module."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name} must be a torch.nn.Module, got {type(module).__name__}")


def check_float_dtype(dtype: torch.dtype | None) -> None:
    """Refuse a data type that parameters cannot have."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ConfigError(
            f"dtype must be a floating-point type such as torch.float32, got {dtype!r}"
        )


def check_last_dim(name: str, x: Tensor, size: int) -> None:
    """Refuse a tensor whose last dimension is not ``size``."""
    if x.dim() == 0 or x.shape[-1] != size:
        raise ShapeError(f"{name} must have shape (..., {size}), got {tuple(x.shape)}")


def check_dtype(name: str, x: Tensor, like: Tensor) -> None:
    """Refuse a tensor whose data type or device is not that of a layer's parameters."""
    check_tensor(name, x)
    if x.dtype is not like.dtype or x.device != like.device:
        raise ShapeError(
            f"{name} is {x.dtype} on {x.device} but the layer is {like.dtype} on {like.device}; "
            f"convert one of them, for example with .to({like.dtype})"
        )


def check_finite(name: str, x: Tensor) -> None:
    """Refuse NaN and infinity, naming the first offending position and value."""
    finite = torch.isfinite(x)
    if bool(finite.all()):
        return
    bad = (~finite).nonzero()
    first = tuple(bad[0].tolist())
    raise DataError(
        f"{name} holds {len(bad)} values that are not finite "
        f"(first: {x[first].item()} at index {first}); drop or fill them before fitting"
    )


_LEAST_ODD_BLOCK = 256  # inputs from which a block need not be a power of two
_LEAST_BLOCK_OF_28 = 3584  # combining 28 parts takes longer than the padding of smaller blocks


def block_size_for(num_features: int) -> int:
    """Return the size of a block that takes ``num_features``: the fastest, hence the smallest.

    From 257 on that is ``m · 2**k`` with ``m`` 1, 12 or 20, and 28 for large blocks (section
    ``orders`` of the benchmarks); below, the next power of two.
    """
    order = next_hadamard_order(num_features)
    too_small = hadamard_factor(order) == 28 and order < _LEAST_BLOCK_OF_28
    if num_features < _LEAST_ODD_BLOCK or too_small:
        return next_power_of_two(num_features)
    return order
