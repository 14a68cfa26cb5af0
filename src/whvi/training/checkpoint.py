"""A folder of checkpoints that survives crashes: written whole or not at all, verified on read.

A checkpoint is one sealed file ``step-<n>.safetensors``. The newest two are kept; a damaged one is
passed over with a warning. A lock, which dies with its process, keeps two runs from sharing a
folder.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from torch import Tensor

from whvi._checks import check_positive_int
from whvi._files import atomic_write, seal, unseal
from whvi.errors import ConfigError, ModelFileError
from whvi.training.state import TrainingState

_KEPT = 2


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often to write checkpoints.

    Args:
        folder: Created if absent. If it holds checkpoints of the same fit, that fit goes on.
        every_steps: Steps from one checkpoint to the next.
    """

    folder: str | os.PathLike[str]
    every_steps: int = 1000

    def __post_init__(self) -> None:
        check_positive_int("every_steps", self.every_steps)


@final
class CheckpointStore:
    """Reads and writes the checkpoints of one folder; get it from :func:`open_store`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Path:
        """Write the checkpoint of ``step`` and drop all but the newest two."""
        path = self.folder / f"step-{step:012d}.safetensors"
        try:
            with atomic_write(path) as stream:
                stream.write(seal(tensors, metadata))
            for old in self._paths()[_KEPT:]:
                old.unlink()
        except OSError as error:
            raise ModelFileError(
                f"cannot write checkpoint {path}: {error.strerror or error}; "
                "earlier checkpoints in this folder are intact"
            ) from error
        return path

    def load_latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest undamaged checkpoint, or ``None`` in an empty folder."""
        paths = self._paths()
        for path in paths:
            try:
                return unseal(path.read_bytes())
            except ModelFileError as error:
                warnings.warn(f"checkpoint {path} is passed over: {error}", stacklevel=2)
        if paths:
            raise ModelFileError(
                f"all {len(paths)} checkpoints in {self.folder} are damaged; remove them to "
                "start from the beginning"
            )
        return None

    def _paths(self) -> list[Path]:
        """All checkpoints, newest first."""
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)


@contextlib.contextmanager
def open_store(folder: str | os.PathLike[str]) -> Iterator[CheckpointStore]:
    """Lock ``folder``, creating it if need be, and clear what a killed run left half written."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = (path / "lock").open("a+b")
    except OSError as error:
        raise ModelFileError(
            f"cannot use {path} for checkpoints: {error.strerror or error}"
        ) from error
    with handle:
        _lock(handle, path)
        for left in path.glob(".*.tmp"):
            left.unlink()
        yield CheckpointStore(path)


def _lock(handle: BinaryIO, folder: Path) -> None:
    """Take the lock of the folder; the kernel frees it when its process dies, however it dies."""
    try:
        import fcntl
    except ImportError:  # not POSIX: no lock
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.seek(0)
        owner = handle.read().decode(errors="replace").strip() or "unknown"
        raise ModelFileError(
            f"checkpoint folder {folder} is in use by process {owner}; wait for it or choose "
            "another folder"
        ) from error
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n".encode())
    handle.flush()


def check_same_run(saved: dict[str, Any], current: dict[str, Any]) -> None:
    """Refuse another fingerprint ``{"config": {field: value}, …}``, naming the first difference."""
    for part in sorted(saved.keys() | current.keys()):
        before, now = saved.get(part, {}), current.get(part, {})
        for field in sorted(before.keys() | now.keys()):
            if before.get(field) != now.get(field):
                raise ConfigError(
                    f"the checkpoint belongs to another fit: {part}.{field} was "
                    f"{before.get(field)!r}, now it is {now.get(field)!r}; use another folder, "
                    "or the same settings"
                )


@contextlib.contextmanager
def resumed(
    state: TrainingState,
    checkpoint: Checkpoints | str | os.PathLike[str],
    fingerprint: dict[str, dict[str, Any]],
) -> Iterator[Callable[[bool], None]]:
    """Bring ``state`` to the newest checkpoint, if there is one, and write new ones.

    Yields ``keep(now)``, which writes a checkpoint if one is due, or ``now``. All ranks call it
    together after every step; rank 0 writes.

    Raises:
        ConfigError: The checkpoint belongs to another configuration, data set or model.
        ModelFileError: The folder is in use, cannot be written, or holds only damaged files.
    """
    if not isinstance(checkpoint, Checkpoints):
        checkpoint = Checkpoints(checkpoint)
    folder, every_steps = Path(checkpoint.folder), checkpoint.every_steps
    writes = state.ranks.rank == 0  # the others read beside the rank that holds the lock
    with open_store(folder) if writes else contextlib.nullcontext(CheckpointStore(folder)) as store:
        found = store.load_latest()
        if found is not None:
            tensors, metadata = found
            check_same_run(metadata.get("fingerprint", {}), fingerprint)
            state.restore(tensors, metadata)

        def keep(now: bool) -> None:
            if now or state.step % every_steps == 0:
                tensors = state.tensors()
                if writes:
                    metadata = {"step": state.step, "history": state.history.as_dict()}
                    store.save(state.step, tensors, metadata | {"fingerprint": fingerprint})

        yield keep
