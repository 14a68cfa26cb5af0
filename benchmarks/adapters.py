"""Adapters on a BERT of the size of all-MiniLM-L6-v2, random weights, beside peft's LoRA.

Forward: one draw of all weights, without gradients. Step: forward, backward and Adam, noise per
row unless it says otherwise. Trained parameters, with a head of 57,750: one structured block per
layer 192,918, grids of three slices 315,798, LoRA of rank 3 182,166.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.records import Cell, timed_cell
from benchmarks.timing import Effort, Rival
from whvi import LocalReparameterization, WeightDraws, convert, kl, sampling
from whvi.sampling import Sampler

TITLE = "Adapters on a transformer of 6 layers"
_LAYERS = "bert.encoder"
_LINEARS = r".*encoder.*(query|key|value|dense)"
_BATCH = 32
_PLAIN, _WHVI, _LORA = "frozen, plain", "whvi", "LoRA (peft)"


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Time to convert, then a pass without gradients and a training step by length."""
    if missing := [p for p in ("transformers", "peft") if importlib.util.find_spec(p) is None]:
        yield Cell({"quantity": "all"}, {}, {"all": f"{missing} not installed"})
        return
    model = _bert()
    start = time.perf_counter()
    adapted = convert(model, layers=_LAYERS, train="classifier")
    yield Cell({"quantity": "convert"}, {_WHVI: time.perf_counter() - start}, {})
    blocks = convert(model, layers=_LAYERS, train="classifier", num_blocks=3)
    models = {_WHVI: adapted, f"{_WHVI}, 3 blocks": blocks, _LORA: _lora()}
    long = Effort(effort.rounds, effort.burst, longest_call=10.0)
    for length in (16,) if quick else (8, 16, 32):
        ids = torch.randint(1000, (_BATCH, length))
        passes = {_PLAIN: Rival(_forward(model, ids))}
        passes |= {name: Rival(_forward(each, ids)) for name, each in models.items()}
        yield timed_cell({"quantity": "forward", "tokens": length}, passes, long)
        steps = {name: Rival(_step(each, ids)) for name, each in models.items()}
        steps[f"{_WHVI}, one draw"] = Rival(_step(adapted, ids, WeightDraws))
        yield timed_cell({"quantity": "step", "tokens": length}, steps, long)


def _bert() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
        intermediate_size=1536, num_labels=150,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval()


def _lora() -> Any:
    import peft

    config = peft.LoraConfig(r=3, target_modules=_LINEARS, modules_to_save=["classifier"])
    return peft.get_peft_model(_bert(), config).eval()


def _forward(model: nn.Module, ids: torch.Tensor) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return model(ids)

    return call


def _step(
    model: nn.Module, ids: torch.Tensor, sampler: Callable[[], Sampler] = LocalReparameterization
) -> Callable[[], None]:
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True
    )
    labels = torch.randint(150, (len(ids),))

    def call() -> None:
        optimizer.zero_grad()
        with sampling(sampler()):
            logits = model(ids).logits
        (nn.functional.cross_entropy(logits, labels) + kl(model) / 15000).backward()
        optimizer.step()

    return call
