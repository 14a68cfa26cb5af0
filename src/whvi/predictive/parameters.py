"""Checks of what predictive distributions are made from: targets and parameters of components."""

from __future__ import annotations

import torch
from torch import Tensor

from whvi.errors import DataError, NumericalError, ShapeError


def align_targets(
    y: Tensor, batch_shape: tuple[int, ...], num_rows: int, num_outputs: int
) -> Tensor:
    """View targets as ``(..., 1, N, O)``, broadcastable with function values ``(*batch, S, N, O)``.

    Accepts ``(*batch_shape, N, O)`` and ``(N, O)`` (shared by all replicas), and for one output
    also ``(*batch_shape, N)`` and ``(N,)``. Any other shape raises :class:`ShapeError`.
    """
    shape = tuple(y.shape)
    if shape == (*batch_shape, num_rows, num_outputs) or shape == (num_rows, num_outputs):
        return y.unsqueeze(-3)
    if num_outputs == 1 and (shape == (*batch_shape, num_rows) or shape == (num_rows,)):
        return y.unsqueeze(-1).unsqueeze(-3)
    expected = [(*batch_shape, num_rows, num_outputs), (num_rows, num_outputs)]
    if num_outputs == 1:
        expected += [(*batch_shape, num_rows), (num_rows,)]
    names = " or ".join(str(option) for option in dict.fromkeys(expected))
    raise ShapeError(
        f"targets have shape {shape}, but function values have {num_rows} rows, {num_outputs} "
        f"output(s) and batch_shape {tuple(batch_shape)}: reshape the targets to {names}"
    )


def wide(**parameters: Tensor) -> list[Tensor]:
    """Expand parameters to the shape of the first, in float64; raise if any is not finite."""
    for name, p in parameters.items():
        bad = ~torch.isfinite(p.detach())
        if bool(bad.any()):
            where = tuple(bad.nonzero()[0].tolist())
            raise NumericalError(
                f"predictive parameter {name} holds {int(bad.sum())} values that are not finite "
                f"(first: {p[where].item()} at index {where}); the network's outputs overflowed"
            )
    first, *others = parameters.values()
    try:
        return [first.double(), *(p.double().expand(first.shape) for p in others)]
    except RuntimeError as error:
        shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        raise ShapeError(f"all parameters must fit the shape of the first: {shapes}") from error


def check_range(name: str, p: Tensor, possible: Tensor, range_: str) -> None:
    """Refuse a parameter that is not ``possible`` everywhere."""
    if not bool(possible.all()):
        raise DataError(f"{name} must be {range_}, got {p.min().item()}")
