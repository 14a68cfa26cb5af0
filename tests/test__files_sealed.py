import json

import pytest
import torch
from safetensors.torch import save

from whvi._files import seal, unseal
from whvi.errors import ModelFileError

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}
DOCUMENT = {"name": 'a "sha256":"' + "0" * 64 + '" inside', "list": [1, None, True]}


def test_what_was_sealed_comes_back():
    tensors, document = unseal(seal(TENSORS, DOCUMENT))
    assert document == DOCUMENT
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_every_flipped_bit_is_found():
    payload = seal({"a": torch.ones(3)}, {"k": 1})
    for position in range(len(payload)):
        damaged = bytearray(payload)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(ModelFileError):
            unseal(bytes(damaged))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, -1])
def test_every_truncation_is_found(size):
    with pytest.raises(ModelFileError):
        unseal(seal(TENSORS, DOCUMENT)[:size])


def test_appended_bytes_are_found():
    with pytest.raises(ModelFileError):
        unseal(seal(TENSORS, DOCUMENT) + b"\0")


def test_an_unsealed_safetensors_file_is_refused():
    with pytest.raises(ModelFileError):
        unseal(save(TENSORS))
    with pytest.raises(ModelFileError):
        unseal(save(TENSORS, {"whvi": json.dumps({}), "sha256": "0" * 64}))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**32])
def test_a_header_longer_than_the_file_is_refused(length):
    payload = seal(TENSORS, DOCUMENT)
    with pytest.raises(ModelFileError):
        unseal(length.to_bytes(8, "little") + payload[8:])


def test_numbers_that_json_does_not_know_are_not_sealed():
    with pytest.raises(ValueError, match="JSON"):
        seal({}, {"x": float("nan")})
