"""The parameters that a linearised model has: one vector ``θ`` per replica, made of tensors."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whvi.errors import ConfigError, ShapeError
from whvi.functions import batch_shape_of
from whvi.layers.protocol import BayesianLayer
from whvi.posteriors import Posterior
from whvi.priors import Prior


class ParameterSpace(NamedTuple):
    """Which tensors of a model make up ``θ``, in which order; counts are for one replica."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    batch_shape: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """``P``."""
        return sum(self.sizes)

    @property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in ``θ``."""
        ends = list(accumulate(self.sizes))
        pairs = zip(self.names, self.sizes, ends, strict=True)
        return {name: slice(end - size, end) for name, size, end in pairs}

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the tensors themselves by name."""
        found = dict(model.named_parameters())
        return {name: found[name] for name in self.names}

    def places(self, model: nn.Module) -> dict[int, slice]:
        """Return where each tensor, by its ``id``, lies in ``θ``."""
        slices = self.slices
        return {id(tensor): slices[name] for name, tensor in self.tensors(model).items()}

    def vector(self, model: nn.Module) -> Tensor:
        """Return ``θ`` in float64, shape ``(*batch_shape, P)``."""
        parts = self.tensors(model).values()
        flat = [part.detach().reshape(*self.batch_shape, -1) for part in parts]
        return torch.cat(flat, -1).double()

    def spread(self, values: Tensor) -> Tensor:
        """Repeat ``(..., K)``, one value per tensor, to ``(..., P)``."""
        sizes = torch.tensor(self.sizes, device=values.device)
        return values.repeat_interleave(sizes, -1)

    def sums(self, values: Tensor) -> Tensor:
        """Sum ``(..., P)`` over each tensor: ``(..., K)``."""
        return torch.stack([part.sum(-1) for part in values.split(self.sizes, -1)], -1)


def parameter_space(model: nn.Module, *, last_layer: bool = False) -> ParameterSpace:
    """Return the trainable tensors that ``model`` has at its mean weights.

    Of a posterior only its location counts, and of a prior nothing: the others do not change the
    mean weights. ``last_layer`` keeps the tensors of the module that holds the last of them.
    """
    batch_shape = batch_shape_of(model)
    left_out = _without_effect(model)
    found = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in left_out
    }
    if last_layer and found:
        owner = _last_owner(model, [*found])
        found = {name: p for name, p in found.items() if name.startswith(owner)}
    if not found:
        raise ConfigError("the model has no trainable parameters to linearise in")
    axes = len(batch_shape)
    for name, parameter in found.items():
        if tuple(parameter.shape[:axes]) != batch_shape:
            raise ShapeError(
                f"parameter {name} has shape {tuple(parameter.shape)}, but the Bayesian layers "
                f"have batch_shape {batch_shape}: every replica needs parameters of its own"
            )
    sizes = tuple(parameter[(0,) * axes].numel() for parameter in found.values())
    return ParameterSpace(tuple(found), sizes, batch_shape)


def _without_effect(model: nn.Module) -> set[int]:
    """Spreads of posteriors and parameters of priors, by ``id``."""
    found: set[int] = set()
    for module in model.modules():
        if isinstance(module, Posterior):
            found |= {id(p) for name, p in module.named_parameters() if name != "loc"}
        elif isinstance(module, Prior):
            found |= {id(p) for p in module.parameters()}
    return found


def _last_owner(model: nn.Module, names: list[str]) -> str:
    """Return the prefix of the innermost layer that holds the last tensor."""
    prefix, module = "", model
    while not isinstance(module, BayesianLayer) and not module._parameters:
        child = names[-1][len(prefix) :].partition(".")[0]
        prefix, module = f"{prefix}{child}.", module.get_submodule(child)
    return prefix
