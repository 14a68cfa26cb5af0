"""Download checked files into a cache: what does not match its record never gets there."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from whvi.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reproduction.data.catalogue import FileRecord

TIMEOUT_SECONDS = 30.0


class DownloadError(DataError, OSError):
    """A file could not be downloaded, or is not the file that was expected."""


def fetch_files(
    files: Sequence[FileRecord],
    *,
    base_url: str,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Path:
    """Download the files that the cache lacks or holds damaged, and return the cache folder.

    Every file goes to a temporary name, is cut off if it grows beyond its recorded size, and is
    renamed into place only if its SHA-256 agrees. After an error the cache holds what it held
    before, plus the files that came through whole: calling again goes on from there.

    Args:
        files: What to fetch; paths are below ``base_url`` and below the cache.
        base_url: Address that the paths are appended to.
        cache: Folder; by default the user's cache folder of the operating system.
        progress: Show a progress bar on the standard error stream (needs ``rich``).
    """
    pooch = _import_pooch()
    folder = Path(pooch.os_cache("whvi") if cache is None else cache)
    keeper = pooch.create(
        path=folder,
        base_url=base_url.rstrip("/") + "/",
        registry={file.path: f"sha256:{file.sha256}" for file in files},
    )
    with _quiet(pooch.get_logger()):
        for file in _with_progress_bar(files) if progress else files:
            _fetch_one(keeper, file, pooch.HTTPDownloader)
    return folder


def _fetch_one(keeper: Any, file: FileRecord, http_downloader: Any) -> None:
    def download(url: str, output_path: str, owner: object) -> None:
        transfer = http_downloader(chunk_size=1 << 16, timeout=TIMEOUT_SECONDS)
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
    "Try again (files already fetched are kept); without a network, copy the folder by hand and "
    "name it with the argument root= or the environment variable WHVI_DATA"
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


def _import_pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise MissingDependencyError(
            "downloading data sets needs pooch: pip install 'whvi[data]'; or name a folder "
            "that holds them with root= or the environment variable WHVI_DATA"
        ) from error
    return pooch


def _with_progress_bar(files: Sequence[FileRecord]) -> Iterable[FileRecord]:
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError as error:
        raise MissingDependencyError(
            "a progress bar needs rich: pip install 'whvi[progress]', or pass progress=False"
        ) from error
    return track(files, description="Downloading", console=Console(stderr=True))


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from writing one line per file; its logger is shared, so put it back."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
