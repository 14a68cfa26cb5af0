"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib

import torch


def seeded_generator(*key: int | str, device: torch.device | str | None = None) -> torch.Generator:
    """Return a generator that is a pure function of ``key``, such as ``("order", 0, 3)``.

    The key is hashed: streams of neighbouring seeds have nothing in common, and the result does
    not depend on ``PYTHONHASHSEED``.
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    generator = torch.Generator(device or "cpu")
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator
