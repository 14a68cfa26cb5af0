"""Where the data are: one folder, named by ``--data-dir`` or the variable ``WHVI_DATA``.

It holds ``UCI_Datasets``, ``tables``, ``images``, ``text`` and ``weights``; an experiment needs
only some of them.
"""

from __future__ import annotations

import os
from pathlib import Path

from whvi.errors import ConfigError, DataError

VARIABLE = "WHVI_DATA"
KINDS = ("UCI_Datasets", "tables", "images", "text", "weights")


def data_root(root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return ``root``, else the folder that ``WHVI_DATA`` names, else ``None``."""
    named = root or os.environ.get(VARIABLE)
    return Path(named) if named else None


def data_folder(kind: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of one kind of data below :func:`data_root`.

    Args:
        kind: One of :data:`KINDS`.
        root: Folder that holds the kinds; by default the one that ``WHVI_DATA`` names.

    Raises:
        ConfigError: There is no such kind.
        DataError: No folder is named, or it does not hold this kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of data {kind!r}; choose from {', '.join(KINDS)}")
    found = data_root(root)
    wanted = f"--data-dir or {VARIABLE} must name the folder that holds {kind}"
    if found is None:
        raise DataError(wanted)
    if (found / kind).is_dir():
        return found / kind
    if found.resolve().name in KINDS:
        raise DataError(
            f"{found} is one of the folders of data; {wanted}: {found.resolve().parent}"
        )
    raise DataError(f"{found} has no folder {kind}; {wanted}")
