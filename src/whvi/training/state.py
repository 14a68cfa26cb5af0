"""The training state: everything that decides how a fit goes on, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from whvi.errors import ConfigError
from whvi.functions import batch_shape_of
from whvi.likelihoods import Likelihood
from whvi.training.config import FitConfig, seeded_generator
from whvi.training.distributed import Ranks, gather_rows
from whvi.training.gradients import Adam, check_finite_tensors, per_replica
from whvi.training.history import History


@final
class TrainingState:
    """Weights, Adam's moments, averages, best weights, noise generator, step and history.

    Args:
        model: The bare module (not wrapped in ``DistributedDataParallel``).
        likelihood: Its parameters are trained along.
        config: Options of the fit.
        ranks: Each rank draws its own noise.
    """

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, config: FitConfig, ranks: Ranks
    ) -> None:
        self.batch_shape = batch_shape = batch_shape_of(model)
        self._modules: dict[str, nn.Module] = {"model": model, "likelihood": likelihood}
        self._ranks = ranks
        self.step = 0
        self.history = History()
        self.parameters = self._named_parameters()
        self.device = next(iter(self.parameters.values())).device
        for option in ("max_grad_norm", "patience"):
            if getattr(config, option) is not None:
                check_replicated(option, self.parameters, batch_shape)
        self.adam = Adam(self.parameters)
        self.generator = seeded_generator("noise", config.seed, ranks.rank, device=self.device)
        decay, patience = config.ema_decay, config.patience
        self.average = None if decay is None else WeightAverage(self.parameters, decay)
        kept = {
            name: tensor
            for name, tensor in (self.parameters | self.buffers()).items()
            if tensor.shape[: len(batch_shape)] == batch_shape
        }
        self.best = None if patience is None else BestWeights(kept, batch_shape, patience)

    @property
    def finished(self) -> bool:
        """Whether every replica has run out of patience."""
        return self.best is not None and bool(self.best.finished.all())

    def buffers(self) -> dict[str, Tensor]:
        """Return the buffers of model and likelihood by name."""
        return {
            f"{part}.{name}": buffer
            for part, module in self._modules.items()
            for name, buffer in module.named_buffers()
        }

    def layout(self) -> dict[str, str]:
        """Return type and shape of every tensor of model and likelihood, as text by name."""
        return {name: f"{t.dtype} {tuple(t.shape)}" for name, t in self._weights().items()}

    def check_finite(self) -> None:
        """Refuse weights that are not finite, naming the first."""
        check_finite_tensors("the value", self._weights().items(), self.step)

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Let the model have its averaged weights, if there are such, inside the block."""
        if self.average is None:
            yield
            return
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()

    def conclude(self) -> None:
        """Leave the model with the weights to use: the best, else the average, else the last."""
        if self.best is not None:
            self.best.restore()
        elif self.average is not None:
            self.average.swap()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the state by name; refuse weights that are not finite.

        The names are ``weights/…``, ``adam/<parameter>/<moment>``, ``average/…``, ``best/…``,
        ``generators`` (one row per rank), and ``score``, ``stale`` of early stopping.
        """
        self.check_finite()
        moments = {f"adam/{name}": tensor for name, tensor in self.adam.tensors().items()}
        generators = gather_rows(self.generator.get_state(), self._ranks)
        return {**self._live(), **moments, "generators": generators}

    def metadata(self) -> dict[str, Any]:
        """Return step and history, ready for JSON."""
        return {"step": self.step, "history": self.history.as_dict()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Become the state that :meth:`tensors` and :meth:`metadata` described."""
        self.step = metadata["step"]
        self.history = History(**metadata["history"])
        for name, target in self._live().items():
            target.copy_(tensors[name])
        moments = {n.removeprefix("adam/"): t for n, t in tensors.items() if n.startswith("adam/")}
        self.adam.restore(moments)
        # clone: torch crashes on the state in a view that does not begin its storage
        self.generator.set_state(tensors["generators"][self._ranks.rank].clone())

    def _live(self) -> dict[str, Tensor]:
        """The tensors that exist from the start, sharing memory with their owners."""
        found = {f"weights/{name}": tensor for name, tensor in self._weights().items()}
        if self.average is not None:
            found |= {f"average/{name}": tensor for name, tensor in self.average.values.items()}
        if self.best is not None:
            found |= {f"best/{name}": tensor for name, tensor in self.best.values.items()}
            found |= {"score": self.best.score, "stale": self.best.stale}
        return found

    def _named_parameters(self) -> dict[str, nn.Parameter]:
        found = {
            f"{part}.{name}": parameter
            for part, module in self._modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        if not found:
            raise ConfigError("there is nothing to train: no parameter requires a gradient")
        return found

    def _weights(self) -> dict[str, Tensor]:
        """Every tensor of both modules' ``state_dict``, sharing memory with the modules."""
        return {
            f"{part}.{name}": tensor
            for part, module in self._modules.items()
            for name, tensor in module.state_dict(keep_vars=True).items()
        }


@final
class WeightAverage:
    r"""Exponential moving average of the weights.

    ``ā_t = d_t ā_{t−1} + (1 − d_t) θ_t`` with ``d_t = min(decay, (t − 1) / t)``: the plain average
    of all weights so far until that is shorter than the exponential window, so that the initial
    weights never linger.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters: list[Tensor] = list(parameters.values())
        self._decay = decay
        self.values = {name: p.detach().clone() for name, p in parameters.items()}
        self._values = list(self.values.values())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after ``step ≥ 1`` steps."""
        decay = min(self._decay, (step - 1) / step)
        torch._foreach_lerp_(self._values, self._parameters, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange average and weights; a second call undoes the first."""
        for value, parameter in zip(self._values, self._parameters, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(kept)


@final
class BestWeights:
    """The best weights of each replica on validation data, and which replicas are finished.

    Args:
        tensors: Parameters and buffers to keep, by name; each leads with ``batch_shape``.
        batch_shape: Replicas of the model.
        patience: Evaluations without improvement after which a replica is finished.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], batch_shape: tuple[int, ...], patience: int
    ) -> None:
        self._tensors = dict(tensors)
        self._patience = patience
        example = next(iter(self._tensors.values()))
        self.values = {name: t.detach().clone() for name, t in tensors.items()}
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
        for name, tensor in self._tensors.items():
            kept = self.values[name]
            kept.copy_(torch.where(per_replica(improved, tensor), tensor, kept))

    @torch.no_grad()
    def restore(self) -> None:
        """Write the best weights into the model."""
        for name, tensor in self._tensors.items():
            tensor.copy_(self.values[name])


@final
class LastGood:
    """A copy of the last tensors with which objective and gradients were seen to be finite."""

    def __init__(self, tensors: Sequence[Tensor], step: int) -> None:
        self._tensors = list(tensors)
        self._copies = [tensor.detach().clone() for tensor in tensors]
        self.step = step

    @torch.no_grad()
    def remember(self, step: int) -> None:
        """Copy the tensors as they are now, after ``step`` steps."""
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            copy.copy_(tensor)
        self.step = step

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copies back."""
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            tensor.copy_(copy)


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
