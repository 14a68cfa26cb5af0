"""Read the UCI regression sets with the literature's splits, every byte verified."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reproduction.data.catalogue import BASE_URL, COMMIT, UCIEntry, catalogue_entry
from reproduction.data.fetch import default_cache, fetch_files
from reproduction.data.folders import data_folder, data_root
from reproduction.data.splits import Split
from whvi.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KIND = "UCI_Datasets"


@dataclass(frozen=True, slots=True, eq=False)
class UCIDataset:
    """One set in its own units, with the literature's splits.

    Attributes:
        name: Its name in the catalogue.
        x: Inputs, float64, shape ``(N, d)``.
        y: Target, float64, shape ``(N,)``.
        splits: Pairs ``(train, test)`` of row numbers, all of one size.
        sha256: Checksum over all files of the set, for records of experiments.
    """

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    splits: tuple[Split, ...]
    sha256: str


def load_uci(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    base_url: str = BASE_URL,
) -> UCIDataset:
    """Load a UCI set from a folder, or download it once into a cache.

    The files are in ``UCI_Datasets`` below ``root``, else below the folder that the environment
    variable ``WHVI_DATA`` names, else in a cache that missing files are downloaded into. Every file
    is checked against its SHA-256 before it is used.

    Args:
        name: boston, concrete, energy, kin8nm, naval, powerplant, protein or yacht.
        root: Folder that holds ``UCI_Datasets``.
        cache: Where downloads are kept, laid out like ``root``; by default the user's cache folder.
        base_url: Where downloads come from.

    Raises:
        ConfigError: There is no such set.
        DataError: A file is missing or damaged, or cannot be downloaded.
    """
    entry = catalogue_entry(name)
    if data_root(root) is None:
        folder = (default_cache() if cache is None else Path(cache)) / _KIND
        fetch_files(entry.files(), folder, base_url=base_url)
    else:
        folder = data_folder(_KIND, root)
    return _read(entry, folder)


def _read(entry: UCIEntry, folder: Path) -> UCIDataset:
    content = _verified_files(entry, folder)

    def numbers(file_name: str, dtype: type[np.generic]) -> NDArray[np.generic]:
        stream = io.BytesIO(content[entry.path(file_name)])
        return np.atleast_1d(np.loadtxt(stream, dtype=dtype))

    def rows(file_name: str) -> NDArray[np.int64]:
        # some index files spell whole numbers as floats
        return numbers(file_name, np.float64).astype(np.int64)

    table = numbers("data.txt", np.float64).astype(np.float64, copy=False)
    return UCIDataset(
        name=entry.name,
        x=np.ascontiguousarray(table[:, rows("index_features.txt")]),
        y=table[:, rows("index_target.txt")[0]].copy(),
        splits=tuple(
            Split(rows(f"index_train_{k}.txt"), rows(f"index_test_{k}.txt"))
            for k in range(entry.num_splits)
        ),
        sha256=entry.sha256(),
    )


def _verified_files(entry: UCIEntry, folder: Path) -> dict[str, bytes]:
    content = {}
    for file in entry.files():
        path = folder / file.path
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(
                f"cannot read {path}: {error.strerror}; the set {entry.name!r} needs it: "
                f"copy the folder again or delete it to download it"
            ) from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise DataError(
                f"{path} is damaged or not the file of commit {COMMIT[:7]} (SHA-256 differs; "
                f"{len(data)} bytes, expected {file.num_bytes}): copy the folder again"
            )
        content[file.path] = data
    return content
