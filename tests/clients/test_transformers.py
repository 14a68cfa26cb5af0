"""Hugging Face: a classifier with Bayesian layers, its Trainer with a KL term, its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.clients.huggingface import train, transformers
from whvi import WHVILinear, draw_functions, elbo
from whvi.likelihoods import Categorical

pytest.importorskip("accelerate", reason="accelerate is not installed: make clients")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and what it imports

NUM_ROWS = 48


def replace_linears(module: nn.Module) -> None:
    """Make every linear layer of the feed-forward parts and the head Bayesian."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, WHVILinear(child.in_features, child.out_features))
        else:
            replace_linears(child)


class BayesianBert(transformers.BertForSequenceClassification):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.bert.encoder.layer:
            replace_linears(layer.intermediate)
            replace_linears(layer.output)
        self.classifier = WHVILinear(config.hidden_size, config.num_labels)


def model() -> BayesianBert:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BayesianBert(config)


def sentences() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 20, (NUM_ROWS, 6), generator=generator)
    labels = (ids[:, 1] > 10).long()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=str)
def test_trainer_lowers_the_loss(tmp_path: Path, options: dict[str, bool]) -> None:
    options = {**options, "num_train_epochs": 15, "learning_rate": 0.01}
    losses = train(model(), sentences(), tmp_path, num_rows=NUM_ROWS, **options)
    assert sum(losses[-3:]) < sum(losses[:3]) - 1


def test_files_go_round_by_safetensors(tmp_path: Path) -> None:
    net, columns = model(), sentences()
    net.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = BayesianBert.from_pretrained(tmp_path).eval()
    ids = columns["input_ids"]
    values = [
        draw_functions(each, ids, num_draws=2, generator=torch.Generator().manual_seed(1))
        for each in (net.eval(), again)
    ]
    assert values[0].shape == (2, NUM_ROWS, 2)
    assert torch.equal(*values)


def test_elbo_takes_a_batch_of_a_tokenizer() -> None:
    net, columns = model(), sentences()
    labels = columns.pop("labels")
    batch = transformers.BatchEncoding(columns)
    value = elbo(net, Categorical(2), batch, labels, num_data=NUM_ROWS, num_draws=2).value
    value.backward()
    assert net.classifier.matrix.s1.grad is not None
