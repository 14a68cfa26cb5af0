r"""Everything that rows say about a linearised model, summed over rows.

With the Jacobians ``J``, slopes ``e = ∂ log p / ∂f`` and curvatures ``R = L Lᵀ`` of the rows and
their whitened Jacobians ``Z = Lᵀ J``:

    gram = Σ JᵀRJ = Σ ZᵀZ,   gradient = Σ Jᵀe,   log_prob = Σ log p(y | f)

As long as there are few outputs ``M`` (rows × outputs) the ``Z`` themselves are kept, ``M × P``;
after that only their sum ``P × P``. Where that is too large, a sketch ``G Ω`` with a narrow
``Ω (P, l)`` gives ``G ≈ BᵀB + diag(d)``, ``B (l, P)``: the Nyström approximation, and the diagonal
of what it leaves. All of them take any number of rows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whvi.errors import DataError
from whvi.likelihoods import Gaussian, Likelihood
from whvi.linearized.curvature import curvature_root, slope
from whvi.linearized.jacobians import jacobian
from whvi.linearized.parameters import ParameterSpace
from whvi.linearized.rows import Rows, blocks

_KERNEL_BYTES = 1 << 28  # of products of whitened Jacobians, K matrices M × M
_SMALLEST_TILE = 256  # columns: below it, leaving out half of a symmetric product does not pay


@dataclass
class Statistics:
    """Sums over rows in float64, with leading ``batch_shape``; one of ``rows``, ``gram`` is there.

    With ``diagonal``, ``gram = rowsᵀ rows + diag(diagonal)`` approximately.
    ``squares`` is ``Σ (y − f)² / σ²`` for constant Gaussian noise, else zero; ``count`` is the
    number of observed outputs, with the weight of their rows.
    """

    rows: Tensor | None  # Z, (*batch_shape, M, P)
    gram: Tensor | None  # (*batch_shape, P, P)
    gradient: Tensor  # (*batch_shape, P)
    log_prob: Tensor  # batch_shape
    squares: Tensor  # batch_shape
    count: float
    diagonal: Tensor | None = None  # (*batch_shape, P)

    def add(self, other: Statistics, max_outputs: int) -> None:
        """Add what other rows say; from ``max_outputs`` outputs on only their sum is kept."""
        self._add_curvature(other, max_outputs)
        self.add_sums(other)

    def add_sums(self, other: Statistics) -> None:
        """Add everything but the curvature."""
        self.gradient = self.gradient + other.gradient
        self.log_prob = self.log_prob + other.log_prob
        self.squares = self.squares + other.squares
        self.count += other.count

    def _add_curvature(self, other: Statistics, max_outputs: int) -> None:
        if self.rows is not None and other.rows is not None:
            joined = torch.cat([self.rows, other.rows], -2)
            if joined.shape[-2] < max_outputs:
                self.rows = joined
                return
        if self.rows is not None:
            self.gram, self.rows = gram_of(self.rows), None
        assert self.gram is not None
        if other.rows is None:
            assert other.gram is not None
            self.gram += other.gram
        else:
            add_gram(self.gram, other.rows)

    def full_gram(self) -> Tensor:
        """Return ``G``, whichever form it is kept in."""
        if self.gram is not None:
            return self.gram
        assert self.rows is not None
        return gram_of(self.rows)

    def gram_times(self, v: Tensor) -> Tensor:
        """Return ``G v`` for ``v (*batch_shape, P)``."""
        if self.rows is not None:
            return (self.rows.mT @ (self.rows @ v.unsqueeze(-1))).squeeze(-1)
        assert self.gram is not None
        return (self.gram @ v.unsqueeze(-1)).squeeze(-1)

    def replica(self, index: tuple[int, ...]) -> Statistics:
        """Return the statistics of one replica."""
        own: dict[str, Any] = {
            name: v[index] for name, v in vars(self).items() if isinstance(v, Tensor)
        }
        return replace(self, **own)

    def scale(self, weight: float) -> None:
        """Let every row count ``weight`` times, in place."""
        if self.rows is not None:
            self.rows.mul_(weight**0.5)
        for value in (self.gram, self.diagonal, self.gradient, self.log_prob, self.squares):
            if value is not None:
                value.mul_(weight)
        self.count *= weight


def gram_of(rows: Tensor) -> Tensor:
    """Return ``ZᵀZ``."""
    gram = rows.new_zeros(*rows.shape[:-2], rows.shape[-1], rows.shape[-1])
    add_gram(gram, rows)
    return gram


def add_gram(gram: Tensor, rows: Tensor) -> None:
    """Add ``ZᵀZ`` to ``gram`` in place, computing one triangle of tiles only."""
    matrices = (gram.view(-1, *gram.shape[-2:]), rows.reshape(-1, *rows.shape[-2:]))
    for matrix, Z in zip(*matrices, strict=True):
        _add_tile(matrix, Z)


def _add_tile(gram: Tensor, Z: Tensor) -> None:
    size = gram.shape[-1]
    if size <= _SMALLEST_TILE:
        gram.addmm_(Z.mT, Z)
        return
    half = size // 2
    _add_tile(gram[:half, :half], Z[:, :half])
    _add_tile(gram[half:, half:], Z[:, half:])
    gram[:half, half:].addmm_(Z[:, :half].mT, Z[:, half:])
    gram[half:, :half] = gram[:half, half:].mT


def statistics_of(
    model: nn.Module, likelihood: Likelihood, space: ParameterSpace, data: Rows, max_outputs: int
) -> Statistics:
    """Linearise the model at the rows of one block."""
    x, y = data
    f, J = (part.double() for part in jacobian(model, x, space))
    log_prob, e = slope(likelihood, f, y)
    root = curvature_root(likelihood, f)
    gradient = (e.flatten(-2).unsqueeze(-2) @ J.flatten(-3, -2)).squeeze(-2)
    Z = (J.mul_(root) if f.shape[-1] == 1 else root.mT @ J).flatten(-3, -2)
    constant = isinstance(likelihood, Gaussian)
    deviations = e / root.diagonal(dim1=-2, dim2=-1) if constant else torch.zeros_like(e)
    keep = Z.shape[-2] < max_outputs
    return Statistics(
        Z if keep else None,
        None if keep else gram_of(Z),
        gradient,
        log_prob.sum(-1),
        deviations.square().sum((-2, -1)),
        float(e.shape[-2] * likelihood.num_outputs),
    )


def stream(
    model: nn.Module,
    likelihood: Likelihood,
    space: ParameterSpace,
    data: Iterable[Rows],
    *,
    block_rows: int,
    keep_rows: bool = False,
) -> Statistics:
    """Sum over all rows of ``data``, ``block_rows`` at a time.

    ``keep_rows`` keeps the whitened Jacobians however many there are.
    """
    total: Statistics | None = None
    most = math.isqrt(_KERNEL_BYTES // (8 * len(space.sizes)))  # their products are kept, too
    max_outputs = sys.maxsize if keep_rows else min(most, space.num_parameters)
    for block in blocks(data, space.batch_shape, block_rows):
        part = statistics_of(model, likelihood, space, block, max_outputs)
        if total is None:
            total = part
        else:
            total.add(part, max_outputs)
    return _not_none(total)


def _not_none(total: Statistics | None) -> Statistics:
    if total is None:
        raise DataError("there are no rows to linearise at; give at least one")
    return total


def stream_low_rank(
    model: nn.Module,
    likelihood: Likelihood,
    space: ParameterSpace,
    data: Iterable[Rows],
    *,
    block_rows: int,
    rank: int,
) -> Statistics:
    """Sum over all rows like :func:`stream`, with ``G ≈ BᵀB + diag(d)``, ``B (rank, P)``.

    ``B`` is the Nyström approximation ``GΩ (ΩᵀGΩ)⁻¹ ΩᵀG``, never more than ``G``, from one pass.
    """
    generator = torch.Generator().manual_seed(0)  # the sketch is no part of what is random
    draws = torch.randn(space.num_parameters, rank, dtype=torch.float64, generator=generator)
    omega = torch.linalg.qr(draws).Q.to(next(model.parameters()).device)
    shape = (*space.batch_shape, space.num_parameters)
    sketch = omega.new_zeros(math.prod(space.batch_shape), *omega.shape)
    diagonal = omega.new_zeros(shape)
    total: Statistics | None = None
    for block in blocks(data, space.batch_shape, block_rows):
        part = statistics_of(model, likelihood, space, block, sys.maxsize)
        Z, part.rows = part.rows, None
        assert Z is not None
        stacked = Z.reshape(-1, *Z.shape[-2:])
        sketch.baddbmm_(stacked.mT, stacked @ omega)
        diagonal += Z.square().sum(-2)
        if total is None:
            total = part
        else:
            total.add_sums(part)
    total = _not_none(total)
    total.rows = nystrom(sketch.view(*shape, rank), omega)
    total.diagonal = (diagonal - total.rows.square().sum(-2)).clamp_min_(0.0)
    return total


def nystrom(sketch: Tensor, omega: Tensor) -> Tensor:
    """Return ``B (..., l, P)`` with ``BᵀB = Y (ΩᵀY)⁺ Yᵀ`` for ``Y = GΩ (..., P, l)``."""
    values, vectors = torch.linalg.eigh(omega.mT @ sketch)
    usable = values > 1e-12 * values.amax(-1, keepdim=True)  # fewer rows than columns of Ω
    weights = torch.where(usable, values, torch.inf).rsqrt()
    factor: Tensor = (vectors * weights.unsqueeze(-2)).mT @ sketch.mT
    return factor
