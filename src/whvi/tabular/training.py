"""How an ensemble is trained: defaults by number of rows, rows left out, rates, rows to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whvi._checks import check_positive, positive_int
from whvi._files import conform_tensor
from whvi.errors import ConfigError, ModelFileError, NumericalError
from whvi.likelihoods import BalancedGradients, HeteroscedasticGaussian, Likelihood
from whvi.tabular.functions import Functions, draw_layers
from whvi.tabular.networks import reset_network
from whvi.tabular.predictor import Architecture
from whvi.training import FitConfig, fit
from whvi.training.batches import Batch, WeightedBatch
from whvi.training.config import seeded_generator
from whvi.training.history import History, StepRecord

T = TypeVar("T")

FEW_ROWS = 3000
"""Below, members leave out different rows; from here on all leave out the same ones."""

_RATE_FACTORS = (1.0, 0.3, 0.1)  # on the learning rate, tried in turn
_MOST_MEMORY, _LEAST_MEMORY, _MOST_REMEMBERED = 1024, 64, 1 << 18  # rows; numbers in them
_FEWEST_ROWS = 10  # with fewer, nothing is left out: two rows cannot judge eight
_MOST_BINS, _FEWEST_FOR_BINS = 16, 128  # of a column; rows, so that a bin holds eight
_MOST_INPUTS, _MOST_NUMBERS = 1024, 100_000_000  # of bins in a row, and in all rows
_MOST_HELD_OUT, _MOST_SCORED = 10_000, 1024  # rows: of calibration, and of early stopping


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Shape of the networks and how they are trained.

    Attributes:
        hidden: Widths of the hidden layers.
        features: As in :func:`whvi.tabular.networks.build_network`.
        members: Networks of the ensemble.
        steps, batch, learning_rate: Of Adam.
        beta: Weight of the KL; below 1 the objective is tempered and no longer a bound.
        validation_fraction: Share of the rows that each member leaves out for early stopping and
            for the calibration of the noise.
        rotate: Whether every member leaves out rows of its own, or all the same.
        bins: Of a column, if held-out rows speak for them; less than 2: none.
        binned: What differs with bins: they make steps, so no waves, and take more of a prior.
        rough: What differs for rough functions, whose waves have the frequencies of a Laplace
            kernel; ``None`` where there are too few rows for them.
        trial: What differs in the short runs by which inputs and noise are chosen.
    """

    hidden: tuple[int, ...]
    features: str
    members: int
    steps: int
    batch: int
    learning_rate: float
    beta: float
    validation_fraction: float
    rotate: bool
    bins: int
    binned: dict[str, Any]
    rough: dict[str, Any] | None
    trial: dict[str, Any]

    def with_bins(self) -> Plan:
        """Return the plan for inputs with bins."""
        return replace(self, **self.binned)

    def for_rough_functions(self) -> Plan | None:
        """Return the plan for functions that are not smooth, if there is one."""
        return None if self.rough is None else replace(self, **self.rough)

    def short(self) -> Plan:
        """Return the plan of a short run."""
        return replace(self, **self.trial)

    def going_on(self) -> Plan:
        """Return the plan for networks that were trained with simpler noise."""
        return replace(self, steps=max(1, self.steps // 2))

    def folds(self, num_rows: int, seed: int) -> Folds:
        """Choose the rows that members leave out."""
        if self.rotate:
            return rotating_folds(num_rows, self.members, self.validation_fraction, seed)
        return common_fold(num_rows, self.validation_fraction, seed)

    def fit_config(self, seed: int, *, factor: float = 1.0) -> FitConfig:
        """Return the options of :func:`whvi.fit`; ``factor`` lowers the learning rate."""
        return FitConfig(
            num_steps=self.steps,
            batch_size=self.batch,
            learning_rate=factor * self.learning_rate,
            beta=self.beta,
            eval_every=max(1, self.steps // 20, min(100, self.steps // 5)),
            patience=8 if self.validation_fraction else None,
            record_every=max(1, self.steps // 100),
            seed=seed,
        )


def plan_for(
    num_rows: int,
    num_columns: int = 1,
    *,
    hidden: int | Sequence[int] | None = None,
    members: int | None = None,
    max_iter: int | None = None,
    validation_fraction: float | None = None,
    beta: float | None = None,
) -> Plan:
    """Choose what the user left open by the number of rows.

    Few rows: eight narrow networks, each of which leaves out another tenth, so that the ensemble
    has seen every row. Many rows: four wide networks and one common part for validation.
    From 128 rows on a column may have 16 bins, or as many as memory allows.
    """
    few = num_rows < FEW_ROWS
    members = positive_int("n_members", _default(members, 8 if few else 4))
    steps = positive_int("max_iter", _default(max_iter, 8000 if few else 3000))
    share = _default(validation_fraction, 0.1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ConfigError(f"validation_fraction must lie in [0, 1), got {share!r}")
    binned: dict[str, Any] = {"features": "relu"}
    rough: dict[str, Any] | None = None if few else {"features": "laplace"}
    if beta is None and rough is not None:
        binned["beta"], rough["beta"] = 0.5, 0.1
    beta = _default(beta, 0.3 if few else 0.2)
    check_positive("beta", beta)
    most_bins = min(_MOST_INPUTS, _MOST_NUMBERS // num_rows) // num_columns
    trial: dict[str, Any] = {"steps": min(1500 if few else 500, max(1, steps // 5))}
    if few and share:
        trial["validation_fraction"] = max(share, 0.25)  # of four pairs: all rows
    elif not few:
        trial["members"] = min(members, 2)
    return Plan(
        hidden=_widths(hidden, (128, 128) if few else (512, 512, 512)),
        features="relu" if few else "sine",
        members=members,
        steps=steps,
        batch=32 if few else 128,
        learning_rate=1.5e-2 if few else 2e-2,
        beta=float(beta),
        validation_fraction=float(share),
        rotate=few and members > 1,
        bins=min(_MOST_BINS, most_bins) if num_rows >= _FEWEST_FOR_BINS else 0,
        binned=binned,
        rough=rough,
        trial=trial,
    )


def _widths(hidden: Any, default: tuple[int, ...]) -> tuple[int, ...]:
    if hidden is None:
        return default
    several = hidden if isinstance(hidden, Iterable) and not isinstance(hidden, str) else (hidden,)
    widths = tuple(positive_int("every entry of hidden_layer_sizes", width) for width in several)
    if not widths:
        raise ConfigError("hidden_layer_sizes must name at least one layer, such as (128, 128)")
    return widths


def _default(value: T | None, default: T) -> T:
    return default if value is None else value


def train_finite(train: Callable[[float], T]) -> T:
    """Call ``train(factor)`` with smaller factors on its learning rate until it stays finite.

    Raises:
        NumericalError: Not even a tenth of the rate is small enough.
    """
    for factor in _RATE_FACTORS[:-1]:
        try:
            return train(factor)
        except NumericalError:
            continue
    return train(_RATE_FACTORS[-1])


class Session(NamedTuple):
    """What a fit may do besides fitting: resume from checkpoints, call back, show its progress."""

    checkpoint: Path | None = None
    callbacks: Sequence[Callable[[StepRecord], None]] = ()
    progress: bool = False

    def within(self, name: str) -> Session:
        """Return the same with the checkpoints in a subfolder."""
        return self if self.checkpoint is None else self._replace(checkpoint=self.checkpoint / name)


class Folds(NamedTuple):
    """Row numbers: ``(T,)`` and ``(V,)`` shared by all members, or ``(R, T)`` and ``(R, V)``.

    Drawn from a seed of our own by torch: scikit-learn's ``KFold`` has no such rotation, and its
    ``train_test_split`` would draw other rows.

    Attributes:
        train, held_out: What members train on and what they leave out.
        sharing: Neighbouring members that leave out the same rows; all of them if 0.
    """

    train: Tensor
    held_out: Tensor | None
    sharing: int = 0


class Trained(NamedTuple):
    """A trained ensemble, the record of its training, and which rows it left out."""

    architecture: Architecture
    model: nn.Sequential
    likelihood: Likelihood
    history: History
    folds: Folds

    def draw_functions(self, num_draws: int, seed: int) -> Functions:
        """Draw ``num_draws`` functions over all members, at least one of each."""
        device = next(self.model.parameters()).device
        generator = seeded_generator("predict", seed, device=device)
        per_member = -(-num_draws // self.architecture.members)
        layers = draw_layers(self.model, per_member, generator)
        return Functions(self.architecture.features, layers)


def train_ensemble(
    architecture: Architecture,
    x: Tensor,
    y: Tensor,
    plan: Plan,
    *,
    seed: int,
    session: Session,
    weights: Tensor | None = None,
    start: Trained | None = None,
) -> Trained:
    """Train networks on ``x (N, in)`` and ``y (N, out)``, which are on the device to use.

    They start afresh, or where ``start`` is. Should the objective leave the finite numbers,
    training starts again with a smaller rate. ``weights (N,)``: how often each row counts, in
    training and among the rows left out.
    """
    folds = plan.folds(len(x), seed)

    def part(rows: Tensor) -> Batch | WeightedBatch:
        return (x[rows], y[rows]) if weights is None else (x[rows], y[rows], weights[rows])

    held_out = None if folds.held_out is None else part(folds.held_out[..., :_MOST_SCORED])

    def train(factor: float) -> Trained:
        with torch.random.fork_rng(devices=[]):  # new layers draw from the global generator
            model, likelihood = architecture.build()
        if architecture.likelihood == "poisson":
            likelihood.set_target_scaling(y.cpu())
        model, likelihood = model.to(x.device), likelihood.to(x.device)
        generator = seeded_generator("start", seed)
        reset_network(model, generator, features=architecture.features)
        if start is not None:
            go_on_from(model, start.model)
            go_on_from(likelihood, start.likelihood)
        trained_by = likelihood
        if isinstance(likelihood, HeteroscedasticGaussian):
            trained_by = BalancedGradients(likelihood)
        history = fit(
            model,
            trained_by,
            part(folds.train),
            config=plan.fit_config(seed, factor=factor),
            validation=held_out,
            callbacks=session.callbacks,
            checkpoint=session.within(f"rate-{factor:g}").checkpoint,
            progress=session.progress,
        )
        return Trained(architecture, model, likelihood, history, folds)

    return train_finite(train)


@torch.no_grad()
def go_on_from(module: nn.Module, trained: nn.Module) -> None:
    """Take over what ``trained`` has under the same names.

    The last layer of networks with a noise that depends on the input has outputs more than others:
    these keep their own start.
    """
    found = trained.state_dict()
    for name, tensor in module.state_dict().items():
        if name in found:
            common = tuple(map(slice, map(min, tensor.shape, found[name].shape)))
            tensor[common] = found[name][common]


def common_fold(num_rows: int, fraction: float, seed: int) -> Folds:
    """Leave out the same random ``fraction`` of the rows for all members."""
    num_held_out = _num_held_out(num_rows, fraction)
    order = torch.randperm(num_rows, generator=seeded_generator("folds", seed))
    held_out = order[:num_held_out] if num_held_out else None
    return Folds(order[num_held_out:], held_out)


def rotating_folds(num_rows: int, num_members: int, fraction: float, seed: int) -> Folds:
    """Let every pair of members leave out the rows that follow those of the pair before it.

    The rows stand in random order on a circle. As a whole the ensemble has seen them all, and
    what a pair says about the rows it left out is an honest prediction: of a small ensemble,
    whose errors are nearer to those of the whole than the errors of one member are.
    """
    sharing = 2 if num_members % 2 == 0 else 1
    num_held_out = _num_held_out(num_rows, fraction)
    order = torch.randperm(num_rows, generator=seeded_generator("folds", seed))
    starts = torch.arange(num_members).unsqueeze(-1) // sharing * num_held_out
    circle = order[(starts + torch.arange(num_rows)) % num_rows]
    held_out = circle[:, :num_held_out] if num_held_out else None
    return Folds(circle[:, num_held_out:], held_out, sharing)


def _num_held_out(num_rows: int, fraction: float) -> int:
    if num_rows < _FEWEST_ROWS or fraction == 0:
        return 0
    return min(max(round(fraction * num_rows), 1), num_rows - 1, _MOST_HELD_OUT)


class Memory(NamedTuple):
    """Rows that stand for all that a model has seen; their targets are not kept.

    Attributes:
        encoded: Columns, ``(M, w)``.
        weight: For how many rows each stands, ``(M,)``.
    """

    encoded: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def of(cls, encoded: NDArray[np.float64], weight: NDArray[np.float64] | None = None) -> Memory:
        """Let every row stand for itself, or for as many as its weight says."""
        return cls(encoded, np.ones(len(encoded)) if weight is None else weight)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], width: int) -> Memory:
        """Read what :meth:`tensors` gave, for ``width`` encoded columns."""
        rows = len(tensors["memory.weight"])
        shapes = {"memory.encoded": (rows, width), "memory.weight": (rows,)}
        found = [conform_tensor(tensors, k, s, torch.float64).numpy() for k, s in shapes.items()]
        if not rows or not (found[1] > 0).all():
            raise ModelFileError("rows are needed whose weights are above zero")
        return cls(*found)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a model file keeps."""
        return {f"memory.{k}": torch.as_tensor(v) for k, v in self._asdict().items()}

    def thinned(self, size: int, seed: int) -> Memory:
        """Keep at most ``size`` rows by priority sampling, with the same total weight.

        A row of weight ``w`` has the priority ``w / u``, ``u`` uniform; those that are kept count
        as much as the largest priority that is not, or more if they did before (Duffield et al.,
        2007). Sums over rows are then right on average.
        """
        if len(self.weight) <= size:
            return self
        priority = self.weight / (1 - np.random.default_rng(seed).random(len(self.weight)))
        order = np.argsort(-priority, kind="stable")
        kept = np.sort(order[:size])
        weight = np.maximum(self.weight[kept], priority[order[size]])
        return Memory(self.encoded[kept], weight * (self.weight.sum() / weight.sum()))

    def kept(self, seed: int) -> Memory:
        """Keep as many rows as a model file is to hold."""
        size = _MOST_REMEMBERED // max(1, self.encoded.shape[1])
        return self.thinned(min(max(size, _LEAST_MEMORY), _MOST_MEMORY), seed)

    def joined(self, other: Memory) -> Memory:
        """Return the rows of both."""
        return Memory(*map(np.concatenate, zip(self, other, strict=True)))
