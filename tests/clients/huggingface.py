"""A trainer of Hugging Face with the KL in its loss, shared by the tests of its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from whvi import kl

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: make clients"
)


class TrainerWithKL(transformers.Trainer):
    """Adds ``kl(model) / num_rows`` and keeps the losses of all steps."""

    num_rows: int
    losses: list[float]

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **options: Any) -> Tensor:
        loss = super().compute_loss(model, inputs, *args, **options) + kl(model) / self.num_rows
        self.losses.append(float(loss.detach()))
        return loss


def train(
    net: nn.Module, columns: dict[str, Tensor], folder: Path, *, num_rows: int, **options: Any
) -> list[float]:
    """Train on all rows of ``columns`` and return the losses."""
    settings = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=16, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False, **options,
    )  # fmt: skip
    count = len(next(iter(columns.values())))
    rows = [{name: column[i] for name, column in columns.items()} for i in range(count)]
    trainer = TrainerWithKL(net, settings, train_dataset=rows)
    trainer.num_rows, trainer.losses = num_rows, []
    trainer.train()
    return trainer.losses
