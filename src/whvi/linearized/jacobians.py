r"""Per-row Jacobians ``J(x) = ∂f(x; θ) / ∂θ`` of a model at its mean weights.

A chain of linear layers and elementwise functions has Jacobians that are products of vectors a
backward pass has anyway (:mod:`whvi.linearized.chain`); any other module takes ``torch.func``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from whvi.functions import batch_shape_of, check_rows, in_mode, row_axis
from whvi.linearized.chain import chain_of, jacobian_of_chain
from whvi.linearized.parameters import ParameterSpace, parameter_space
from whvi.sampling import MeanWeights, sampling


class Jacobian(NamedTuple):
    """Values ``f (*batch_shape, N, O)`` and derivatives ``(*batch_shape, N, O, P)``."""

    values: Tensor
    derivatives: Tensor


def jacobian(model: nn.Module, x: Tensor, space: ParameterSpace | None = None) -> Jacobian:
    """Evaluate ``model`` at its mean weights, and differentiate every output of every row.

    Args:
        model: Any module; one in training mode is evaluated as in ``eval`` mode.
        x: ``(N, ...)`` shared by the replicas, or ``(*batch_shape, N, ...)``.
        space: The parameters ``θ``; ``None``: all that :func:`parameter_space` finds.

    Returns:
        ``f`` and ``J``, in the data type of the model.
    """
    batch_shape = batch_shape_of(model)
    check_rows(x, batch_shape)
    space = parameter_space(model) if space is None else space
    rows = _rows(model, x, batch_shape)
    chain = chain_of(model) if rows.dim() == len(batch_shape) + 2 else None
    with torch.no_grad(), in_mode(model, training=False):
        if chain is None:
            return Jacobian(*jacobian_by_transforms(model, rows, space))
        return Jacobian(*jacobian_of_chain(chain, rows, space.places(model), space.num_parameters))


def jacobian_by_transforms(
    model: nn.Module, x: Tensor, space: ParameterSpace
) -> tuple[Tensor, Tensor]:
    """Return ``f`` and ``J`` by ``vmap(jacrev)`` for rows ``(*batch_shape, N, ...)``.

    Replicas do not see each other, so that the gradient of their sum holds all their gradients.
    Both are differentiable in ``x``.
    """
    axes = len(space.batch_shape)
    tensors = {name: t.detach() for name, t in space.tensors(model).items()}

    def summed(tensors: dict[str, Tensor], row: Tensor) -> tuple[Tensor, Tensor]:
        with sampling(MeanWeights()):
            f = functional_call(model, tensors, (row.unsqueeze(axes),)).squeeze(axes)
        return f.reshape(-1, f.shape[-1]).sum(0), f

    each = vmap(jacrev(summed, has_aux=True), in_dims=(None, axes), out_dims=(0, axes))
    parts, f = each(tensors, x)
    # (N, O, *batch_shape, ...) → (*batch_shape, N, O, size)
    flat = [p.reshape(*p.shape[:2], *space.batch_shape, -1) for p in parts.values()]
    return f, torch.cat(flat, -1).movedim((0, 1), (axes, axes + 1))


def _rows(model: nn.Module, x: Tensor, batch_shape: tuple[int, ...]) -> Tensor:
    """Return ``(*batch_shape, N, ...)`` in the data type of the model."""
    first = next(model.parameters())
    x = x.to(dtype=first.dtype, device=first.device)
    if not batch_shape or row_axis(x, batch_shape):
        return x
    return x.expand(*batch_shape, *x.shape)
