"""Where batches come from: tensors in memory, or any iterable of ``(x, y)``.

The order of rows in memory is a pure function of (seed + replica, epoch), so that a resumed run
sees the same batches. A source yields batches from any given step on.

With weights the objective is ``Σ_i w_i E[log p(y_i | f)] − KL``. Of ``n`` rows of mean weight
``w̄``, row ``i`` occurs ``w_i / w̄`` times in an epoch, rounded up or down (:func:`weighted_rows`),
and batches count for ``N = Σ_i w_i`` data. Nothing else changes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import cast, final

import torch
from torch import Tensor

from whvi._checks import check_finite, check_positive_int
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.functions import check_rows, map_tensors, row_axis, target_axis
from whvi.training.config import seeded_generator
from whvi.training.distributed import Ranks
from whvi.training.state import TrainingState

# The rows of several steps are looked up at a time, as a call costs more than a few rows.
_MOST_STEPS, _MOST_NUMBERS = 32, 1 << 18

Batch = tuple[Tensor, Tensor]
WeightedBatch = tuple[Tensor, Tensor, Tensor]
"""``(x, y, weights)``."""


def epoch_order(num_rows: int, seed: int, epoch: int, ends: Tensor | None = None) -> Tensor:
    """Return the rows of ``epoch`` in their order: a pure function of its arguments.

    Without weights it is a permutation; ``ends``: see :func:`weighted_rows`.
    """
    generator = seeded_generator("order", seed, epoch)
    order = torch.randperm(num_rows, generator=generator)
    return order if ends is None else weighted_rows(ends, generator)[order]


def weighted_rows(ends: Tensor, generator: torch.Generator) -> Tensor:
    """Draw ``n`` sorted row numbers in proportion to weights, by systematic resampling.

    The rows lie end to end, each as long as its weight over the mean; the draws are the rows at
    ``u, u + 1, …, u + n − 1`` with one uniform ``u``.

    Args:
        ends: Where each row ends, ``(n,)`` in float64: from 0 to ``n``.
        generator: Source of ``u``.
    """
    u = torch.rand((), generator=generator).double()  # of 24 bits: u + n − 1 stays below n
    points = torch.arange(len(ends), dtype=torch.float64) + u
    return torch.searchsorted(ends, points, right=True)


@final
class TensorBatches:
    """Minibatches of tensors in memory, each replica in its own order.

    ``x`` and ``y`` lead with ``(N,)``, shared by the replicas, or with ``(*batch_shape, N)``.
    Replica ``r`` uses ``seed + r``; each rank gets its own ``batch_size / world_size`` rows. Rows
    left over when ``batch_size`` does not divide ``N`` wait for the next epoch, so all batches
    have the same size and every row the same chance, or one in proportion to its weight.

    Attributes:
        num_data: ``N`` of the objective: rows, or the sum of the weights (per replica, if each
            has its own weights).
    """

    num_data: int | Tensor

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        batch_shape: tuple[int, ...],
        batch_size: int,
        seed: int,
        ranks: Ranks,
        weights: Tensor | None = None,
    ) -> None:
        check_rows(x, batch_shape)
        x_axis = row_axis(x, batch_shape)
        self.num_data = self.num_rows = x.shape[x_axis]
        if self.num_rows == 0:
            raise DataError("there are no rows to train on")
        self._fingerprint_of = {"x": x, "y": y}
        self._batch_shape = batch_shape
        self._batch_size = min(batch_size, self.num_rows)
        self._share = ranks.share(self._batch_size)
        self._seeds = [seed + r for r in range(torch.Size(batch_shape).numel())]
        self._ends: list[Tensor | None] = [None] * len(self._seeds)
        if weights is not None and not bool((weights == 1).all()):
            self._fingerprint_of["weights"] = weights
            ends = weights.detach().cpu().double().cumsum(-1)
            self.num_data = ends[..., -1]
            ends = ends / ends[..., -1:] * self.num_rows
            self._ends = [*ends.expand(*batch_shape, -1).reshape(-1, self.num_rows)]
        y_axis = target_axis(y, batch_shape, self.num_rows)
        self._axes = (x_axis, y_axis)
        self._x = x.reshape(-1, *x.shape[x_axis + 1 :])
        self._y = y.reshape(-1, *y.shape[y_axis + 1 :])
        numbers = len(self._seeds) * self._batch_size * max(1, self._x[0].numel())
        self._gathered = min(max(1, _MOST_NUMBERS // numbers), _MOST_STEPS)

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield the batches of step ``start``, ``start + 1``, … without end."""
        per_epoch = self.num_rows // self._batch_size
        first_epoch, skip = divmod(start, per_epoch)
        for epoch in itertools.count(first_epoch):
            x_rows, y_rows = self._rows(epoch)
            for first in range(skip, per_epoch, self._gathered):
                last = min(first + self._gathered, per_epoch)
                xs, ys = (
                    self._take(self._x, x_rows[first:last]),
                    self._take(self._y, y_rows[first:last]),
                )
                yield from zip(xs, ys, strict=True)
            skip = 0

    def fingerprint(self) -> dict[str, object]:
        """Return the number of rows and the SHA-256 of every tensor."""
        digests = {name: tensor_digest(each) for name, each in self._fingerprint_of.items()}
        return {"num_data": self.num_rows, **digests}

    def _rows(self, epoch: int) -> list[Tensor]:
        """Return flat row numbers into ``x`` and into ``y``, ``(steps, rows of all replicas)``."""
        size, n = self._batch_size, self.num_rows
        steps = n // size
        replicas = zip(self._seeds, self._ends, strict=True)
        order = torch.stack([epoch_order(n, seed, epoch, ends) for seed, ends in replicas])
        rows = order[:, : steps * size].reshape(-1, steps, size)[:, :, self._share]

        def per_step(axis: int) -> Tensor:
            flat = rows + (n * torch.arange(len(rows)).reshape(-1, 1, 1) if axis else 0)
            return flat.transpose(0, 1).reshape(steps, -1).to(self._x.device)

        found = {axis: per_step(axis) for axis in set(self._axes)}
        return [found[axis] for axis in self._axes]

    def _take(self, rows: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        """Return the batches of several steps, ``index (steps, …)``."""
        batches = rows.index_select(0, index.reshape(-1))
        own = index.shape[1] // len(self._seeds)  # rows of a replica
        return batches.view(len(index), *self._batch_shape, own, *rows.shape[1:]).unbind(0)


@final
class LoaderBatches:
    """Batches of a ``DataLoader`` or another iterable that can be iterated again and again.

    If it has ``set_epoch`` (or its ``sampler`` has), that is called before each epoch. Resuming
    is exact only if the order depends on nothing but the epoch. In distributed training the
    loader itself must give each rank its share (``DistributedSampler``); ``num_data`` still
    counts the rows of all ranks.
    """

    def __init__(self, loader: Iterable[Batch], num_data: int, device: torch.device) -> None:
        check_positive_int("num_data", num_data)
        self.num_data = num_data
        self._loader = loader
        self._device = device

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield the batches of step ``start``, ``start + 1``, … without end."""
        per_epoch = len(self._loader) if isinstance(self._loader, Sized) else None
        first_epoch, skip = divmod(start, per_epoch) if per_epoch else (0, start)
        for epoch in itertools.count(first_epoch):
            self._set_epoch(epoch)
            seen = 0
            for x, y in self._loader:
                seen += 1
                if y.numel() == 0:
                    raise DataError(
                        f"batch {seen} of epoch {epoch} has no rows; leave out empty batches"
                    )
                if seen > skip:
                    yield map_tensors(lambda t: t.to(self._device), x), y.to(self._device)
            if seen == 0:
                raise DataError(
                    f"the data gave no batch in epoch {epoch}; pass a DataLoader or list that "
                    "can be iterated again, not a generator"
                )
            skip = max(skip - seen, 0)

    def fingerprint(self) -> dict[str, object]:
        """Return the number of rows: the content of an iterable is not known in advance."""
        return {"num_data": self.num_data}

    def _set_epoch(self, epoch: int) -> None:
        for part in (self._loader, getattr(self._loader, "sampler", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)


BatchSource = TensorBatches | LoaderBatches
"""An endless supply of batches that can be entered at any step."""


def check_batch(name: str, data: Batch | WeightedBatch, state: TrainingState) -> None:
    """Refuse data on another device than the model, not finite, or no targets of its likelihood."""
    for part, tensor in zip((f"{name} x", f"{name} y", f"{name} weights"), data, strict=False):
        if tensor.device != state.device:
            raise ShapeError(f"{part} is on {tensor.device}, but the model is on {state.device}")
        check_finite(part, tensor)
    state.likelihood.check_targets(data[1])
    if len(data) == 3:
        _check_weights(f"{name} weights", data[2], data[0], state.batch_shape)


def _check_weights(name: str, weights: Tensor, x: Tensor, batch_shape: tuple[int, ...]) -> None:
    num_rows = x.shape[row_axis(x, batch_shape)]
    if tuple(weights.shape) not in ((num_rows,), (*batch_shape, num_rows)):
        raise ShapeError(
            f"{name} must have shape ({num_rows},) or (*batch_shape, {num_rows}), one for every "
            f"row, got {tuple(weights.shape)}"
        )
    sums = weights.double().sum(-1)
    if bool((weights < 0).any()) or not bool(((sums > 0) & sums.isfinite()).all()):
        raise DataError(
            f"{name} must be at least 0 with a finite sum above 0 (in each replica); the least is "
            f"{weights.min().item():g}, sums are {sums.min().item():g} to {sums.max().item():g}"
        )


def batch_source(
    data: Batch | WeightedBatch | Iterable[Batch], state: TrainingState, num_data: int | None
) -> BatchSource:
    """Make the source that suits ``data``: tensors in memory, or an iterable of pairs of them."""
    match data:
        case (Tensor() as x, Tensor() as y) | (Tensor() as x, Tensor() as y, Tensor()):
            tensors = cast(Batch | WeightedBatch, data)
            check_batch("training", tensors, state)
            weights = tensors[2] if len(tensors) == 3 else None
            size, seed = state.config.batch_size, state.config.seed
            source = TensorBatches(x, y, state.batch_shape, size, seed, state.ranks, weights)
            if num_data not in (None, source.num_rows):
                raise ConfigError(
                    f"num_data is {num_data}, but the data has {source.num_rows} rows"
                )
            return source
    if num_data is None:
        parts = data if isinstance(data, tuple | list) and len(data) <= 4 else [data]
        raise ConfigError(
            "data must be tensors (x, y) or (x, y, weights), or an iterable of pairs (x, y) "
            "together with num_data, its number of rows; got "
            f"{', '.join(type(part).__name__ for part in parts)} without num_data"
        )
    return LoaderBatches(data, num_data, state.device)


def tensor_digest(x: Tensor) -> str:
    """Return the SHA-256 of the type, shape and values of ``x``."""
    digest = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
