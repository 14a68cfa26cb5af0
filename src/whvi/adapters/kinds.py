"""Plain layers and their Bayesian twins of the same shape, both ways.

| plain | Bayesian |
|---|---|
| ``nn.Linear``, ``Conv1D`` of transformers (its weight is transposed) | ``WHVILinear`` |
| ``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d`` | ``WHVIConv1d``, ``WHVIConv2d``, ``WHVIConv3d`` |
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whvi.errors import ConfigError
from whvi.layers import WHVIConv1d, WHVIConv2d, WHVIConv3d, WHVILinear
from whvi.layers.conv import RandomConv, WHVIConv
from whvi.layers.linear import RandomAffine, RandomLinear

_CONVOLUTIONS: dict[type[nn.Module], type[WHVIConv]] = {
    nn.Conv1d: WHVIConv1d,
    nn.Conv2d: WHVIConv2d,
    nn.Conv3d: WHVIConv3d,
}
_PLAIN_CONVOLUTIONS: tuple[Any, ...] = tuple(_CONVOLUTIONS)


def is_plain(module: nn.Module) -> bool:
    """Tell whether ``module`` has a Bayesian twin."""
    return isinstance(module, (nn.Linear, *_PLAIN_CONVOLUTIONS)) or is_transposed(module)


def has_plain_forward(module: nn.Module) -> bool:
    """Tell whether a layer of :func:`is_plain` computes what its kind does: a subclass may not."""
    kind = next(
        (k for k in (nn.Linear, *_PLAIN_CONVOLUTIONS) if isinstance(module, k)), type(module)
    )
    return all(
        getattr(type(module), each, None) is getattr(kind, each, None)
        for each in ("forward", "_conv_forward")
    )


def is_transposed(module: nn.Module) -> bool:
    """Tell whether ``module`` is a ``Conv1D`` of transformers: ``y = x W + b``."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def num_axes(plain: nn.Module) -> int:
    """Return how many spatial axes an input has after its channels; 0 for a linear layer."""
    shape: Any = getattr(plain, "kernel_size", ())
    return len(shape)


def plain_weight(plain: nn.Module) -> Tensor:
    """Return the weights with outputs first, as ``nn.Linear`` and ``nn.Conv2d`` have them."""
    weight = plain.weight
    assert isinstance(weight, Tensor)  # of every kind of layer that is taken
    return weight.mT if is_transposed(plain) else weight


def twin_of(plain: Any, *, bias: bool, **options: Any) -> WHVILinear | WHVIConv:
    """Make the Bayesian layer of the same shape, on the same device; half precision is doubled."""
    weight = plain_weight(plain)
    half = weight.dtype in (torch.float16, torch.bfloat16)
    options |= {"device": weight.device, "dtype": torch.float32 if half else weight.dtype}
    if not num_axes(plain):
        return WHVILinear(weight.shape[1], weight.shape[0], bias, **options)
    kind = next(twin for kind, twin in _CONVOLUTIONS.items() if isinstance(plain, kind))
    return kind(
        plain.in_channels, plain.out_channels, plain.kernel_size, plain.stride, plain.padding,
        plain.dilation, plain.groups, bias, plain.padding_mode, **options,
    )  # fmt: skip


@torch.no_grad()
def plain_of(layer: RandomAffine) -> nn.Module:
    """Make the plain layer with the mean weights of a Bayesian one."""
    if layer.batch_shape:
        raise ConfigError(
            f"a layer with batch_shape {layer.batch_shape} holds several models; "
            "only one without replicas becomes a plain layer"
        )
    mean = layer._shaped(layer.matrix.mean)
    plain = _empty_plain(layer, {"device": mean.device, "dtype": mean.dtype})
    plain.weight.copy_(mean)
    if layer.bias_posterior is not None:
        plain.bias.copy_(layer.bias_posterior.mean)
    elif layer.bias is not None:
        plain.bias.copy_(layer.bias)
    trained: nn.Module = plain.train(layer.training)
    return trained


def _empty_plain(layer: RandomAffine, place: Any) -> Any:
    if isinstance(layer, RandomLinear):
        return nn.Linear(layer.in_features, layer.out_features, layer.has_bias, **place)
    assert isinstance(layer, RandomConv)
    window = layer.window
    padding: Any = tuple(before for before, _ in window.padding)
    if any(before != after for before, after in window.padding):
        padding = "same"  # the only way to ask for unequal padding
    return _PLAIN_CONVOLUTIONS[layer.num_axes - 1](
        layer.in_channels, layer.out_channels, window.kernel_size, window.stride, padding,
        window.dilation, layer.groups, layer.has_bias, window.padding_mode, **place,
    )  # fmt: skip
