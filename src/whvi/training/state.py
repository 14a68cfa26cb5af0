"""The training state: everything that decides how a fit goes on, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from whvi.errors import ConfigError
from whvi.functions import batch_shape_of
from whvi.likelihoods import Likelihood
from whvi.training.averaging import BestWeights, WeightAverage, check_replicated, leading
from whvi.training.config import FitConfig
from whvi.training.distributed import Ranks, gather_rows
from whvi.training.guards import check_finite_tensors
from whvi.training.history import History
from whvi.training.seeds import seeded_generator


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
        self,
        model: nn.Module,
        likelihood: Likelihood,
        config: FitConfig,
        ranks: Ranks,
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
        # fused: one call for all parameters instead of one per parameter and operation
        self.optimizer = torch.optim.Adam(
            self.parameters.values(), lr=config.learning_rate, fused=True
        )
        self.generator = seeded_generator("noise", config.seed, ranks.rank, device=self.device)
        decay, patience = config.ema_decay, config.patience
        self.average = None if decay is None else WeightAverage(self.parameters, decay)
        kept = leading([*self.parameters.items(), *self.buffers().items()], batch_shape)
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
        found = {f"weights/{name}": tensor for name, tensor in self._weights().items()}
        for name, parameter in self.parameters.items():
            for moment, tensor in self.optimizer.state.get(parameter, {}).items():
                found[f"adam/{name}/{moment}"] = tensor
        found |= {f"average/{name}": tensor for name, tensor in self._averages().items()}
        if self.best is not None:
            found |= {f"best/{name}": tensor for name, tensor in self.best.values.items()}
            found |= {"score": self.best.score, "stale": self.best.stale}
        found["generators"] = gather_rows(self.generator.get_state(), self._ranks)
        return found

    def metadata(self) -> dict[str, Any]:
        """Return step and history, ready for JSON."""
        return {"step": self.step, "history": self.history.as_dict()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Become the state that :meth:`tensors` and :meth:`metadata` described."""
        self.step = metadata["step"]
        self.history = History(**metadata["history"])
        targets = {f"weights/{name}": tensor for name, tensor in self._weights().items()}
        targets |= {f"average/{name}": tensor for name, tensor in self._averages().items()}
        if self.best is not None:
            targets |= {f"best/{name}": tensor for name, tensor in self.best.values.items()}
            targets |= {"score": self.best.score, "stale": self.best.stale}
        for name, target in targets.items():
            target.copy_(tensors[name])
        for name, parameter in self.parameters.items():
            prefix = f"adam/{name}/"
            moments = {
                n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)
            }
            if moments:
                self.optimizer.state[parameter] = {
                    moment: tensor.to(self.device) for moment, tensor in moments.items()
                }
        # clone: torch crashes on the state in a view that does not begin its storage
        self.generator.set_state(tensors["generators"][self._ranks.rank].clone())

    def _averages(self) -> dict[str, Tensor]:
        return {} if self.average is None else self.average.values

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
