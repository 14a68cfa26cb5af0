"""The model file: one sealed safetensors file that holds a whole fitted estimator, and no code.

See ``docs/file_format.md`` for the layout. A file is data: reading one runs nothing that is in
it, and everything that it claims about itself is compared with what it holds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from whvi._files import atomic_write
from whvi._sealed import seal, unseal
from whvi.errors import ModelFileError

if TYPE_CHECKING:
    from whvi.tabular import WHVIClassifier, WHVIRegressor

FORMAT_NAME = "whvi-model"
FORMAT_VERSION = 1
"""Raised when names or meanings change; files of all earlier versions stay readable."""


class ModelFile(NamedTuple):
    """The content of a model file: named tensors, and a JSON document that describes them."""

    tensors: dict[str, Tensor]
    document: dict[str, Any]


def write_model_file(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]
) -> None:
    """Write a model file whole or not at all.

    Raises:
        ModelFileError: The file cannot be written; what was there before is untouched.
    """
    header = {"format": FORMAT_NAME, "format_version": FORMAT_VERSION}
    target = Path(path)
    try:
        if target.is_dir():
            raise ModelFileError(f"cannot write model file {target}: it is a folder")
        with atomic_write(target, follow_symlinks=False) as stream:
            stream.write(seal(tensors, {**document, **header}))
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(
            f"cannot write model file {target}: {error.strerror or error}; what was there before "
            "is untouched"
        ) from error


def read_model_file(path: str | os.PathLike[str]) -> ModelFile:
    """Read and verify a model file.

    Raises:
        ModelFileError: It does not exist, is damaged, is no model file, or is of a later version.
    """
    source = Path(path)
    try:
        if not stat.S_ISREG(source.stat().st_mode):
            raise ModelFileError(f"{source} is not a regular file")
        payload = source.read_bytes()
    except ModelFileError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"cannot read model file {source}: {reason}") from error
    try:
        tensors, document = unseal(payload)
    except ModelFileError as error:
        raise ModelFileError(f"{source} is not a usable model file: {error}") from error
    _check_format(source, document)
    return ModelFile(tensors, document)


def load_model(path: str | os.PathLike[str]) -> WHVIRegressor | WHVIClassifier:
    """Load the fitted estimator that a model file holds, whichever class it is of.

    Raises:
        ModelFileError: The file is damaged, untrue to its description, or of a later version.
    """
    from whvi.tabular import WHVIClassifier, WHVIRegressor

    content = read_model_file(path)
    name = content.document.get("estimator")
    if name == WHVIRegressor.__name__:
        return WHVIRegressor.from_content(content)
    if name == WHVIClassifier.__name__:
        return WHVIClassifier.from_content(content)
    raise ModelFileError(f"{path} holds an unknown estimator: {name!r:.80}")


def _check_format(source: Path, document: Any) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise ModelFileError(f"{source} is a sealed file, but not a model of whvi")
    version = document.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{source} has no usable format version: {version!r:.80}")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{source} has format version {version}, this whvi reads up to {FORMAT_VERSION}; "
            "install a newer whvi"
        )
