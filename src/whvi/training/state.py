"""The training state: everything that decides how a fit goes on, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from whvi.errors import ConfigError
from whvi.functions import batch_shape_of
from whvi.likelihoods import Likelihood
from whvi.training.config import FitConfig, seeded_generator
from whvi.training.distributed import Ranks, gather_rows, unwrapped
from whvi.training.gradients import Adam, check_finite_tensors, per_replica
from whvi.training.history import History


@final
class TrainingState:
    """Weights, Adam's moments, averages, best weights, noise generator, step and history.

    ``model`` may be wrapped in ``DistributedDataParallel``. Each rank draws its own noise.
    """

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, config: FitConfig, ranks: Ranks
    ) -> None:
        self.model, self.bare, self.likelihood = model, unwrapped(model), likelihood
        self.config, self.ranks = config, ranks
        self.step = 0
        self.history = History()
        self.batch_shape = batch_shape_of(self.bare)
        both = self._both = nn.ModuleDict({"model": self.bare, "likelihood": likelihood})
        self.parameters = {n: p for n, p in both.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ConfigError("there is nothing to train: no parameter requires a gradient")
        for option in ("max_grad_norm", "patience"):
            if getattr(config, option) is not None:
                check_replicated(option, self.parameters, self.batch_shape)
        self.device = next(iter(self.parameters.values())).device
        self.generator = seeded_generator("noise", config.seed, ranks.rank, device=self.device)
        self.adam = Adam(self.parameters)
        self.average = self.best = None
        if config.ema_decay is not None:
            self.average = WeightAverage(self.parameters, config.ema_decay)
        if config.patience is not None:
            self.best = BestWeights(self.changing(), self.batch_shape, config.patience)

    @property
    def finished(self) -> bool:
        """Whether every replica has run out of patience."""
        return self.best is not None and bool(self.best.finished.all())

    def changing(self) -> dict[str, Tensor]:
        """Return what training changes, by name: trained parameters, and all buffers."""
        return {**self.parameters, **dict(self._both.named_buffers())}

    def weights(self) -> dict[str, Tensor]:
        """Return every tensor of model and likelihood by name, sharing memory with them."""
        return self._both.state_dict(keep_vars=True)

    def check_finite(self) -> None:
        """Refuse weights that are not finite, naming the first."""
        check_finite_tensors("the value", self.weights().items(), self.step)

    def conclude(self) -> None:
        """Leave the model with the weights to use: the best, else the average, else the last."""
        if self.best is not None:
            self.best.copies.restore()
        elif self.average is not None:
            self.average.swap()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the state by name; refuse weights that are not finite.

        The names are ``weights/…``, ``adam/<parameter>/<moment>``, ``average/…``, ``best/…``,
        ``generators`` (one row per rank), and ``score``, ``stale`` of early stopping.
        """
        self.check_finite()
        generators = gather_rows(self.generator.get_state(), self.ranks)
        return {**self._live(), **_prefixed("adam", self.adam.tensors()), "generators": generators}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Become the state of :meth:`tensors`, with ``step`` and ``history`` of ``metadata``."""
        self.step = metadata["step"]
        self.history = History(**metadata["history"])
        for name, target in self._live().items():
            target.copy_(tensors[name])
        self.adam.restore({name.removeprefix("adam/"): t for name, t in tensors.items()})
        # clone: torch crashes on the state in a view that does not begin its storage
        self.generator.set_state(tensors["generators"][self.ranks.rank].clone())

    def _live(self) -> dict[str, Tensor]:
        """The tensors that exist from the start, sharing memory with their owners."""
        found = _prefixed("weights", self.weights())
        if self.average is not None:
            found |= _prefixed("average", self.average.copies.values)
        if self.best is not None:
            found |= _prefixed("best", self.best.copies.values)
            found |= {"score": self.best.score, "stale": self.best.stale}
        return found


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


@final
class Copies:
    """Named tensors and copies of them, ``values``."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)
        self.values = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    @torch.no_grad()
    def save(self) -> None:
        """Copy the tensors as they are now."""
        for name, tensor in self.tensors.items():
            self.values[name].copy_(tensor)

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copies back."""
        for name, tensor in self.tensors.items():
            tensor.copy_(self.values[name])


@final
class WeightAverage(contextlib.AbstractContextManager["WeightAverage"]):
    r"""Exponential moving average of the weights, which the model has inside a ``with`` block.

    ``ā_t = d_t ā_{t−1} + (1 − d_t) θ_t`` with ``d_t = min(decay, (t − 1) / t)``: the plain average
    of all weights so far until that is shorter than the exponential window, so that the initial
    weights never linger.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.copies = Copies(parameters)
        self._averages = list(self.copies.values.values())
        self._parameters: list[Tensor] = list(parameters.values())
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after ``step ≥ 1`` steps."""
        decay = min(self._decay, (step - 1) / step)
        torch._foreach_lerp_(self._averages, self._parameters, 1 - decay)

    def swap(self) -> None:
        """Exchange average and weights; a second call undoes the first."""
        weights = [parameter.detach().clone() for parameter in self._parameters]
        self.copies.restore()
        torch._foreach_copy_(self._averages, weights)

    def __enter__(self) -> WeightAverage:
        self.swap()
        return self

    def __exit__(self, *_: object) -> None:
        self.swap()


@final
class BestWeights:
    """The best weights of each replica on validation data, and which replicas are finished.

    Of ``tensors``, parameters and buffers, those that lead with ``batch_shape`` are kept. A replica
    is finished after ``patience`` evaluations without improvement.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], batch_shape: tuple[int, ...], patience: int
    ) -> None:
        k = len(batch_shape)
        self.copies = Copies({n: t for n, t in tensors.items() if t.shape[:k] == batch_shape})
        self._patience = patience
        example = next(iter(tensors.values()))
        self.score = example.new_full(batch_shape, -torch.inf)
        self.stale = torch.zeros(batch_shape, dtype=torch.int64, device=example.device)

    @property
    def finished(self) -> Tensor:
        """Which replicas ran out of patience, shape ``batch_shape``."""
        return self.stale >= self._patience

    @torch.no_grad()
    def update(self, score: Tensor) -> None:
        """Compare a new ``score (*batch_shape)``, higher is better, and keep what improved."""
        finished = self.finished
        improved = (score > self.score) & ~finished
        self.score.copy_(torch.where(improved, score, self.score))
        stale = torch.where(improved, 0, self.stale + 1)
        self.stale.copy_(torch.where(finished, self.stale, stale))
        for name, tensor in self.copies.tensors.items():
            kept = self.copies.values[name]
            kept.copy_(torch.where(per_replica(improved, tensor), tensor, kept))


def check_replicated(
    what: str, parameters: Mapping[str, nn.Parameter], batch_shape: tuple[int, ...]
) -> None:
    """Refuse parameters that several replicas share: ``what`` treats each replica by itself."""
    for name, parameter in parameters.items():
        if parameter.shape[: len(batch_shape)] != batch_shape:
            raise ConfigError(
                f"{what} treats each replica by itself, but {name} of shape "
                f"{tuple(parameter.shape)} does not lead with batch_shape {batch_shape}"
            )
