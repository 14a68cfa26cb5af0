"""One training step: objective, gradient, guards, Adam, average."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from whvi.elbo import Elbo, elbo_of_values
from whvi.functions import local_function_values, with_draws
from whvi.layers.protocol import ModelKL
from whvi.likelihoods import Likelihood
from whvi.sampling import LocalReparameterization, sampling
from whvi.training.compiled import compile_model
from whvi.training.config import FitConfig
from whvi.training.distributed import Ranks, average_gradients, unmanaged_parameters
from whvi.training.guards import (
    FiniteCheck,
    LastGood,
    blame_gradient,
    blame_objective,
    blame_overflow,
    check_finite_tensors,
    clip_per_replica,
    replica_norms,
)
from whvi.training.schedules import kl_weight, learning_rate
from whvi.training.state import TrainingState


@final
class NoiseHold:
    """Keeps the noise parameters out of the first steps: no gradient, so no moments in Adam."""

    def __init__(self, likelihood: Likelihood, num_steps: int) -> None:
        self._parameters = [p for p in likelihood.noise_parameters() if p.requires_grad]
        self._num_steps = num_steps
        self._holding = False

    def update(self, step: int) -> None:
        """Hold before step ``num_steps``, release from then on."""
        if (step < self._num_steps) != self._holding:
            self._set(step < self._num_steps)

    def release(self) -> None:
        """Leave the parameters as they were found."""
        self._set(False)

    def _set(self, holding: bool) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(not holding)
        self._holding = holding


@final
class Stepper:
    """Takes steps of Adam on ``−ELBO / N``, summed over the replicas.

    Args:
        model: As the user gave it, perhaps wrapped for distributed training.
        likelihood: Trained along.
        state: Moves by one step per call.
        config: Options of the fit.
        ranks: With several, gradients are averaged over them.
        num_data: ``N``.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        state: TrainingState,
        config: FitConfig,
        ranks: Ranks,
        num_data: int,
    ) -> None:
        self._model, self._likelihood = model, likelihood
        self._state, self._config = state, config
        self._num_data = num_data
        self._kl = ModelKL(model)
        self._compiled = compile_model(model)
        self._parameters = list(state.parameters.values())
        self._finite = FiniteCheck(state.device)
        self._distributed = ranks.world_size > 1
        self._unmanaged = unmanaged_parameters(model, self._parameters)
        self.hold = NoiseHold(likelihood, config.noise_hold_steps)

    def take(
        self, x: Tensor, y: Tensor, *, good: LastGood | None = None, stop: bool = False
    ) -> tuple[Elbo, bool]:
        """Take one step on a batch; leaves all gradients empty.

        Args:
            x, y: The batch.
            good: If given, remembers the weights once objective and gradients are known to be
                finite with them.
            stop: Whether this process was told to stop.

        Returns:
            The objective before the step, and whether any process was told to stop.
        """
        config, step = self._config, self._state.step
        self.hold.update(step)
        f, kl = self._values(x)
        result = elbo_of_values(
            self._likelihood, f, y, kl, num_data=self._num_data, beta=kl_weight(config, step)
        )
        loss = result.value.sum() * (-1 / self._num_data)
        loss.backward()
        if self._distributed:
            result, stop = self._averaged(result, stop)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        self._guard(loss, result, gradients)
        if good is not None:
            good.remember(step)
        self._descend(gradients)
        if good is not None:
            self._check_moments()
        return result, stop

    def _values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Function values by local reparameterization and the KL, in one node where possible."""
        batch_shape, num_draws = self._state.batch_shape, self._config.num_draws
        generator = self._state.generator
        if self._compiled is not None and self._compiled.is_current:
            rows = with_draws(x, batch_shape, num_draws)
            return self._compiled(rows, LocalReparameterization(generator))
        f = local_function_values(self._model, x, batch_shape, num_draws, generator)
        with sampling(LocalReparameterization(generator)):  # for KLs that are estimated
            return f, self._kl()

    def _guard(self, loss: Tensor, result: Elbo, gradients: list[Tensor]) -> None:
        """Refuse a step whose objective or gradients are not finite, before it is taken."""
        step = self._state.step + 1
        if not math.isfinite(loss.item()) or self._distributed:
            blame_objective(result, step)
        if not self._finite.all_finite(gradients):
            blame_gradient(self._state.parameters, step)

    def _descend(self, gradients: list[Tensor]) -> None:
        """Clip, step, clear the gradients, average."""
        state, config = self._state, self._config
        if config.max_grad_norm is not None:
            norms = replica_norms(gradients, state.batch_shape)
            if not bool(norms.isfinite().all()):
                blame_overflow(state.parameters, state.step + 1)
            clip_per_replica(gradients, norms, config.max_grad_norm)
        state.optimizer.param_groups[0]["lr"] = learning_rate(config, state.step)
        state.optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        state.step += 1
        if state.average is not None:
            state.average.update(state.step)

    def _averaged(self, result: Elbo, stop: bool) -> tuple[Elbo, bool]:
        """Average over the ranks: the gradients that nobody else averages, and the objective."""
        terms = torch.stack([result.expected_log_lik, result.kl]).detach()
        extra = torch.cat([terms.reshape(-1), terms.new_tensor([float(stop)])])
        mean = average_gradients(self._unmanaged, extra)
        log_lik, kl = mean[:-1].view_as(terms)
        return Elbo(log_lik, kl, result.beta), mean[-1].item() > 0

    def _check_moments(self) -> None:
        """Refuse gradients whose squares overflow: Adam would silently stop moving them."""
        state = self._state
        moments = (
            (name, state.optimizer.state[parameter]["exp_avg_sq"])
            for name, parameter in state.parameters.items()
            if parameter in state.optimizer.state
        )
        check_finite_tensors("Adam's second moment", moments, state.step)
