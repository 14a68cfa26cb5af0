"""Rows that a model remembers, so that an update does not forget what they taught it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whvi._files import conform_tensor
from whvi.errors import ModelFileError

_MOST_MEMORY, _LEAST_MEMORY, _MOST_REMEMBERED = 1024, 64, 1 << 18  # rows; numbers in them


class Memory(NamedTuple):
    """Rows that stand for all that a model has seen; their targets are not kept.

    Attributes:
        encoded: Columns, ``(M, w)``.
        weight: For how many rows each stands, ``(M,)``.
    """

    encoded: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def of(cls, encoded: NDArray[np.float64], weight: NDArray[np.float64] | None = None) -> Memory:
        """Let every row stand for itself, or for as many as its weight says."""
        return cls(encoded, np.ones(len(encoded)) if weight is None else weight)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], width: int) -> Memory:
        """Read what :meth:`tensors` gave, for ``width`` encoded columns."""
        rows = len(tensors["memory.weight"])
        shapes = {"memory.encoded": (rows, width), "memory.weight": (rows,)}
        found = [conform_tensor(tensors, k, s, torch.float64).numpy() for k, s in shapes.items()]
        if not rows or not (found[1] > 0).all():
            raise ModelFileError("rows are needed whose weights are above zero")
        return cls(*found)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a model file keeps."""
        return {f"memory.{k}": torch.as_tensor(v) for k, v in self._asdict().items()}

    def thinned(self, size: int, seed: int) -> Memory:
        """Keep at most ``size`` rows by priority sampling, with the same total weight.

        A row of weight ``w`` has the priority ``w / u``, ``u`` uniform; those that are kept count
        as much as the largest priority that is not, or more if they did before (Duffield et al.,
        2007). Sums over rows are then right on average.
        """
        if len(self.weight) <= size:
            return self
        priority = self.weight / (1 - np.random.default_rng(seed).random(len(self.weight)))
        order = np.argsort(-priority, kind="stable")
        kept = np.sort(order[:size])
        weight = np.maximum(self.weight[kept], priority[order[size]])
        return Memory(self.encoded[kept], weight * (self.weight.sum() / weight.sum()))

    def kept(self, seed: int) -> Memory:
        """Keep as many rows as a model file is to hold."""
        size = _MOST_REMEMBERED // max(1, self.encoded.shape[1])
        return self.thinned(min(max(size, _LEAST_MEMORY), _MOST_MEMORY), seed)

    def joined(self, other: Memory) -> Memory:
        """Return the rows of both."""
        return Memory(*map(np.concatenate, zip(self, other, strict=True)))
