"""Ties a training state to a folder of checkpoints: go on from the newest, keep new ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from whvi.training.checkpoint import Checkpoints, CheckpointStore, check_same_run, open_store
from whvi.training.distributed import Ranks
from whvi.training.state import TrainingState


@final
class Keeper:
    """Writes the checkpoints of a running fit; in distributed training only rank 0 writes."""

    def __init__(
        self,
        state: TrainingState,
        store: CheckpointStore,
        every_steps: int,
        fingerprint: dict[str, Any],
        ranks: Ranks,
    ) -> None:
        self._state, self._store, self._every_steps = state, store, every_steps
        self._fingerprint, self._ranks = fingerprint, ranks

    def keep(self, *, now: bool = False) -> None:
        """Write a checkpoint if one is due, or ``now``; all ranks must call it together."""
        state = self._state
        if not now and state.step % self._every_steps != 0:
            return
        tensors = state.tensors()
        if self._ranks.rank == 0:
            metadata = state.metadata() | {"fingerprint": self._fingerprint}
            self._store.save(state.step, tensors, metadata)


@contextlib.contextmanager
def resumed(
    state: TrainingState,
    checkpoint: Checkpoints | str | os.PathLike[str],
    fingerprint: dict[str, dict[str, Any]],
    ranks: Ranks,
) -> Iterator[Keeper]:
    """Bring ``state`` to the newest checkpoint, if there is one, and yield the keeper of new ones.

    Raises:
        ConfigError: The checkpoint belongs to another configuration, data set or model.
        ModelFileError: The folder is in use, cannot be written, or holds only damaged files.
    """
    if not isinstance(checkpoint, Checkpoints):
        checkpoint = Checkpoints(checkpoint)
    folder = Path(checkpoint.folder)
    opened = open_store(folder) if ranks.rank == 0 else _unlocked(folder)
    with opened as store:
        found = store.load_latest()
        if found is not None:
            tensors, metadata = found
            check_same_run(metadata.get("fingerprint", {}), fingerprint)
            state.restore(tensors, metadata)
        yield Keeper(state, store, checkpoint.every_steps, fingerprint, ranks)


@contextlib.contextmanager
def _unlocked(folder: Path) -> Iterator[CheckpointStore]:
    """A store for reading beside the rank that holds the lock."""
    yield CheckpointStore(folder)
