"""MNIST and Fashion-MNIST from their gzipped idx files.

The folder ``images`` below ``--data-dir`` or ``WHVI_DATA`` holds ``mnist`` and ``fashion-mnist``
with the four files that both sets come in.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reproduction.data import data_folder
from whvi.errors import DataError

_PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}
_UNSIGNED_BYTES = 0x08


class Images(NamedTuple):
    """Images with their classes."""

    x: Tensor  # (N, 1, 28, 28), float32, 0 to 1
    y: Tensor  # (N,), int64, 0 to 9
    sha256: str  # of both files


def load_images(name: str, part: str, root: str | os.PathLike[str] | None = None) -> Images:
    """Read ``"mnist"`` or ``"fashion-mnist"``, part ``"train"`` or ``"test"``.

    Raises:
        DataError: A file is missing, damaged, or not of this set.
    """
    folder = data_folder("images", root) / name
    prefix, num_rows = _PARTS[part]
    pixels = folder / f"{prefix}-images-idx3-ubyte.gz"
    labels = folder / f"{prefix}-labels-idx1-ubyte.gz"
    x, y = _read(pixels, (num_rows, 28, 28)), _read(labels, (num_rows,))
    content = pixels.read_bytes() + labels.read_bytes()
    return Images(
        torch.from_numpy(x).float().div_(255).unsqueeze(1),
        torch.from_numpy(y).long(),
        hashlib.sha256(content).hexdigest(),
    )


def _read(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an idx file: two zeros, type, number of axes, sizes as big-endian int32, values."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}; copy the file again") from error
    axes = len(shape)
    header = np.frombuffer(content[4 : 4 + 4 * axes], dtype=">i4")
    magic = bytes([0, 0, _UNSIGNED_BYTES, axes])
    expected = 4 + 4 * axes + math.prod(shape)
    if content[:4] != magic or tuple(header) != shape or len(content) != expected:
        raise DataError(
            f"{path} holds {tuple(header.tolist())} in {len(content)} bytes, expected unsigned "
            f"bytes of shape {shape}: copy the file again"
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()
