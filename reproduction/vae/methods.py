"""The autoencoders of the experiment: 784–512–512–50 of three kinds of layers, and an ensemble.

All train for the same epochs in the same batches; learning rates were chosen on the last 5,000
training images of binarised MNIST (``reproduction/vae.md``) and are the same for both sets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import whvi
from reproduction.records import Record, RecordStore
from whvi import LocalReparameterization, sampling
from whvi.models import Vae, load_vae, vae
from whvi.training.config import seeded_generator

HIDDEN, NUM_LATENTS = (512, 512), 50
BATCH = 64
_TERMS_ROWS = 5_000


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        layer: Of :func:`whvi.models.vae`.
        learning_rate: Peak of the cosine schedule.
        num_members: Models that are trained, with seeds of their own.
        datasets: Sets it is trained on.
    """

    layer: str
    learning_rate: float
    num_members: int = 1
    datasets: tuple[str, ...] = ("mnist", "fashion-mnist")


METHODS = {
    "dense": Method("dense", 2e-3),
    "whvi": Method("whvi", 3e-2),
    "mean-field": Method("mean_field", 2e-3),
    "ensemble": Method("dense", 2e-3, num_members=5, datasets=("fashion-mnist",)),
}


@dataclass(frozen=True)
class Trainer:
    """Trains members once: models and what is known of their training are kept in a folder.

    Attributes:
        folder: Of ``models`` and ``trainings.jsonl``.
        epochs: Passes over the training images.
    """

    folder: str
    epochs: int

    def members(self, method: Method, dataset: str, x: Tensor, seed: int) -> list[Vae]:
        """Return the trained members; an ensemble begins with the single model of its seed."""
        seeds = [seed + 100 * k for k in range(method.num_members)]
        return [self._member(method, dataset, x, each) for each in seeds]

    def training(self, method: Method, dataset: str, seed: int) -> Record:
        """Return the record of the training of the (first) member."""
        return self._store().read()[method.layer, dataset, 0, seed]

    def _member(self, method: Method, dataset: str, x: Tensor, seed: int) -> Vae:
        name = f"{dataset}-{method.layer}-{seed}.safetensors"
        path, store = Path(self.folder) / "models" / name, self._store()
        if path.exists() and (method.layer, dataset, 0, seed) in store.read():
            return load_vae(path)
        start = time.process_time()
        model = self._train(method, x, seed)
        seconds = time.process_time() - start
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
        key = {"method": method.layer, "dataset": dataset, "split": 0, "seed": seed}
        found = {"epochs": self.epochs, "seconds_per_epoch": seconds / self.epochs}
        store.append([{**key, **found, **terms(model, x, seed)}])
        return model

    def _train(self, method: Method, x: Tensor, seed: int) -> Vae:
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # layers draw their start from the global generator
            model = vae((x.shape[1],), HIDDEN, NUM_LATENTS, layer=method.layer)
        config = whvi.FitConfig(
            num_steps=self.epochs * len(x) // BATCH,
            batch_size=BATCH,
            learning_rate=method.learning_rate,
            record_every=500,
            seed=seed,
        )
        whvi.fit(model, model.bound(), (x, x), config=config)
        return model

    def _store(self) -> RecordStore:
        return RecordStore(Path(self.folder) / "trainings.jsonl")


@torch.no_grad()
def terms(model: Vae, x: Tensor, seed: int) -> dict[str, float]:
    """Return the terms of the ELBO per training image, estimated on the first ones."""
    with sampling(LocalReparameterization(seeded_generator("terms", seed))):
        found = model.terms(x[:_TERMS_ROWS])
    return {
        "reconstruction": float(found.reconstruction.mean()),
        "latent_kl": float(found.latent_kl.mean()),
        "decoder_kl": float(found.decoder_kl),
        "encoder_kl": float(found.encoder_kl),
        "elbo_per_image": float(found.elbo(len(x))) / len(x),
    }
