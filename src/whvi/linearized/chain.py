r"""Jacobians of a chain of layers by one backward pass per output, without autograd.

For a structured layer ``u = H(s2 x)``, ``t = H(g u)``, ``y = s1 t + b`` and the derivative ``ȳ`` of
an output of the network with respect to ``y``, with ``v̄ = H(s1 ȳ)`` and ``w̄ = H(g v̄)``:

    ∂/∂s1 = ȳ t      ∂/∂g = v̄ u      ∂/∂s2 = w̄ x      ∂/∂b = ȳ      x̄ = s2 w̄ (summed over blocks)

Nothing is summed over rows, so that these products are the Jacobian of every row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn import functional

from whvi.functional import dense_matrix
from whvi.layers import MCDropout, MeanFieldLinear, WHVILinear
from whvi.layers.sines import Sine, Tile
from whvi.posteriors import PlanarFlow, Posterior
from whvi.sampling import MeanWeights, sampling
from whvi.transforms import fwht

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
        self.layer, self.plan = layer, layer.matrix.plan
        matrix = layer.matrix
        vectors = (matrix.s1, matrix.posterior.loc, matrix.s2)
        # (*batch_shape, 1, K, D)
        self.s1, self.g, self.s2 = (
            v.detach().unflatten(-1, self.plan.vector_shape).unsqueeze(-3) for v in vectors
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        missing = self.plan.block_size - self.plan.in_features
        x = (functional.pad(x, (0, missing)) if missing else x).unsqueeze(-2)
        u = fwht(self.s2 * x)
        t = fwht(self.g * u)
        y = (self.s1 * t).flatten(-2)[..., : self.plan.out_features]
        return _plus_bias(y, self.layer), (x, u, t)

    def backward(self, kept: Any, grad: Tensor, write: Write) -> Tensor:
        x, u, t = kept
        matrix = self.layer.matrix
        write(_bias(self.layer), lambda J: J.copy_(grad))
        missing = self.plan.vector_size - self.plan.out_features
        grad = functional.pad(grad, (0, missing)) if missing else grad
        grad = grad.unflatten(-1, self.plan.vector_shape)
        v = fwht(grad * self.s1)
        w = fwht(v * self.g)
        write(matrix.s1, lambda J: torch.mul(grad, t, out=self._blocks(J)))
        write(matrix.posterior.loc, lambda J: torch.mul(v, u, out=self._blocks(J)))
        write(matrix.s2, lambda J: torch.mul(w, x, out=self._blocks(J)))
        inputs: Tensor = (w * self.s2).sum(-2)[..., : self.plan.in_features]
        return inputs

    def _blocks(self, J: Tensor) -> Tensor:
        blocks: Tensor = J.unflatten(-1, self.plan.vector_shape)
        return blocks


@final
class Dense(Link):
    """``y = W x + b`` whose ``W`` is a parameter, row by row."""

    def __init__(self, layer: nn.Linear | MeanFieldLinear, weight: nn.Parameter) -> None:
        self.layer, self.parameter = layer, weight
        shape = (layer.out_features, layer.in_features)
        leading = weight.shape[:-1] if isinstance(layer, MeanFieldLinear) else ()
        self.weight = weight.detach().reshape(*leading, *shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
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
        return _plus_bias(x @ self.weight.mT, self.layer), x

    def backward(self, kept: Any, grad: Tensor, write: Write) -> Tensor:
        matrix = self.layer.matrix
        write(_bias(self.layer), lambda J: J.copy_(grad))
        outer = grad * kept  # one of them has one feature
        parameters = (matrix.s1, matrix.posterior.loc, matrix.s2)
        for parameter, derivative in zip(parameters, self.derivatives, strict=True):
            write(parameter, partial(_copy_product, outer, derivative))
        return grad @ self.weight


def _copy_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a @ b)


# ---- from modules to links -----------------------------------------------------------------------


def chain_of(model: nn.Module) -> list[Link] | None:
    """Return the links of a plain ``nn.Sequential``, or ``None`` for anything they cannot follow.

    A module used twice would need the sum of two Jacobians; hooks could do anything.
    """
    modules = _flat(model)
    if modules is None or len({id(m) for m in modules}) < len(modules):
        return None
    links = [_link_of(module) for module in modules]
    return None if any(link is None for link in links) else [link for link in links if link]


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
        return Dense(module, module.weight)  # type: ignore[arg-type]
    if isinstance(module, WHVILinear | MeanFieldLinear) and _mean_is_loc(module):
        if isinstance(module, MeanFieldLinear):
            return Dense(module, module.matrix.posterior.loc)
        return (Column if module.matrix.plan.is_column else Blocks)(module)
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
