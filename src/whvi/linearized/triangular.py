"""Cholesky factors of precision matrices, and their inverses."""

from __future__ import annotations

import torch
from torch import Tensor

from whvi.errors import NumericalError

_SMALL = 128  # below it a triangle is inverted by one solve


def cholesky(matrix: Tensor) -> Tensor:
    """Return the lower factor; raise :class:`~whvi.errors.NumericalError` if there is none."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    if bool(failed.any()) or not bool(diagonal.isfinite().all()):
        size = matrix.shape[-1]
        raise NumericalError(
            f"the precision of {size} values is not positive definite in float64; raise "
            "prior_precision, or check the model for values that are not finite"
        )
    return factor


def inverse_of_triangle(factor: Tensor) -> Tensor:
    """Return ``L⁻¹`` of one lower triangle in a third of the work of solving for all columns.

    By halves: with ``L = [[A, 0], [B, C]]`` it is ``[[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]``.
    """
    inverse = torch.zeros_like(factor)
    _invert_into(inverse, factor)
    return inverse


def _invert_into(inverse: Tensor, factor: Tensor) -> None:
    size = len(factor)
    if size <= _SMALL:
        unit = torch.eye(size, dtype=factor.dtype, device=factor.device)
        inverse.copy_(torch.linalg.solve_triangular(factor, unit, upper=False))
        return
    half = size // 2
    A, B, C = factor[:half, :half], factor[half:, :half], factor[half:, half:]
    _invert_into(inverse[:half, :half], A)
    _invert_into(inverse[half:, half:], C)
    below = torch.linalg.solve_triangular(A, B, upper=False, left=False)
    inverse[half:, :half] = torch.linalg.solve_triangular(C, below.neg_(), upper=False)
