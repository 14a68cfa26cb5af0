"""Sealed bytes: a safetensors file with JSON metadata and a SHA-256 over everything.

Layout: an ordinary safetensors file whose ``__metadata__`` holds two strings, ``whvi`` (a JSON
document) and ``sha256``: the digest of the whole file with this very field full of zeros. Any
safetensors reader opens it; one changed bit anywhere is refused here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from whvi.errors import ModelFileError

_BLANK = b'"sha256":"' + b"0" * 64 + b'"'
_DIGEST_AT = len(b'"sha256":"')


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
        header_size = int.from_bytes(payload[:8], "little")
        texts = json.loads(payload[8 : 8 + header_size])["__metadata__"]
        body = 8 + header_size
        field = f'"sha256":"{texts["sha256"]}"'.encode()
        digest = hashlib.sha256(payload[:body].replace(field, _BLANK, 1))
        digest.update(memoryview(payload)[body:])
        if digest.hexdigest() != texts["sha256"]:
            raise ModelFileError("the SHA-256 does not match: the file is damaged")
        tensors = safetensors.torch.load(payload)
        metadata = json.loads(texts["whvi"])
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise ModelFileError(f"not a sealed safetensors file: {error}") from error
    return {name: tensor.clone() for name, tensor in tensors.items()}, metadata
