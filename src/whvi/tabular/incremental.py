"""Estimators that go on: ``update`` and ``partial_fit`` with new rows, ``warm_start`` with all."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor, nn

from whvi.errors import ConfigError, DataError
from whvi.tabular.arrays import Rows
from whvi.tabular.calibration import PSEUDO_ROWS, calibrate
from whvi.tabular.extrapolation import linearized
from whvi.tabular.functions import Functions, Linearized
from whvi.tabular.inputs import TableSchema
from whvi.tabular.predictor import Predictor
from whvi.tabular.scaling import learn_effects
from whvi.tabular.training import (
    FEW_ROWS,
    Folds,
    Memory,
    Plan,
    Session,
    Trained,
    plan_for,
    train_ensemble,
)
from whvi.tabular.updating import Weighted, absorb, linearized_again, num_steps, support
from whvi.training import FitConfig
from whvi.training.batches import tensor_digest
from whvi.training.history import History
from whvi.training.process import limited_threads

if TYPE_CHECKING:
    import pandas as pd

    from whvi.tabular.scaling import Targets

Self = TypeVar("Self", bound="IncrementalModel")


class _Updated(NamedTuple):
    trained: Trained  # in standard units
    functions: Functions
    noise_factor: float
    linearized: Linearized | None
    mnll: float  # of rows that were left out


class IncrementalModel(ABC):
    """What a fitted estimator does with further rows."""

    _predictor: Predictor
    _memory: Memory
    model_: nn.Sequential
    history_: History
    noise_factor_: float
    training_summary_: dict[str, Any]
    notes_: Any
    hidden_layer_sizes: Any
    posterior: str
    n_members: int | None
    max_iter: int | None
    beta: float | None
    validation_fraction: float | None
    num_draws: int
    linearize: bool
    random_state: Any
    device: str
    verbose: int

    @abstractmethod
    def _check_options(self) -> None:
        """Refuse options that cannot be used."""

    @abstractmethod
    def _checked(self, X: Any) -> pd.DataFrame:
        """Return ``X`` as a table with the columns of the fit."""

    @abstractmethod
    def _split(
        self, rows: Rows, sample_weight: Any, fraction: float, seed: int
    ) -> tuple[Rows, Rows | None]:
        """Return the rows to fit with their weights, and others."""

    @abstractmethod
    def _targets(self, y: Any, num_rows: int) -> Targets:
        """Check targets and turn them into what networks predict."""

    @abstractmethod
    def _adopt(self, predictor: Predictor, model: nn.Sequential, history: History) -> None:
        """Take trained networks as one's own."""

    # New rows ----------------------------------------------------------------------------------

    def update(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from new rows, without those that the model has seen.

        The posterior becomes the prior (:mod:`whvi.tabular.updating`): predictions move to the new
        rows and stay what they were where these say nothing. The time grows with the number of new
        rows. Columns, their scales and the kind of noise stay those of the first fit; texts that it
        has not seen are unknown, as in a prediction. Conformal scores are forgotten: they are of
        other networks. Should an update fail, nothing has changed.

        Args:
            X: New rows with the columns of the fit.
            y: Their targets; labels must be among ``classes_``.
            sample_weight: How often each of them counts, as in ``fit``.
        """
        self._check_options()
        table = self._checked(X)
        if getattr(self, "class_weight", None) == "balanced":
            raise ConfigError(
                "class_weight='balanced' would count the classes of the new rows alone; set it to "
                "a mapping from labels to weights"
            )
        rows, _ = self._split(Rows(table, y), sample_weight, 0.0, 0)
        num_rows = len(rows.table)
        targets = self._targets_again(rows.y, num_rows)
        seed, seen = self._seed(), self.training_summary_["num_rows"]
        new = self._remembered(self._predictor.schema.encode(rows.table), rows.weights)
        with limited_threads(1 if num_rows < FEW_ROWS else torch.get_num_threads()):
            found = self._absorbed(new, targets.values.to(self.device), seed)
        self._take_over(found, self._predictor.schema, self.history_)
        self._memory = self._memory.joined(new).kept(seed)
        self.noise_factor_ *= found.noise_factor
        self.notes_ = [*self.notes_, *targets.notes]
        self.training_summary_ = {**self.training_summary_, "num_rows": seen + num_rows}
        return self

    def _absorbed(self, new: Memory, y: Tensor, seed: int) -> _Updated:
        """Train on new rows, calibrate, and linearise."""
        summary, far = self.training_summary_, self._predictor.linearized
        plan = self._plan(summary["num_rows"])
        batch = summary["batch_size"]
        steps = num_steps(plan.steps, len(y), batch)
        config = FitConfig(
            num_steps=steps,
            batch_size=2 * batch,  # half of them new
            learning_rate=summary["learning_rate"],
            beta=self.history_.beta[-1],
            record_every=max(1, steps // 100),
            seed=seed,
        )
        x, weight = self._inputs(new)
        old = self._trained(plan.folds(len(y), seed))
        past = self._inputs(self._memory)
        trained = absorb(
            old, past, Weighted(x, weight), y, config, Session(progress=self.verbose > 0)
        )
        known = PSEUDO_ROWS + plan.validation_fraction * summary["num_rows"]
        spreads = (self._predictor.functions.spread,)  # that of all earlier rows
        functions, factor, mnll = self._calibrated(
            trained, x, y, seed, weight, pseudo_rows=known, spreads=spreads
        )
        if far is not None:
            rows = support(self._memory, new, trained.architecture.num_functions, seed)
            far = linearized_again(trained, functions, self._inputs(rows), far.gate, seed)
        return _Updated(trained, functions, factor, far, mnll)

    # All rows again ----------------------------------------------------------------------------

    def _fit_again(self, rows: Rows, session: Session, seed: int) -> None:
        """Fit from where the networks are, with the inputs, units and noise that they have.

        With the seed of the first fit and the same rows, the rows left out are the same.
        """
        self._check_same_options()
        table = rows.table
        targets = self._targets_again(rows.y, len(table))
        binned = len(self._predictor.embedding.column) > 0
        memberships = targets.memberships()
        schema, encoded = learn_effects(
            self._predictor.schema, table, memberships, seed, rows.weights
        )
        memory, plan = self._remembered(encoded, rows.weights), self._plan(len(table))
        plan = plan.with_bins() if binned else plan
        x, weight = self._inputs(memory)
        weights = None if rows.weights is None else weight
        values = targets.values.to(self.device)
        start, far = self._trained(plan.folds(len(x), seed)), None
        parameters = torch.cat([p.flatten() for p in start.model.parameters()])
        session = session.within(f"from-{tensor_digest(parameters)[:16]}")
        with limited_threads(1 if len(table) < FEW_ROWS else torch.get_num_threads()):
            trained = train_ensemble(
                start.architecture, x, values, plan,
                seed=seed, session=session, weights=weights, start=start,
            )  # fmt: skip
            functions, factor, mnll = self._calibrated(trained, x, values, seed, weights)
            if self.linearize:
                width = encoded.shape[1]
                far = linearized(
                    trained, functions, x, values, seed, num_columns=width, weights=weights
                )
        found = _Updated(trained, functions, factor, far, mnll)
        self._take_over(found, schema, trained.history)
        self._memory, self.noise_factor_ = memory.kept(seed), factor
        self.notes_ = [*targets.notes]
        now = {"num_rows": len(table), "steps": trained.history.step[-1], "beta": plan.beta}
        now |= {"batch_size": plan.batch, "learning_rate": plan.learning_rate}
        self.training_summary_ = {**self.training_summary_, **now}
        self.candidates_: list[dict[str, Any]] = []

    def _check_same_options(self) -> None:
        """Refuse options that the networks cannot have that training goes on with."""
        there = self._predictor.architecture
        wanted = {
            "hidden_layer_sizes": self._plan(self.training_summary_["num_rows"]).hidden,
            "n_members": self.n_members or there.members,
            "posterior": self.posterior,
        }
        noise = getattr(self, "likelihood", "auto")
        found = {"hidden_layer_sizes": there.hidden, "n_members": there.members}
        found |= {"posterior": there.posterior, "likelihood": there.likelihood}
        wanted["likelihood"] = there.likelihood if noise == "auto" else noise
        for name, value in wanted.items():
            if value != found[name]:
                raise ConfigError(
                    f"warm_start=True goes on with networks of {name}={found[name]!r}, but {name} "
                    f"is now {value!r}; set it back, or fit afresh with warm_start=False"
                )

    # Both --------------------------------------------------------------------------------------

    def _seed(self) -> int:
        """Return a seed that differs from update to update."""
        drawn = int(check_random_state(self.random_state).randint(2**31 - 1))
        return (drawn + int(self.training_summary_["num_rows"])) % (2**31 - 1)

    def _plan(self, num_rows: int) -> Plan:
        architecture = self._predictor.architecture
        return plan_for(
            num_rows,
            hidden=self.hidden_layer_sizes or architecture.hidden,
            members=architecture.members,
            max_iter=self.max_iter,
            validation_fraction=self.validation_fraction,
            beta=self.beta,
        )

    def _remembered(
        self, encoded: NDArray[np.float64], weights: NDArray[np.float64] | None
    ) -> Memory:
        """Return all rows; a number that is missing is taken for the middle of its column."""
        middle = self._predictor.embedding.middle
        return Memory.of(np.where(np.isnan(encoded), middle, encoded), weights)

    def _inputs(self, memory: Memory) -> Weighted:
        x = self._predictor.embedding(memory.encoded, self.device).x
        return Weighted(x, torch.as_tensor(memory.weight, device=self.device))

    def _targets_again(self, y: Any, num_rows: int) -> Targets:
        """Return targets in the units, or the numbering of labels, that the networks know."""
        targets, predictor = self._targets(y, num_rows), self._predictor
        if targets.classes is not None:
            classes, outputs = predictor.classes, predictor.architecture.num_outputs
            assert classes is not None
            numbers = torch.as_tensor(numbers_of(targets.classes, classes)).float()
            values = numbers[targets.values.long()]
            return targets._replace(values=values, classes=classes, num_outputs=outputs)
        assert targets.scaling is not None
        if targets.num_outputs != predictor.architecture.num_outputs:
            raise DataError(
                f"y has {targets.num_outputs} columns, but the model has "
                f"{predictor.architecture.num_outputs} targets"
            )
        rows = torch.as_tensor(targets.scaling.inverse(targets.values.double().numpy()))
        if predictor.architecture.likelihood == "poisson":
            return targets._replace(values=_counts(rows).float())
        unit = predictor.likelihood
        mean, scale = (part[0].cpu() for part in (unit.target_mean, unit.target_scale))
        return targets._replace(values=((rows - mean) / scale).float())

    def _trained(self, folds: Folds) -> Trained:
        """Return the networks as training knows them: in standard units, in float32."""
        likelihood = copy.deepcopy(self._predictor.likelihood).float()
        if hasattr(likelihood, "target_mean"):
            likelihood.target_mean.zero_()
            likelihood.target_scale.fill_(1)
        return Trained(self._predictor.architecture, self.model_, likelihood, self.history_, folds)

    def _calibrated(
        self,
        trained: Trained,
        x: Tensor,
        y: Tensor,
        seed: int,
        weights: Tensor | None,
        **options: Any,
    ) -> tuple[Functions, float, float]:
        functions = trained.draw_functions(int(self.num_draws), seed)
        factor, functions, mnll = calibrate(trained, functions, x, y, weights, **options)
        if trained.architecture.likelihood == "labels":  # whose last layer was scaled
            functions = trained.draw_functions(int(self.num_draws), seed)
        return functions, factor, mnll

    def _take_over(self, found: _Updated, schema: TableSchema, history: History) -> None:
        old, likelihood = self._predictor, found.trained.likelihood.double()
        if hasattr(likelihood, "target_mean"):
            likelihood.target_mean.copy_(old.likelihood.target_mean)
            likelihood.target_scale.copy_(old.likelihood.target_scale)
        predictor = replace(
            old,
            schema=schema,
            functions=found.functions,
            likelihood=likelihood,
            linearized=found.linearized,
        )
        self._adopt(predictor, found.trained.model, history)
        score = found.mnll if math.isfinite(found.mnll) else None
        self.training_summary_ = {**self.training_summary_, "validation_mnll": score}
        self.validation_: list[dict[str, Any]] = []


def numbers_of(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the numbers of ``labels`` among ``classes``."""
    known = {label: k for k, label in enumerate(classes.tolist())}
    if unknown := [label for label in labels.tolist() if label not in known]:
        raise DataError(
            f"y holds labels that are not among the {len(known)} classes of the model: "
            f"{str(unknown[:3])[1:-1]}; name all classes in the first partial_fit(X, y, "
            "classes=...), or fit again"
        )
    return np.array([known[label] for label in labels.tolist()])


def _counts(rows: Tensor) -> Tensor:
    counts = rows.round()
    bad = ((rows - counts).abs() > 1e-3 * (1 + counts.abs())) | (counts < 0)
    if bad.any():
        raise DataError(
            f"the model predicts counts 0, 1, 2, …, but y holds {float(rows[bad][0]):g} in row "
            f"{int(bad.any(-1).long().argmax())}"
        )
    return counts
