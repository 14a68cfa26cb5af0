"""The other ways to do the same: plain torch here, other packages if they are installed."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from whvi.transforms import fwht


def optional(name: str) -> ModuleType | str:
    """Import a package that nobody has to install, or say why it cannot be had."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or name).partition(".")[0]
        return "not installed" if missing == name else f"needs {missing}"


def butterflies(x: Tensor) -> Tensor:
    """Transform rows by a loop over levels of torch operations: what one writes first."""
    size = x.shape[-1]
    half = 1
    result = x
    while half < size:
        pairs = result.view(-1, size // (2 * half), 2, half)
        first, second = pairs.unbind(-2)
        result = torch.stack((first + second, first - second), dim=-2)
        half *= 2
    return (result * size**-0.5).view(x.shape)


def unfused_product(x: Tensor, s1: Tensor, g: Tensor, s2: Tensor) -> Tensor:
    """Compute ``s1 * H(g * H(s2 * x))`` with our transform, one autograd node per operation."""
    return s1 * fwht(g * fwht(s2 * x))


def unfused_noisy_product(x: Tensor, s1: Tensor, mean: Tensor, scale: Tensor, s2: Tensor) -> Tensor:
    """Do the same with a draw of ``g`` for every row, from ``torch.randn``."""
    return unfused_product(x, s1, mean + scale * torch.randn(x.shape), s2)


def mean_field(x: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """Apply a fully factorised Gaussian weight by local reparameterization: two dense products."""
    variance = F.linear(x.square(), (2 * log_scale).exp())
    return F.linear(x, mean) + (variance + 1e-12).sqrt() * torch.randn(variance.shape)
