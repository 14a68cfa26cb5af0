r"""Jacobians of a chain of layers by one backward pass per output, without autograd.

With the derivative ``ȳ`` of an output of the network with respect to the output of a layer

    dense, ``y = W x + b``:                 ∂/∂W = ȳ xᵀ      ∂/∂b = ȳ     x̄ = Wᵀ ȳ
    structured (``whvi._kernel.jacobian``): ∂/∂s1 = ȳ t      ∂/∂g = v̄ u   ∂/∂s2 = w̄ x    x̄ = s2 w̄
    elementwise, ``y = φ(x)``:              x̄ = φ'(x) ȳ

Nothing is summed over rows, so that these products are the Jacobian of every row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn import functional

from whvi._checks import check_last_dim
from whvi._kernel.jacobian import row_gradients
from whvi._kernel.product import block_linear
from whvi.functional import dense_matrix
from whvi.layers import MCDropout, MeanFieldLinear, WHVILinear
from whvi.layers.grid import GridMatrix
from whvi.layers.sines import Sine, Tile
from whvi.posteriors import PlanarFlow, Posterior
from whvi.priors import Prior
from whvi.sampling import MeanWeights, sampling
from whvi.transforms import Hadamard

Fill = Callable[[Tensor], Any]
Write = Callable[[nn.Parameter | None, Fill], None]
"""``write(parameter, fill)`` calls ``fill(J of that parameter)`` if the parameter is asked for."""


class Link(ABC):
    """One module of a chain."""

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """Return the output for ``x (*batch_shape, N, in)`` and what the way back needs."""

    @abstractmethod
    def backward(self, kept: Any, grad: Tensor, write: Write) -> Tensor:
        """Write the Jacobians of the parameters; return the derivative of the input."""


@final
class Elementwise(Link):
    """``y = φ(x)``; ``slope(x, y)`` is ``φ'``."""

    def __init__(self, module: nn.Module, slope: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.module, self.slope = module, slope

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        y = self.module(x)
        return y, self.slope(x, y)

    def backward(self, kept: Tensor, grad: Tensor, write: Write) -> Tensor:
        return grad * kept


@final
class Copies(Link):
    """Features repeated up to a width."""

    def __init__(self, module: Tile) -> None:
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return self.module(x), x.shape[-1]

    def backward(self, kept: Any, grad: Tensor, write: Write) -> Tensor:
        missing = -grad.shape[-1] % kept
        copies: Tensor = functional.pad(grad, (0, missing)).unflatten(-1, (-1, kept))
        return copies.sum(-2)


@final
class Blocks(Link):
    """A structured layer made of ``K`` blocks of size ``D``."""

    def __init__(self, layer: WHVILinear) -> None:
        self.layer, self.plan, matrix = layer, layer.matrix.plan, layer.matrix
        self.parameters = (matrix.s1, matrix.posterior.loc, matrix.s2)
        s1, g, s2 = (parameter.detach() for parameter in self.parameters)
        self.vectors = (s1, g, s2)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        check_last_dim("input", x, self.layer.in_features)
        bias = _bias(self.layer)
        return block_linear(x, *self.vectors, None if bias is None else bias.detach(), self.plan), x

    def backward(self, kept: Tensor, grad: Tensor, write: Write) -> Tensor:
        write(_bias(self.layer), lambda J: J.copy_(grad))
        inputs, *made = row_gradients(kept, *self.vectors, grad, self.plan)
        for parameter, derivative in zip(self.parameters, made, strict=True):
            write(parameter, partial(_copy, derivative.flatten(-2)))
        return inputs


@final
class Dense(Link):
    """``y = W x + b`` whose ``W`` is a parameter, row by row."""

    def __init__(self, layer: nn.Linear | MeanFieldLinear, weight: nn.Parameter) -> None:
        self.layer, self.parameter = layer, weight
        shape = (layer.out_features, layer.in_features)
        leading = weight.shape[:-1] if isinstance(layer, MeanFieldLinear) else ()
        self.weight = weight.detach().reshape(*leading, *shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        check_last_dim("input", x, self.layer.in_features)
        return _plus_bias(x @ self.weight.mT, self.layer), x

    def backward(self, kept: Any, grad: Tensor, write: Write) -> Tensor:
        shape = self.weight.shape[-2:]
        write(_bias(self.layer), lambda J: J.copy_(grad))
        outer = (grad.unsqueeze(-1), kept.unsqueeze(-2))
        write(self.parameter, lambda J: torch.mul(*outer, out=J.unflatten(-1, shape)))
        return grad @ self.weight


@final
class Column(Link):
    """A structured layer with one input or one output: its ``n`` weights are part of ``vec(W)``.

    ``∂f/∂θ = (ȳ ⊗ x) ∂vec(W)/∂θ``, and the second factor is the same for all rows.
    """

    def __init__(self, layer: WHVILinear) -> None:
        self.layer, matrix = layer, layer.matrix
        self.weight = matrix.mean.detach()
        vectors = [v.detach() for v in (matrix.s1, matrix.posterior.loc, matrix.s2)]

        def weights(s1: Tensor, g: Tensor, s2: Tensor) -> Tensor:
            return dense_matrix(s1, g, s2).flatten()[: matrix.plan.num_weights]

        each = jacrev(weights, argnums=(0, 1, 2))
        for _ in layer.batch_shape:
            each = vmap(each)
        self.derivatives = each(*vectors)  # of vec(W), (*batch_shape, n, D) each

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        check_last_dim("input", x, self.layer.in_features)
        return _plus_bias(x @ self.weight.mT, self.layer), x

    def backward(self, kept: Any, grad: Tensor, write: Write) -> Tensor:
        matrix = self.layer.matrix
        write(_bias(self.layer), lambda J: J.copy_(grad))
        outer = grad * kept  # one of them has one feature
        parameters = (matrix.s1, matrix.posterior.loc, matrix.s2)
        for parameter, derivative in zip(parameters, self.derivatives, strict=True):
            write(parameter, partial(_copy_product, outer, derivative))
        return grad @ self.weight


def _copy(source: Tensor, out: Tensor) -> None:
    out.copy_(source)


def _copy_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a @ b)


# ---- from modules to links -----------------------------------------------------------------------


def chain_of(model: nn.Module) -> list[Link] | None:
    """Return the links of a plain ``nn.Sequential``, or ``None`` for anything they cannot follow.

    A module or parameter used twice would need the sum of two Jacobians; hooks could do anything.
    """
    modules = _flat(model)
    if modules is None or _has_twice(modules) or _has_twice(p for m in modules for p in _own(m)):
        return None
    links = [_link_of(module) for module in modules]
    return None if any(link is None for link in links) else [link for link in links if link]


def _own(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module; several layers may share a prior."""
    for part in module.modules():
        if not isinstance(part, Prior):
            yield from (p for p in part._parameters.values() if p is not None)


def _has_twice(things: Iterable[object]) -> bool:
    ids = [id(thing) for thing in things]
    return len({*ids}) < len(ids)


def _flat(model: nn.Module) -> list[nn.Module] | None:
    """List the modules of nested sequences in the order of evaluation."""
    if model._forward_hooks or model._forward_pre_hooks or model._backward_hooks:
        return None
    if type(model) is not nn.Sequential:
        return [model]
    parts = [_flat(child) for child in model]
    return None if None in parts else [module for part in parts for module in part or []]


def _link_of(module: nn.Module) -> Link | None:
    kind = type(module)
    if kind in _SLOPES:
        return Elementwise(module, _SLOPES[kind])
    if isinstance(module, Tile):
        return Copies(module)
    if kind is nn.Linear:
        return Dense(module, module.weight)  # type: ignore[arg-type]  # torch says it is a tensor
    if isinstance(module, WHVILinear | MeanFieldLinear) and _mean_is_loc(module):
        if isinstance(module, MeanFieldLinear):
            return Dense(module, module.matrix.posterior.loc)
        matrix = module.matrix
        if not isinstance(matrix, GridMatrix) and isinstance(matrix.mixing, Hadamard):
            return (Column if matrix.plan.is_column else Blocks)(module)
    return None


_SLOPES: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda x, y: (x > 0).to(x.dtype),
    nn.Tanh: lambda x, y: 1 - y.square(),
    Sine: lambda x, y: Sine.SCALE * x.cos(),
    nn.Identity: lambda x, y: torch.ones_like(x),
    MCDropout: lambda x, y: torch.ones_like(x),  # mean weights keep everything
}


def _mean_is_loc(layer: WHVILinear | MeanFieldLinear) -> bool:
    posteriors: list[Posterior | None] = [layer.matrix.posterior, layer.bias_posterior]
    return not any(isinstance(posterior, PlanarFlow) for posterior in posteriors)


def _bias(layer: Any) -> nn.Parameter | None:
    """Return the parameter that is the mean of the bias."""
    if isinstance(layer, nn.Linear) or layer.bias_posterior is None:
        parameter: nn.Parameter | None = layer._parameters["bias"]
        return parameter
    location: nn.Parameter = layer.bias_posterior.loc
    return location


def _plus_bias(y: Tensor, layer: Any) -> Tensor:
    bias = _bias(layer)
    return y if bias is None else y + bias.detach().unsqueeze(-2)


# ---- the passes ----------------------------------------------------------------------------------


def jacobian_of_chain(
    chain: Sequence[Link], x: Tensor, places: dict[int, slice], num_parameters: int
) -> tuple[Tensor, Tensor]:
    """Return ``f`` and ``J`` for rows ``(*batch_shape, N, in)``.

    Args:
        chain: From :func:`chain_of`.
        x: The rows.
        places: Where each parameter, by ``id``, lies in ``θ``; others are held fixed.
        num_parameters: ``P``.
    """
    kept = []
    with sampling(MeanWeights()):
        for link in chain:
            x, keep = link.forward(x)
            kept.append(keep)
    J = x.new_empty(*x.shape, num_parameters)
    for output in range(x.shape[-1]):
        grad = torch.zeros_like(x)
        grad[..., output] = 1
        write = partial(_write, J[..., output, :], places)
        for link, keep in zip(reversed(chain), reversed(kept), strict=True):
            grad = link.backward(keep, grad, write)
    return x, J


def _write(J: Tensor, places: dict[int, slice], parameter: nn.Parameter | None, fill: Fill) -> None:
    where = places.get(id(parameter))
    if where is not None:
        fill(J[..., where])
