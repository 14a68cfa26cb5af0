r"""Encoder and head, and how they are trained.

The logits are ``A h + b`` with ``h = √384 · m / |m|``, ``m`` the mean of the encoder's last layer
over the tokens. All methods train with Adam, a warm-up of a tenth of the steps, then a cosine,
and matrix products in bfloat16 (``torch.autocast``); predictions are in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import whvi
from reproduction.clinc.queries import NUM_CLASSES, Batch, Queries, encoder
from reproduction.methods import Settings
from whvi.likelihoods import Categorical
from whvi.training.config import seeded_generator

BATCH = 64
_WARM_UP = 0.1  # share of the steps
_ROWS_AT_ONCE = 250

Loss = Callable[[nn.Module, Batch, Tensor], Tensor]


class Classifier(nn.Module):
    """A sentence encoder with a linear head."""

    def __init__(self) -> None:
        super().__init__()
        pretrained = encoder()
        self.encoder: nn.Module = pretrained
        self.head = nn.Linear(pretrained.config.hidden_size, NUM_CLASSES)

    def features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return ``h``, shape ``(N, 384)``."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        mean = (hidden * attention_mask.unsqueeze(-1)).sum(-2)
        return nn.functional.normalize(mean, dim=-1) * math.sqrt(mean.shape[-1])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits, shape ``(N, 150)``."""
        logits: Tensor = self.head(self.features(input_ids, attention_mask))
        return logits


def plain(settings: Settings) -> nn.Module:
    """Everything is trained."""
    return Classifier()


def lora(settings: Settings) -> nn.Module:
    """LoRA on the linear layers of the encoder, with about as many parameters as ``adapted``."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=int(settings["rank"]),
        lora_alpha=2 * int(settings["rank"]),
        target_modules=r"encoder\.encoder\..*\.(query|key|value|dense)",
        modules_to_save=["head"],
    )
    model: nn.Module = get_peft_model(Classifier(), config)
    return model


def adapted(settings: Settings) -> nn.Module:
    """Structured residuals with a posterior on all linear layers of the encoder; a dense head."""
    attention = "encoder.encoder.layer.*.attention"
    model = whvi.convert(
        Classifier(),
        layers=attention,
        train="head",
        inplace=True,
        num_blocks=int(settings["attention_blocks"]),
    )
    return whvi.convert(model, layers="encoder.encoder", exclude=attention, inplace=True)


def likelihood_loss(model: nn.Module, batch: Batch, y: Tensor) -> Tensor:
    """The mean negative log-likelihood."""
    logits = model(**batch)
    return nn.functional.cross_entropy(logits, y)


def elbo_loss(num_data: int, beta: float) -> Loss:
    """The negative ELBO per row, its KL weighted by ``beta``."""
    likelihood = Categorical(NUM_CLASSES)

    def loss(model: nn.Module, batch: Batch, y: Tensor) -> Tensor:
        bound = whvi.elbo(model, likelihood, batch, y, num_data=num_data, beta=beta)
        return -bound.value / num_data

    return loss


def train(
    make: Callable[[Settings], nn.Module],
    loss: Loss,
    settings: Settings,
    data: Queries,
    *,
    seed: int,
) -> nn.Module:
    """Return a trained classifier, in ``eval`` mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # layers and dropout draw from the global generator
        model = make(settings).train()
        generator = seeded_generator("batches", seed)
        trained = [p for p in model.parameters() if p.requires_grad]
        decay = float(settings.get("decay", 0.0))
        optimizer = torch.optim.AdamW(trained, lr=float(settings["lr"]), weight_decay=decay)
        epochs = int(settings["epochs"])
        steps = epochs * -(-len(data) // BATCH)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: _rate((k + 1) / steps))
        for rows in _epochs(data, epochs, generator):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                objective = loss(model, data.batch(rows), data.y[rows])
            objective.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def _epochs(data: Queries, epochs: int, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from data.batches(BATCH, generator)


def _rate(share: float) -> float:
    """Of the largest learning rate, after a share of the steps."""
    if share < _WARM_UP:
        return share / _WARM_UP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (share - _WARM_UP) / (1 - _WARM_UP))))


@torch.no_grad()
def over_rows(function: Callable[[Batch], Tensor], data: Queries) -> Tensor:
    """Apply a function to all queries, in blocks of like lengths; rows are the axis before last."""
    parts, order = [], []
    for rows in data.batches(_ROWS_AT_ONCE):
        parts.append(function(data.batch(rows)))
        order.append(rows)
    return torch.cat(parts, dim=-2)[..., torch.cat(order).argsort(), :]
