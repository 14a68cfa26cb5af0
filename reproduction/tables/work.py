"""One unit: fit a method on the training rows of a fold, predict the others once, score.

Scores: RMSE in standard deviations of the target and accuracy; mean negative log-likelihood,
which is that of the standardised target, of the class, or the probability mass of a count.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor

from reproduction.records import Record, origin
from reproduction.runner import Unit
from reproduction.tables.data import Table, load_table
from reproduction.tables.methods import METHODS, library_commit
from whvi.metrics import accuracy, mnll, rmse
from whvi.predictive import Predictive

TIME_LIMIT = 600.0
"""Seconds that a single fit may take."""

UNFINISHED = "did not finish"
_QUICK_ROWS = 300
_LEAST_MASS = 1e-12  # below, differences of distribution functions are rounding errors


@dataclass(frozen=True)
class TablesWork:
    """Computes the records of a unit.

    Attributes:
        data_dir: Folder that holds ``tables``.
        quick: Few rows, little training.
    """

    data_dir: str | None = None
    quick: bool = False

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield one record per fold."""
        table = _load(unit.dataset, self.data_dir, self.quick)
        for fold in unit.splits:
            train, test = table.fold(fold)
            found = within(
                TIME_LIMIT,
                lambda tick, train=train, test=test: evaluate(  # type: ignore[misc]
                    unit, table.rows(train), table.rows(test), table.unit, self.quick, tick
                ),
            )
            yield {
                **unit.key(fold),
                "task": table.task,
                **found,
                "num_train": len(train),
                "num_test": len(test),
                **origin(table.sha256, quick=self.quick),
                "commit": library_commit(),
            }


@lru_cache(maxsize=1)
def _load(name: str, data_dir: str | None, quick: bool) -> Table:
    return load_table(name, data_dir, most_rows=_QUICK_ROWS if quick else None)


def evaluate(
    unit: Unit, train: Table, test: Table, scale: float, quick: bool, tick: Callable[[], None]
) -> Record:
    """Fit, predict and score; seconds are those of the first fit, and of the predictions."""
    torch.set_num_threads(1)
    start, first = time.perf_counter(), []

    def after_a_fit() -> None:
        first.append(time.perf_counter() - start)
        tick()

    predict = METHODS[unit.method].fit(train, unit.seed, quick, after_a_fit)
    asked = time.perf_counter()
    predictive = predict(test.x)
    seconds = {"fit_seconds": first[0], "predict_seconds": time.perf_counter() - asked}
    return {"outcome": "done", **scores(predictive, test, scale), **seconds}


def scores(predictive: Predictive, test: Table, scale: float) -> dict[str, float]:
    """Score predictions; ``scale`` is the standard deviation of the target."""
    y = torch.as_tensor(test.y)
    if test.is_classification:
        labels = y.long()
        return {
            "accuracy": float(accuracy(predictive.mode, labels)),
            "mnll": float(mnll(predictive.log_prob(labels))),
        }
    log_prob = predictive.log_prob(y) + np.log(scale)
    if test.task == "count":
        log_prob = log_mass(predictive, y)
    unit = float(np.std(test.y)) if test.task == "count" else scale
    return {
        "rmse": float(rmse(predictive.mean, y)) / unit,
        "mnll": float(mnll(log_prob)),
    }


def log_mass(predictive: Predictive, y: Tensor) -> Tensor:
    """Return the log-probability of counts; a density counts from y − ½ to y + ½, all below at 0.

    Far out, where the difference of the distribution function is lost, it is the density at y.
    """
    if predictive.discrete:
        return predictive.log_prob(y)
    below = torch.where(y > 0, predictive.cdf(y - 0.5), torch.zeros_like(y))
    mass = predictive.cdf(y + 0.5) - below
    return torch.where(mass > _LEAST_MASS, mass.clamp_min(1e-300).log(), predictive.log_prob(y))


def within(seconds: float, work: Callable[[Callable[[], None]], Record]) -> Record:
    """Run ``work(tick)`` in a process of its own, which ends if no tick comes for ``seconds``.

    Returns:
        What it returned, or a record of the outcome :data:`UNFINISHED` or of its error.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, sender))
    process.start()
    sender.close()
    try:
        while receiver.poll(seconds):
            message: Record | None = receiver.recv()
            if message is not None:
                return message
        return {"outcome": UNFINISHED}
    except EOFError:
        process.join()
        return {"outcome": f"failed: the process ended with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _answer(work: Callable[[Callable[[], None]], Record], sender: Connection) -> None:
    try:
        sender.send(work(lambda: sender.send(None)))
    except Exception as error:  # a rival's own: told in the report, the other cells go on
        sender.send({"outcome": f"failed: {type(error).__name__}: {error}"[:300]})
