"""The training loop, top to bottom."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whvi.elbo import Elbo
from whvi.errors import NumericalError
from whvi.functions import draw_functions, in_mode
from whvi.layers.protocol import kl_per_layer
from whvi.likelihoods import Likelihood
from whvi.training.batches import (
    Batch,
    BatchSource,
    WeightedBatch,
    batch_source,
    check_batch,
    tensor_digest,
)
from whvi.training.checkpoint import Checkpoints, resumed
from whvi.training.config import FitConfig, learning_rate, seeded_generator
from whvi.training.distributed import broadcast_from_first, check_whole, current_ranks
from whvi.training.gradients import check_finite_tensors
from whvi.training.history import History, StepRecord, Value, progress_bar
from whvi.training.process import deferred_interrupts
from whvi.training.state import Copies, TrainingState
from whvi.training.step import Stepper

Callback = Callable[[StepRecord], None]

_VALIDATION_DRAWS = 16
_VALIDATION_ROWS = 128  # at once: of more, values leave the cache and take three times as long
_FORMAT_VERSION = 3  # of checkpoints: raise it when names or meanings in them change


def fit(
    model: nn.Module,
    likelihood: Likelihood,
    data: Batch | WeightedBatch | Iterable[Batch],
    *,
    config: FitConfig,
    validation: Batch | WeightedBatch | None = None,
    num_data: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoints | str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> History:
    r"""Maximise the ELBO over the parameters of ``model`` and ``likelihood``, in place.

    Each step follows the gradient of ``−ELBO / N``, summed over replicas, so every replica is
    trained as if alone. Adam's step does not depend on that scale.

    Args:
        model: Its Bayesian layers give ``batch_shape``. May be wrapped in
            ``DistributedDataParallel``; see :mod:`whvi.training.distributed`.
        likelihood: ``log_prob(f, y)`` and the noise.
        data: ``(x, y)`` tensors in memory, shared by the replicas (``(N, ...)``) or one set per
            replica (``(*batch_shape, N, ...)``); or a ``DataLoader`` or other iterable of batches.
            ``(x, y, weights)``, with weights of at least 0, ``(N,)`` or ``(*batch_shape, N)``: row
            ``i`` counts ``w_i`` times in the ELBO, whose number of data is the sum of the weights.
            Rows are drawn into batches in proportion; weights of 1 change nothing.
        config: Options.
        validation: ``(x, y)`` or ``(x, y, weights)`` held out, scored every ``config.eval_every``
            steps by the (weighted) mean log predictive density.
        num_data: Rows of the whole training set; needed for an iterable only.
        callbacks: Each is called with every :class:`StepRecord`, on every rank.
        checkpoint: Folder for checkpoints. If it holds one of the same fit, that fit goes on,
            and ends bitwise as if it had never stopped (same machine and thread count; modules
            that draw from torch's global generator, such as ``nn.Dropout``, excepted).
        progress: Show a progress bar on stderr (needs rich).

    Returns:
        The records of all steps, also those before a resumption.

    Raises:
        NumericalError: Objective or gradient left the finite numbers; the model is back at the
            last recorded weights with a finite objective.
        KeyboardInterrupt, SystemExit: After SIGINT or SIGTERM, once the step is finished and the
            checkpoint written.
    """
    state = TrainingState(model, likelihood, config, current_ranks())
    source = batch_source(data, state, num_data)
    if validation is not None:
        check_batch("validation", validation, state)
    if state.ranks.world_size > 1:
        check_whole(state.parameters)
        broadcast_from_first(state.changing().values())
    with contextlib.ExitStack() as stack:
        keep = None
        if checkpoint is not None:
            fingerprint = _fingerprint(state, source, validation)
            keep = stack.enter_context(resumed(state, checkpoint, fingerprint))
        if progress and state.ranks.rank == 0:
            bar = progress_bar(config.num_steps, state.step)
            callbacks = (*callbacks, stack.enter_context(bar))
        _take_steps(state, source, validation, callbacks, keep)
    state.conclude()
    return state.history


def _take_steps(
    state: TrainingState,
    source: BatchSource,
    validation: Batch | WeightedBatch | None,
    callbacks: Sequence[Callback],
    keep: Callable[[bool], None] | None,
) -> None:
    """Go on from ``state.step`` to the end, to early stopping, to a signal or to an error."""
    config, batches = state.config, source.batches(state.step)
    stepper = Stepper(state, source.num_data)
    good, good_step = Copies(state.changing()), state.step
    try:
        with stepper.hold, in_mode(state.model, training=True), deferred_interrupts() as interrupts:
            while state.step < config.num_steps and not state.finished:
                told = interrupts.received is not None
                result, gradients, stop = stepper.evaluate(*next(batches), stop=told)
                due, scored = _due(config, state.step + 1, validated=validation is not None)
                if due:
                    good.save()
                    good_step = state.step
                stepper.descend(gradients)
                if due:
                    # where squares overflow, Adam would silently stop moving
                    moments = state.adam.second_moments()
                    check_finite_tensors("Adam's second moment", moments, state.step)
                    _record(state, result, validation if scored else None, callbacks)
                if keep is not None:
                    keep(stop or state.finished or state.step == config.num_steps)
                if stop:
                    interrupts.reraise()
            state.check_finite()
    except NumericalError as error:
        good.restore()
        raise NumericalError(f"{error}; the model is back at step {good_step}") from error


def _due(config: FitConfig, step: int, *, validated: bool) -> tuple[bool, bool]:
    """Tell whether step ``step`` is recorded and whether it is scored: the last always is."""
    is_last = step == config.num_steps
    scored = validated and (is_last or step % config.eval_every == 0)
    return scored or is_last or step % config.record_every == 0, scored


def _record(
    state: TrainingState,
    result: Elbo,
    validation: Batch | WeightedBatch | None,
    callbacks: Sequence[Callback],
) -> None:
    """Add a record of the step just taken to the history and call the callbacks."""
    record = StepRecord(
        step=state.step,
        learning_rate=learning_rate(state.config, state.step - 1),
        beta=result.beta,
        expected_log_lik=result.expected_log_lik.tolist(),
        kl=result.kl.tolist(),
        layer_kl={name: kl.tolist() for name, kl in kl_per_layer(state.bare).items()},
        noise=[p.tolist() for p in state.likelihood.noise_parameters()],
        validation=None if validation is None else _score(state, *validation),
    )
    state.history.append(record)
    for callback in callbacks:
        callback(record)


def _score(state: TrainingState, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Value:
    """Score the weights that the fit would end with now; keep the best."""
    model, likelihood, seed = state.bare, state.likelihood, state.config.seed
    with state.average or contextlib.nullcontext(), in_mode(model, training=False):
        score = log_predictive_density(model, likelihood, x, y, seed=seed, weights=weights)
        check_finite_tensors("the score", [("the validation data", score)], state.step)
        if state.best is not None:
            state.best.update(score)
    value: Value = score.tolist()
    return value


@torch.no_grad()
def log_predictive_density(
    model: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Return the mean over rows of ``log 1/S Σ_s p(y | f_s(x))``, shape ``batch_shape``.

    With row weights, ``(N,)`` or ``(*batch_shape, N)``, it is the weighted mean. The draws are a
    function of ``seed``: two sets of network weights are compared with the same noise.
    """
    generator = seeded_generator("validation", seed, device=x.device)
    f = draw_functions(
        model, x, num_draws=_VALIDATION_DRAWS, generator=generator, batch_size=_VALIDATION_ROWS
    )
    log_prob = likelihood.log_prob(f, y)
    density = log_prob.logsumexp(-2) - math.log(_VALIDATION_DRAWS)
    if weights is None:
        return density.mean(-1)
    return (weights / weights.sum(-1, keepdim=True) * density).sum(-1).to(density.dtype)


def _fingerprint(
    state: TrainingState, source: BatchSource, validation: Batch | WeightedBatch | None
) -> dict[str, dict[str, Any]]:
    """Return what must be the same for a fit to go on, as plain values."""
    held_out = {} if validation is None else {"xy": [*map(tensor_digest, validation)]}
    return {
        "format": {"version": _FORMAT_VERSION},
        "config": state.config.as_dict(),
        "data": source.fingerprint(),
        "validation": held_out,
        "weights": {n: f"{t.dtype} {tuple(t.shape)}" for n, t in state.weights().items()},
        "distributed": {"world_size": state.ranks.world_size},
    }
