"""Files: written whole or not at all, and sealed bytes that prove their own integrity.

Sealed bytes are an ordinary safetensors file whose ``__metadata__`` holds two strings, ``whvi`` (a
JSON document) and ``sha256``: the digest of the whole file with this field filled with zeros. Any
safetensors reader opens it; here, a single changed bit is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from whvi.errors import ConfigError, ModelFileError

STREAM = "-"
"""Standard input or output in place of a file name."""

_BLANK = b'"sha256":"' + b"0" * 64 + b'"'
_DIGEST_AT = len(b'"sha256":"')
_LONGEST_NAME = 255  # bytes
_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    mode: Literal["wb", "w"] = "wb",
    *,
    encoding: str | None = None,
    newline: str | None = None,
    follow_symlinks: bool = True,
) -> Iterator[IO[Any]]:
    """Open a stream whose content becomes the file at the end of the block, or not at all.

    The content goes to a temporary file in the same folder, is flushed to the disk and takes the
    place of the old file in one step; then the folder is flushed. After any exception, also
    ``KeyboardInterrupt``, the old file is as before and the temporary one is gone; only a killed
    process leaves a temporary file, whose name matches ``.*.tmp``. An existing file's permissions
    are kept. What is not a regular file (``/dev/null``, ``/dev/stdout``, a FIFO) is written to
    directly. ``follow_symlinks`` replaces the file that a link points to, as :func:`open` would,
    and not the link itself.
    """
    target, former = _resolve(Path(path), follow_symlinks)
    if former is not None and not stat.S_ISREG(former):
        # after "program >> log", /dev/stdout has content to keep
        append: Any = mode.replace("w", "a")
        with target.open(append, encoding=encoding, newline=newline) as stream:
            yield stream
        return
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")
    exclusive: Any = mode.replace("w", "x")
    try:
        with temporary.open(exclusive, encoding=encoding, newline=newline) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if former is not None:
            temporary.chmod(stat.S_IMODE(former))
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _resolve(path: Path, follow_symlinks: bool) -> tuple[Path, int | None]:
    """Return the file to write and its ``st_mode``: ``None`` if there is no file yet."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # also a link to nowhere
        mode = None
    is_stream = os.path.abspath(path).startswith(_STREAMS)  # even if redirected to a file
    if is_stream or (mode is not None and not stat.S_ISREG(mode)):
        return path, stat.S_IFIFO if is_stream else mode
    return Path(os.path.realpath(path)) if follow_symlinks else path, mode


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entries to the disk, where the system lets us open it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # writable but not readable; or Windows, which renames durably anyway
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_output(output: str, inputs: Sequence[str]) -> None:
    """Refuse an output that is an input, a folder, or in a folder that is not there."""
    if output == STREAM:
        return
    path = Path(output)
    if not output or "\0" in output:
        raise ConfigError(f"the output must be the name of a file, got {output!r}")
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ConfigError(
            f"the name of the output is longer than {_LONGEST_NAME} bytes: {output!r}"
        )
    if path.is_dir():
        raise ConfigError(f"the output {output!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of the output {output!r} does not exist; create it first")
    is_new = path.is_file() or not path.exists()  # else a device, which is written into
    if not os.access(path.parent if is_new else path, os.W_OK):
        raise ConfigError(f"the {'folder of the ' * is_new}output {output!r} cannot be written to")
    for each in inputs:
        if each != STREAM and Path(each).exists() and path.resolve() == Path(each).resolve():
            raise ConfigError(
                f"the output {output!r} is also an input and would be lost; name another file"
            )


@contextlib.contextmanager
def open_output(output: str) -> Iterator[IO[Any]]:
    """Open a text file by :func:`atomic_write`; ``-`` is standard output."""
    if output == STREAM:
        yield sys.stdout
        return
    with atomic_write(output, "w", encoding="utf-8", newline="", follow_symlinks=False) as stream:
        yield stream


def seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """Serialise named tensors and JSON-ready metadata into bytes that prove their own integrity."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    document = json.dumps(metadata, allow_nan=False, sort_keys=True)
    payload = safetensors.torch.save(plain, {"whvi": document, "sha256": "0" * 64})
    # Inside the JSON string quotes are escaped, so the blank field can only match itself.
    at = payload.index(_BLANK) + _DIGEST_AT
    digest = hashlib.sha256(payload).hexdigest().encode()
    return payload[:at] + digest + payload[at + 64 :]


def unseal(payload: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Verify sealed bytes and return tensors and metadata.

    Raises:
        ModelFileError: The bytes are damaged or were never sealed.
    """
    try:
        body = 8 + int.from_bytes(payload[:8], "little")
        texts = json.loads(payload[8:body], object_pairs_hook=_unique)["__metadata__"]
        field = f'"sha256":"{texts["sha256"]}"'.encode()
        digest = hashlib.sha256(payload[:body].replace(field, _BLANK, 1))
        digest.update(memoryview(payload)[body:])
        if digest.hexdigest() != texts["sha256"]:
            raise ModelFileError("the SHA-256 does not match: the file is damaged")
        tensors = safetensors.torch.load(payload)
        metadata = json.loads(texts["whvi"], object_pairs_hook=_unique)
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise ModelFileError(f"not a sealed safetensors file: {error}") from error
    return {name: tensor.clone() for name, tensor in tensors.items()}, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice among {[name for name, _ in pairs][:20]}")
    return found


def option_to_json(value: Any) -> Any:
    """Return an option as a JSON value: a mapping as pairs; random generators are not kept."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return (
            None
            if not value
            else [[option_to_json(part) for part in pair] for pair in value.items()]
        )
    if isinstance(value, list | tuple | np.ndarray):
        return [int(entry) for entry in value]
    return value if isinstance(value, bool | int | float | str) else None


def option_from_json(value: Any) -> Any:
    """Return the option: a list is a tuple, or a mapping if it holds pairs."""
    if not isinstance(value, list):
        return value
    return dict(value) if value and isinstance(value[0], list) else tuple(value)


def conform(value: Any, expected: Any, where: str) -> None:
    """Refuse a JSON value that is not as ``expected``, which says so in its own shape.

    Args:
        value: What was read.
        expected: Types (a tuple of them; ``float`` also takes integers, all must be finite), a
            dictionary with just these keys, or a list of one element, for all elements.
        where: Name of the value, for the error.
    """
    if isinstance(expected, dict) and isinstance(value, dict) and expected.keys() == value.keys():
        for name, part in expected.items():
            conform(value[name], part, f"{where}.{name}")
    elif isinstance(expected, list) and isinstance(value, list):
        for k, part in enumerate(value):
            conform(part, expected[0], f"{where}[{k}]")
    else:
        types = expected if isinstance(expected, tuple) else (expected,)
        right = type(value) in types or (float in types and type(value) is int)
        if not right or (isinstance(value, float) and not math.isfinite(value)):
            raise ModelFileError(f"{where} is {value!r:.80}, expected {expected!r:.80}")
        if isinstance(value, str):
            value.encode()  # refuses half a character, which could not be written again


def conform_tensor(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Return a stored tensor; refuse it if it is absent, of another kind, or not finite."""
    if name not in tensors:
        raise ModelFileError(f"there is no tensor {name}")
    tensor = tensors[name]
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ModelFileError(
            f"tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, but the description needs "
            f"{dtype} {tuple(shape)}"
        )
    if not bool(tensor.isfinite().all()):
        raise ModelFileError(f"tensor {name} holds values that are not finite")
    return tensor
