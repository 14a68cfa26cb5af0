"""Where batches come from: tensors in memory, or any iterable of ``(x, y)``.

The order of rows in memory is a pure function of (seed + replica, epoch), so that a resumed run
sees the same batches. A source is asked for the batches from a given step on.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import final

import torch
from torch import Tensor

from whvi._checks import check_finite, check_positive_int
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.functions import check_rows, map_tensors, row_axis
from whvi.training.config import seeded_generator
from whvi.training.distributed import Ranks
from whvi.training.state import TrainingState

Batch = tuple[Tensor, Tensor]


def epoch_order(num_rows: int, seed: int, epoch: int) -> Tensor:
    """Return the permutation of the rows in ``epoch``: a pure function of its arguments."""
    return torch.randperm(num_rows, generator=seeded_generator("order", seed, epoch))


@final
class TensorBatches:
    """Minibatches of tensors in memory, each replica in its own order.

    ``x`` and ``y`` lead with ``(N,)``, shared by the replicas, or with ``(*batch_shape, N)``.
    Replica ``r`` uses ``seed + r``; each rank gets its own ``batch_size / world_size`` rows. Rows
    left over when ``batch_size`` does not divide ``N`` wait for the next epoch, so all batches
    have the same size and every row the same chance.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        batch_shape: tuple[int, ...],
        batch_size: int,
        seed: int,
        ranks: Ranks,
    ) -> None:
        check_rows(x, batch_shape)
        x_axis = row_axis(x, batch_shape)
        self.num_data = x.shape[x_axis]
        if self.num_data == 0:
            raise DataError("there are no rows to train on")
        self._fingerprint_of = (x, y)
        self._batch_shape = batch_shape
        self._batch_size = min(batch_size, self.num_data)
        self._share = ranks.share(self._batch_size)
        self._seeds = [seed + r for r in range(torch.Size(batch_shape).numel())]
        y_axis = _target_axis(y, batch_shape, self.num_data)
        self._axes = (x_axis, y_axis)
        self._x = x.reshape(-1, *x.shape[x_axis + 1 :])
        self._y = y.reshape(-1, *y.shape[y_axis + 1 :])

    def batches(self, start: int) -> Iterator[Batch]:
        """Yield the batches of step ``start``, ``start + 1``, … without end."""
        per_epoch = self.num_data // self._batch_size
        first_epoch, skip = divmod(start, per_epoch)
        for epoch in itertools.count(first_epoch):
            x_rows, y_rows = self._rows(epoch)
            for i in range(skip, per_epoch):
                yield self._take(self._x, x_rows[i]), self._take(self._y, y_rows[i])
            skip = 0

    def fingerprint(self) -> dict[str, object]:
        """Return the number of rows and the SHA-256 of both tensors."""
        x, y = self._fingerprint_of
        return {"num_data": self.num_data, "x": tensor_digest(x), "y": tensor_digest(y)}

    def _rows(self, epoch: int) -> list[tuple[Tensor, ...]]:
        """Return, for every step of the epoch, flat row numbers into ``x`` and into ``y``."""
        size, n = self._batch_size, self.num_data
        steps = n // size
        order = torch.stack([epoch_order(n, seed, epoch) for seed in self._seeds])
        rows = order[:, : steps * size].reshape(-1, steps, size)[:, :, self._share]

        def per_step(axis: int) -> tuple[Tensor, ...]:
            flat = rows + (n * torch.arange(len(rows)).reshape(-1, 1, 1) if axis else 0)
            return flat.transpose(0, 1).reshape(steps, -1).to(self._x.device).unbind(0)

        found = {axis: per_step(axis) for axis in set(self._axes)}
        return [found[axis] for axis in self._axes]

    def _take(self, rows: Tensor, index: Tensor) -> Tensor:
        batch = rows.index_select(0, index)
        if not self._batch_shape:
            return batch
        return batch.view(*self._batch_shape, -1, *rows.shape[1:])


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


def _target_axis(y: Tensor, batch_shape: tuple[int, ...], num_rows: int) -> int:
    """Return the axis of ``y`` that counts rows; refuse other shapes."""
    for lead in ((*batch_shape, num_rows), (num_rows,)):
        if y.shape[: len(lead)] == lead:
            return len(lead) - 1
    raise ShapeError(
        f"y must lead with (N,) or (*batch_shape, N) for N = {num_rows} rows of x and "
        f"batch_shape {batch_shape}, got shape {tuple(y.shape)}"
    )


def check_pair(name: str, x: Tensor, y: Tensor, state: TrainingState) -> None:
    """Refuse data on another device than the model, not finite, or no targets of its likelihood."""
    for part, tensor in ((f"{name} x", x), (f"{name} y", y)):
        if tensor.device != state.device:
            raise ShapeError(f"{part} is on {tensor.device}, but the model is on {state.device}")
        check_finite(part, tensor)
    state.likelihood.check_targets(y)


def batch_source(
    data: Batch | Iterable[Batch], state: TrainingState, num_data: int | None
) -> BatchSource:
    """Make the source that suits ``data``: a pair of tensors, or an iterable of such pairs."""
    match data:
        case (Tensor() as x, Tensor() as y):
            check_pair("training", x, y, state)
            size, seed = state.config.batch_size, state.config.seed
            source = TensorBatches(x, y, state.batch_shape, size, seed, state.ranks)
            if num_data not in (None, source.num_data):
                raise ConfigError(
                    f"num_data is {num_data}, but the data has {source.num_data} rows"
                )
            return source
    if num_data is None:
        parts = data if isinstance(data, tuple | list) and len(data) <= 4 else [data]
        raise ConfigError(
            "data must be a pair (x, y) of tensors, or an iterable of such pairs together with "
            "num_data, its number of rows; got "
            f"{', '.join(type(part).__name__ for part in parts)} without num_data"
        )
    return LoaderBatches(data, num_data, state.device)


def tensor_digest(x: Tensor) -> str:
    """Return the SHA-256 of the type, shape and values of ``x``."""
    digest = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
