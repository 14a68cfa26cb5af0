"""Which weights a fit ends with: averaged ones, or the best on validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from whvi.errors import ConfigError
from whvi.training.guards import per_replica


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


def check_replicated(
    what: str, parameters: Mapping[str, nn.Parameter], batch_shape: tuple[int, ...]
) -> None:
    """Refuse parameters that several replicas share: ``what`` treats each replica by itself."""
    k = len(batch_shape)
    for name, parameter in parameters.items():
        if parameter.shape[:k] != batch_shape:
            raise ConfigError(
                f"{what} treats each replica by itself, but {name} of shape "
                f"{tuple(parameter.shape)} does not lead with batch_shape {batch_shape}"
            )


def leading(
    tensors: Sequence[tuple[str, Tensor]], batch_shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Return those tensors that lead with ``batch_shape``."""
    k = len(batch_shape)
    return {name: t for name, t in tensors if t.shape[:k] == batch_shape}
