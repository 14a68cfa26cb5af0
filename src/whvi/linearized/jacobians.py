r"""Per-row Jacobians ``J(x) = ∂f(x; θ) / ∂θ`` of a model at its mean weights.

A chain of linear layers and elementwise functions has Jacobians that are products of vectors a
backward pass has anyway (:mod:`whvi.linearized.chain`); any other module takes ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from whvi.errors import ShapeError
from whvi.functions import (
    Inputs,
    batch_shape_of,
    check_rows,
    count_rows,
    in_mode,
    map_tensors,
    row_axis,
    values_of,
)
from whvi.linearized.chain import chain_of, jacobian_of_chain
from whvi.linearized.parameters import ParameterSpace, parameter_space
from whvi.sampling import MeanWeights, sampling


class Jacobian(NamedTuple):
    """Values ``f (*batch_shape, N, O)`` and derivatives ``(*batch_shape, N, O, P)``."""

    values: Tensor
    derivatives: Tensor


def jacobian(model: nn.Module, x: Inputs, space: ParameterSpace | None = None) -> Jacobian:
    """Evaluate ``model`` at its mean weights, and differentiate every output of every row.

    Args:
        model: Any module; one in training mode is evaluated as in ``eval`` mode.
        x: ``(N, ...)`` shared by the replicas, or ``(*batch_shape, N, ...)``; a tuple or mapping
            of tensors is passed on as ``model(*x)`` or ``model(**x)``.
        space: The parameters ``θ``; ``None``: all that :func:`parameter_space` finds.

    Returns:
        ``f`` and ``J``, in the data type of the model.
    """
    batch_shape = batch_shape_of(model)
    check_rows(x, batch_shape)
    space = parameter_space(model) if space is None else space
    first = next(model.parameters())
    with torch.no_grad(), in_mode(model, training=False):
        if isinstance(x, Tensor) and x.dim() == row_axis(x, batch_shape) + 2:
            chain = chain_of(model)
            if chain is not None:
                rows = _placed(x.to(first.dtype), first, batch_shape)
                places = space.places(model)
                return Jacobian(*jacobian_of_chain(chain, rows, places, space.num_parameters))
        each = map_tensors(partial(_placed, like=first, batch_shape=batch_shape), x)
        return Jacobian(*jacobian_by_transforms(model, each, space))


def jacobian_by_transforms(
    model: nn.Module, x: Inputs, space: ParameterSpace
) -> tuple[Tensor, Tensor]:
    """Return ``f`` and ``J`` by ``vmap(jacrev)`` for rows ``(*batch_shape, N, ...)``.

    Replicas do not see each other, so that the gradient of their sum holds all their gradients.
    Both are differentiable in ``x``. Rows of several tensors are taken one by one: models of such
    rows look at the values of their masks, which ``vmap`` cannot follow.
    """
    axes = len(space.batch_shape)
    tensors = {name: t.detach() for name, t in space.tensors(model).items()}

    def summed(tensors: dict[str, Tensor], row: Inputs) -> tuple[Tensor, Tensor]:
        f = _values_at(model, tensors, map_tensors(lambda t: t.unsqueeze(axes), row), axes)
        return f.reshape(-1, f.shape[-1]).sum(0), f

    if isinstance(x, Tensor):
        derive = jacrev(summed, has_aux=True)
        parts, f = vmap(derive, in_dims=(None, axes), out_dims=(0, axes))(tensors, x)
    else:
        derive = jacrev(summed, has_aux=True, chunk_size=1)  # one output at a time, without vmap

        def at(row: int) -> tuple[dict[str, Tensor], Tensor]:
            found: tuple[dict[str, Tensor], Tensor] = derive(
                tensors, map_tensors(lambda t: t.select(axes, row), x)
            )
            return found

        each = [at(row) for row in range(count_rows(x, space.batch_shape))]
        parts = {name: torch.stack([part[name] for part, _ in each]) for name in tensors}
        f = torch.stack([values for _, values in each], axes)
    # (N, O, *batch_shape, ...) → (*batch_shape, N, O, size)
    flat = [p.reshape(*p.shape[:2], *space.batch_shape, -1) for p in parts.values()]
    return f, torch.cat(flat, -1).movedim((0, 1), (axes, axes + 1))


def _values_at(model: nn.Module, tensors: dict[str, Tensor], row: Inputs, axes: int) -> Tensor:
    """Return ``f (*batch_shape, O)`` of one row for the given parameters, at mean weights."""
    args = (row,) if isinstance(row, Tensor) else () if isinstance(row, Mapping) else tuple(row)
    options = dict(row) if isinstance(row, Mapping) else {}
    with sampling(MeanWeights()):
        f = values_of(functional_call(model, tensors, args, options))
    if f.dim() != axes + 2:
        raise ShapeError(
            "the model must return (*batch_shape, N, outputs), one row of outputs for every row; "
            f"for N = 1 it returned {tuple(f.shape)}"
        )
    return f.squeeze(axes)


def _placed(x: Tensor, like: Tensor, batch_shape: tuple[int, ...]) -> Tensor:
    """Return ``(*batch_shape, N, ...)`` on the device of the model; ids stay integers."""
    x = x.to(device=like.device, dtype=like.dtype if x.is_floating_point() else x.dtype)
    if not batch_shape or row_axis(x, batch_shape):
        return x
    return x.expand(*batch_shape, *x.shape)
