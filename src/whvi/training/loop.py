"""The training loop, top to bottom."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from whvi.elbo import Elbo
from whvi.errors import NumericalError
from whvi.functions import draw_functions
from whvi.layers.protocol import kl_per_layer
from whvi.likelihoods import Likelihood
from whvi.training.batches import (
    Batch,
    BatchSource,
    batch_source,
    check_tensors,
    tensor_digest,
    tensor_pair,
)
from whvi.training.checkpoint import Checkpoints, resumed
from whvi.training.config import FitConfig, learning_rate, seeded_generator
from whvi.training.distributed import Ranks, broadcast_from_first, current_ranks, unwrapped
from whvi.training.gradients import check_finite_tensors
from whvi.training.history import History, StepRecord, Value, progress_bar
from whvi.training.process import Interrupts, deferred_interrupts
from whvi.training.state import LastGood, TrainingState
from whvi.training.step import Stepper

Callback = Callable[[StepRecord], None]

_VALIDATION_DRAWS = 16
_VALIDATION_ROWS = 4096
_FORMAT_VERSION = 2  # of checkpoints: raise it when names or meanings in them change


def fit(
    model: nn.Module,
    likelihood: Likelihood,
    data: Batch | Iterable[Batch],
    *,
    config: FitConfig,
    validation: Batch | None = None,
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
        config: Options.
        validation: ``(x, y)`` held out, scored every ``config.eval_every`` steps by the mean log
            predictive density.
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
    ranks = current_ranks()
    state = TrainingState(unwrapped(model), likelihood, config, ranks)
    source = batch_source(
        data,
        config=config,
        num_data=num_data,
        batch_shape=state.batch_shape,
        ranks=ranks,
        device=state.device,
    )
    if validation is not None:
        check_tensors("validation", *validation, state.device)
    for pair in (tensor_pair(data), validation):
        if pair is not None:
            likelihood.check_targets(pair[1])
    if ranks.world_size > 1:
        broadcast_from_first([*state.parameters.values(), *state.buffers().values()])
    with contextlib.ExitStack() as stack:
        keep: Callable[[bool], None] | None = None
        if checkpoint is not None:
            fingerprint = _fingerprint(state, config, source, validation, ranks)
            keep = stack.enter_context(resumed(state, checkpoint, fingerprint, ranks))
        if progress and ranks.rank == 0:
            bar = progress_bar(config.num_steps, state.step)
            callbacks = (*callbacks, stack.enter_context(bar))
        stepper = Stepper(model, likelihood, state, config, ranks, source.num_data)
        state.history.compiled = stepper.compiled and (state.history.compiled or state.step == 0)
        stack.callback(stepper.hold.release)
        stack.enter_context(_mode(model, training=True))
        recorder = _Recorder(unwrapped(model), likelihood, config, state, validation, callbacks)
        interrupts = stack.enter_context(deferred_interrupts())
        _take_steps(state, config.num_steps, stepper, source, recorder, keep, interrupts)
    state.conclude()
    return state.history


def _take_steps(
    state: TrainingState,
    num_steps: int,
    stepper: Stepper,
    source: BatchSource,
    recorder: _Recorder,
    keep: Callable[[bool], None] | None,
    interrupts: Interrupts,
) -> None:
    """Go on from ``state.step`` to the end, to early stopping, to a signal or to an error."""
    good = LastGood([*state.parameters.values(), *state.buffers().values()], state.step)
    batches = source.batches(state.step)
    try:
        while state.step < num_steps and not state.finished:
            x, y = next(batches)
            due = recorder.is_due(state.step + 1)
            told = interrupts.received is not None
            result, stop = stepper.take(x, y, good=good if due else None, stop=told)
            if due:
                recorder.record(result)
            if keep is not None:
                keep(stop or state.finished or state.step == num_steps)
            if stop:
                interrupts.reraise()
        state.check_finite()
    except NumericalError as error:
        good.restore()
        raise NumericalError(f"{error}; the model is back at step {good.step}") from error


@final
class _Recorder:
    """Takes records: of the objective, and of the score on validation data."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        config: FitConfig,
        state: TrainingState,
        validation: Batch | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self._model, self._likelihood = model, likelihood
        self._config, self._state = config, state
        self._validation, self._callbacks = validation, callbacks

    def is_due(self, step: int) -> bool:
        """Tell whether a record is taken after ``step`` steps: the last one always is."""
        every = self._config.record_every
        return step % every == 0 or step == self._config.num_steps or self._is_evaluated(step)

    def record(self, result: Elbo) -> None:
        """Add a record of the step just taken to the history and tell the callbacks."""
        state = self._state
        record = StepRecord(
            step=state.step,
            learning_rate=learning_rate(self._config, state.step - 1),
            beta=result.beta,
            expected_log_lik=result.expected_log_lik.tolist(),
            kl=result.kl.tolist(),
            layer_kl={name: kl.tolist() for name, kl in kl_per_layer(self._model).items()},
            noise=[p.tolist() for p in self._likelihood.noise_parameters()],
            validation=self._score() if self._is_evaluated(state.step) else None,
        )
        state.history.append(record)
        for callback in self._callbacks:
            callback(record)

    def _is_evaluated(self, step: int) -> bool:
        config = self._config
        due = step % config.eval_every == 0 or step == config.num_steps
        return self._validation is not None and due

    def _score(self) -> Value | None:
        """Score the weights that the fit would end with now; keep the best."""
        if self._validation is None:
            return None
        state = self._state
        with state.averaged_weights(), _mode(self._model, training=False):
            score = log_predictive_density(
                self._model, self._likelihood, *self._validation, seed=self._config.seed
            )
            check_finite_tensors("the score", [("the validation data", score)], state.step)
            if state.best is not None:
                state.best.update(score)
        value: Value = score.tolist()
        return value


@torch.no_grad()
def log_predictive_density(
    model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, *, seed: int
) -> Tensor:
    r"""Return the mean over rows of ``log 1/S Σ_s p(y | f_s(x))``, shape ``batch_shape``.

    The draws are a function of ``seed``: two sets of weights are compared with the same noise.
    """
    generator = seeded_generator("validation", seed, device=x.device)
    f = draw_functions(
        model, x, num_samples=_VALIDATION_DRAWS, generator=generator, batch_size=_VALIDATION_ROWS
    )
    log_prob = likelihood.log_prob(f, y)
    return (log_prob.logsumexp(-2) - math.log(_VALIDATION_DRAWS)).mean(-1)


@contextlib.contextmanager
def _mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put ordinary modules (dropout, batch norm) in a mode, and each back afterwards."""
    former = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in former:
            module.training = mode


def _fingerprint(
    state: TrainingState,
    config: FitConfig,
    source: BatchSource,
    validation: Batch | None,
    ranks: Ranks,
) -> dict[str, dict[str, Any]]:
    """Return what must be the same for a fit to go on, as plain values."""
    held_out = {} if validation is None else {"xy": [*map(tensor_digest, validation)]}
    return {
        "format": {"version": _FORMAT_VERSION},
        "config": config.as_dict(),
        "data": source.fingerprint(),
        "validation": held_out,
        "weights": state.layout(),
        "distributed": {"world_size": ranks.world_size},
    }
