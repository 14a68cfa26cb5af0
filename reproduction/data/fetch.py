"""Download checked files into a cache: what does not match its record never gets there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pooch

from whvi.errors import DataError

TIMEOUT_SECONDS = 30.0


class FileRecord(NamedTuple):
    """What a file must be, to the byte."""

    path: str  # with forward slashes
    num_bytes: int
    sha256: str  # 64 hexadecimal digits


class DownloadError(DataError, OSError):
    """A file could not be downloaded, or is not the file that was expected."""


def default_cache() -> Path:
    """Return the user's cache folder of the operating system."""
    return Path(pooch.os_cache("whvi"))


def fetch_files(files: Sequence[FileRecord], folder: Path, *, base_url: str) -> None:
    """Download the files that ``folder`` lacks or holds damaged.

    Every file goes to a temporary name, is cut off if it grows beyond its recorded size, and is
    renamed into place only if its SHA-256 agrees. After an error the folder holds what it held
    before, plus the files that came through whole: calling again goes on from there.

    Args:
        files: What to fetch; paths are below ``base_url`` and below ``folder``.
        folder: Where the files are kept.
        base_url: Address that the paths are appended to.
    """
    keeper = pooch.create(
        path=folder,
        base_url=base_url.rstrip("/") + "/",
        registry={file.path: f"sha256:{file.sha256}" for file in files},
    )
    with _quiet(pooch.get_logger()):
        for file in files:
            _fetch_one(keeper, file)


def _fetch_one(keeper: Any, file: FileRecord) -> None:
    def download(url: str, output_path: str, owner: object) -> None:
        transfer = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=TIMEOUT_SECONDS)
        with open(output_path, "wb") as stream:
            transfer(url, _BoundedWriter(stream, file), owner)

    try:
        keeper.fetch(file.path, downloader=download)
    except DownloadError:
        raise
    except ValueError as error:  # how pooch reports a checksum that differs
        raise DownloadError(
            f"{keeper.get_url(file.path)} is not the expected file (SHA-256 differs: damaged, "
            f"truncated or replaced); it was discarded. {_WHAT_TO_DO}"
        ) from error
    except OSError as error:  # requests' errors are OSErrors too
        raise DownloadError(
            f"could not download {keeper.get_url(file.path)}: {error}. {_WHAT_TO_DO}"
        ) from error


_WHAT_TO_DO = (
    "Try again (files already fetched are kept); without a network, copy UCI_Datasets by hand and "
    "name the folder that holds it with --data-dir or the environment variable WHVI_DATA"
)


class _BoundedWriter:
    """A binary stream that refuses to grow beyond the recorded size of a file."""

    def __init__(self, stream: BinaryIO, file: FileRecord) -> None:
        self._stream = stream
        self._file = file
        self._num_written = 0

    def write(self, chunk: bytes) -> int:
        self._num_written += len(chunk)
        if self._num_written > self._file.num_bytes:
            raise DownloadError(
                f"the download of {self._file.path} is larger than its "
                f"{self._file.num_bytes} bytes; it was stopped and discarded"
            )
        return self._stream.write(chunk)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from writing one line per file; its logger is shared, so put it back."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
