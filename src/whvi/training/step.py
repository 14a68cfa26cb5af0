r"""One training step: the objective and its gradient, guards, Adam.

The loss is ``−ELBO / N``, summed over the replicas, with
``ELBO = N · mean log p(y | f) − β KL``. Where the model can be compiled, its part of the gradient
comes from the gradients of the loss with respect to ``f`` and the KL, which are plain numbers:
``∂/∂ log p = −1 / n`` for a batch of ``n`` values and ``∂/∂ KL = β / N``.
"""

from __future__ import annotations

import contextlib
import functools
from typing import cast, final

import torch
from torch import Tensor

from whvi.elbo import Elbo, elbo_of_values
from whvi.functions import local_function_values, with_draws
from whvi.layers.compiled import CompiledModel, compile_model
from whvi.layers.protocol import ModelKL
from whvi.likelihoods import Likelihood
from whvi.sampling import LocalReparameterization, sampling
from whvi.training.config import kl_weight, learning_rate
from whvi.training.distributed import average_over_ranks, unmanaged
from whvi.training.gradients import (
    all_finite,
    blame_objective,
    blame_overflow,
    check_finite_tensors,
    clip_per_replica,
    replica_norms,
)
from whvi.training.state import TrainingState

Gradients = list[Tensor | None]  # along the trained parameters


@final
class NoiseHold(contextlib.AbstractContextManager["NoiseHold"]):
    """Keeps the noise parameters out of the first steps: no gradient, so no moments in Adam.

    When the block ends they are as they were found.
    """

    def __init__(self, likelihood: Likelihood, num_steps: int) -> None:
        self._parameters = [p for p in likelihood.noise_parameters() if p.requires_grad]
        self._num_steps = num_steps
        self._holding = False

    def update(self, step: int) -> None:
        """Hold before step ``num_steps``, release from then on."""
        if (step < self._num_steps) != self._holding:
            self._holding = not self._holding
            for parameter in self._parameters:
                parameter.requires_grad_(not self._holding)

    def __exit__(self, *_: object) -> None:
        self.update(self._num_steps)


@final
class Stepper:
    """Takes steps of Adam on ``−ELBO / N``, ``N = num_data``, summed over the replicas.

    ``num_data`` is a number, or one for every replica.
    """

    def __init__(self, state: TrainingState, num_data: int | Tensor) -> None:
        self._state, self._num_data = state, num_data
        if isinstance(num_data, Tensor):
            self._num_data = num_data.to(next(iter(state.parameters.values())))
        self._kl = ModelKL(state.model)
        self._parameters = list(state.parameters.values())
        by_kernel = state.config.compiled and not torch.is_autocast_enabled(state.device.type)
        self._compiled = compile_model(state.model, reuse=True) if by_kernel else None
        if self._compiled is not None:  # where the gradient of each is among those it gives
            given = [*self._compiled.parameters, *state.likelihood.parameters()]
            places = {p: i for i, p in enumerate(given) if p is not None}
            self._places = [places[p] for p in self._parameters]
        was_compiled = state.history.compiled or state.step == 0
        state.history.compiled = self._compiled is not None and was_compiled
        self.hold = NoiseHold(state.likelihood, state.config.noise_hold_steps)
        for parameter in self._parameters:
            parameter.grad = None

    def evaluate(self, x: Tensor, y: Tensor, *, stop: bool = False) -> tuple[Elbo, Gradients, bool]:
        """Return the objective on a batch, the gradients of the loss, and whether to stop.

        With several ranks these are means over the ranks, and all stop if one was told to.

        Raises:
            NumericalError: Objective or gradients are not finite.
        """
        state = self._state
        self.hold.update(state.step)
        beta = kl_weight(state.config, state.step)
        if self._compiled is not None and not self._compiled.is_current:
            self._compiled, state.history.compiled = None, False
        if self._compiled is None:
            result, gradients = self._by_layers(x, y, beta)
        else:
            result, gradients = self._by_kernel(self._compiled, x, y, beta)
        if state.ranks.world_size > 1:
            result, stop = self._averaged(result, gradients, stop)
        terms = [result.expected_log_lik.detach(), result.kl.detach()]
        if not all_finite([*terms, *(g for g in gradients if g is not None)]):
            blame_objective(result, state.step + 1)
            check_finite_tensors("the gradient", self._named(gradients), state.step + 1)
        return result, gradients, stop

    def descend(self, gradients: Gradients) -> None:
        """Clip, step, average the weights."""
        state, max_norm = self._state, self._state.config.max_grad_norm
        if max_norm is not None:
            given = [gradient for gradient in gradients if gradient is not None]
            norms = replica_norms(given, state.batch_shape)
            if not bool(norms.isfinite().all()):
                blame_overflow(self._named(gradients), state.step + 1)
            clip_per_replica(given, norms, max_norm)
        state.adam.step(gradients, learning_rate(state.config, state.step))
        state.step += 1
        if state.average is not None:
            state.average.update(state.step)

    def _by_layers(self, x: Tensor, y: Tensor, beta: float) -> tuple[Elbo, Gradients]:
        """Objective and gradients by autograd through the model."""
        state, num_data = self._state, self._num_data
        num_draws, generator = state.config.num_draws, state.generator
        f = local_function_values(state.model, x, state.batch_shape, num_draws, generator)
        with sampling(LocalReparameterization(generator)):  # for KLs that are estimated
            kl = self._kl()
        result = elbo_of_values(state.likelihood, f, y, kl, num_data=num_data, beta=beta)
        (result.value * (-1 / num_data)).sum().backward()
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return result, gradients

    def _by_kernel(
        self, model: CompiledModel, x: Tensor, y: Tensor, beta: float
    ) -> tuple[Elbo, Gradients]:
        """The same, with autograd for the likelihood at most."""
        state, num_data = self._state, self._num_data
        rows = with_draws(x, state.batch_shape, state.config.num_draws)
        with torch.no_grad():
            f, kl, kept = model.forward(rows, LocalReparameterization(state.generator))
            log_prob, vjp = state.likelihood.vjp(f, y)
            per_value, per_nat = _slopes(num_data, log_prob.shape, beta, kl.dtype)
            to_f, *to_likelihood = vjp(per_value)
            found = [*model.backward(kept, cast(Tensor, to_f), per_nat), *to_likelihood]
            result = Elbo(num_data * log_prob.mean((-2, -1)), kl, beta)
        parameters = zip(self._parameters, self._places, strict=True)
        return result, [found[i] if p.requires_grad else None for p, i in parameters]

    def _averaged(self, result: Elbo, gradients: Gradients, stop: bool) -> tuple[Elbo, bool]:
        """Average over the ranks: the gradients that nobody else averages, and the objective."""
        terms = torch.stack([result.expected_log_lik, result.kl]).detach()
        extra = torch.cat([terms.reshape(-1), terms.new_tensor([float(stop)])])
        own = unmanaged(self._state.model, self._parameters)
        mean = average_over_ranks([g for i in own if (g := gradients[i]) is not None], extra)
        log_lik, kl = mean[:-1].view_as(terms)
        return Elbo(log_lik, kl, result.beta), mean[-1].item() > 0

    def _named(self, gradients: Gradients) -> list[tuple[str, Tensor]]:
        names = self._state.parameters
        return [(name, g) for name, g in zip(names, gradients, strict=True) if g is not None]


@functools.lru_cache(maxsize=8)
def _slopes(
    num_data: int | Tensor, shape: torch.Size, beta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return ``∂ loss / ∂ log p = −1 / n`` and ``∂ loss / ∂ KL``, rounded as by autograd.

    ``shape (*batch_shape, S, B)`` is that of ``log p``, with ``n = S B``.
    """
    per_datum = torch.as_tensor(1 / num_data, dtype=dtype).expand(shape[:-2])
    per_value = -per_datum.mul(num_data).div(shape[-2] * shape[-1])
    return per_value[..., None, None].expand(shape), per_datum.mul(beta)
