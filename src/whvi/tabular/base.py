"""What the regressor and the classifier share: from a table to a trained ensemble and its file."""

from __future__ import annotations

import math
import os
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from whvi._checks import positive_int
from whvi._files import conform
from whvi.errors import ConfigError, ModelFileError
from whvi.predictive import Predictive
from whvi.tabular.arrays import Rows, as_table, plain, row_weights
from whvi.tabular.calibration import Candidate, CountUnit, Trials, choose
from whvi.tabular.conformal import ConformalModel, from_tensors, set_apart, to_tensors
from whvi.tabular.extrapolation import linearized
from whvi.tabular.functions import Linearized
from whvi.tabular.incremental import IncrementalModel
from whvi.tabular.inputs import TableSchema
from whvi.tabular.modelfile import (
    ModelFile,
    SavedModel,
    content_of,
    load_tensors,
    predictor_of,
)
from whvi.tabular.predictor import Predictor
from whvi.tabular.scaling import Targets, learn_effects, learn_embedding
from whvi.tabular.training import FEW_ROWS, Memory, Plan, Session, Trained, plan_for
from whvi.training.history import History
from whvi.training.loop import Callback
from whvi.training.process import keep_freed_memory, limited_threads

_SCORE = {"validation_mnll": (float, type(None)), "seconds": float}
_COUNTS = ("num_rows", "num_members", "num_parameters", "steps", "batch_size")
_TRAINING = {  # in a model file
    "training_summary": {
        **dict.fromkeys(_COUNTS, int),
        "hidden_layer_sizes": [int],
        "learning_rate": float,
        "beta": float,
        **_SCORE,
    },
    "candidates": [{"likelihood": str, "bins": bool, "features": str, "steps": int, **_SCORE}],
    "noise_factor": float,
    "notes": [str],
    "validation": [
        {"split": str, "score": str, "mean": float, "standard_error": (float, type(None))}
    ],
}
_SUMMARIES = ("training_summary_", "candidates_", "noise_factor_", "notes_", "validation_")

Self = TypeVar("Self", bound="WHVIEstimator")


@dataclass(eq=False, repr=False)
class WHVIEstimator(
    IncrementalModel,
    ConformalModel,
    SavedModel,
    BaseEstimator,  # type: ignore[misc]  # scikit-learn has no types
):
    """A Bayesian ensemble behind scikit-learn's interface; see its two subclasses."""

    hidden_layer_sizes: int | Sequence[int] | None = None
    _: KW_ONLY
    posterior: str = "diagonal"
    n_members: int | None = None
    max_iter: int | None = None
    beta: float | None = None
    validation_fraction: float | None = None
    conformal_fraction: float = 0.0
    num_draws: int = 64
    linearize: bool = True
    warm_start: bool = False
    random_state: Any = None
    device: str = "cpu"
    verbose: int = 0

    # Fitting -----------------------------------------------------------------------------------

    @abstractmethod
    def _candidates(self, targets: Targets) -> tuple[str, ...]:
        """Return the likelihoods to try, the preferred one first."""

    @abstractmethod
    def _targets(
        self, y: Any, num_rows: int, weights: NDArray[np.float64] | None = None
    ) -> Targets:
        """Check targets and turn them into what networks predict."""

    def _weights(self, rows: Rows) -> NDArray[np.float64] | None:
        """Return how often each row counts in training; ``None``: once."""
        return rows.weights

    def fit(
        self: Self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Fit the ensemble.

        Args:
            X: Frame, array, tensor or sparse matrix ``(N, d)``; what is sparse is written out.
            y: Targets ``(N,)``, for a regression also ``(N, O)``; labels of any kind.
            sample_weight: How often each row counts, ``(N,)``: 3 is about as good as the row three
                times, 0 as no row at all. The scale matters: their sum is the number of data that
                the prior is weighed against. ``None``: once.
            checkpoint: Folder; a fit of the same data and options that was stopped goes on from
                there and ends bitwise as if it had not been.
            callbacks: Each is called with every :class:`whvi.training.history.StepRecord`.
        """
        before = dict(self.__dict__)
        try:
            self._fit(X, y, sample_weight, checkpoint, callbacks)
        except BaseException:  # a failed fit changes nothing
            self.__dict__ = before
            raise
        return self

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        checkpoint: str | os.PathLike[str] | None,
        callbacks: Sequence[Callback],
    ) -> None:
        start = time.perf_counter()
        keep_freed_memory()
        self._check_options()
        folder = None if checkpoint is None else Path(checkpoint)
        session = Session(folder, tuple(callbacks), self.verbose > 0)
        again = self.warm_start and hasattr(self, "model_")
        if again and self.conformal_fraction:
            raise ConfigError(
                "conformal_fraction sets rows apart that earlier fits have seen: with "
                "warm_start=True leave it at 0 and pass rows of their own to conformalize(X, y)"
            )
        table, named = self._table(X, reset=not again)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows, apart = self._split(Rows(table, y), sample_weight, self.conformal_fraction, seed)
        if again:
            self._fit_again(rows, session, seed)
        else:
            self._fit_afresh(rows, session, seed, named=named)
        self.validation_: list[dict[str, Any]] = []
        self.training_summary_["seconds"] = time.perf_counter() - start
        if apart is not None:
            self._set_conformal_scores(apart.table, apart.y)

    def _fit_afresh(self, rows: Rows, session: Session, seed: int, *, named: bool) -> None:
        table, weights = rows.table, rows.weights
        targets = self._targets(rows.y, len(table), weights)
        schema = TableSchema.learn(
            table, named=named, target_names=targets.names, target_kind=targets.kind
        )
        schema, encoded = learn_effects(schema, table, targets.memberships(), seed, weights)
        plan = plan_for(
            len(table),
            encoded.shape[1],
            hidden=self.hidden_layer_sizes,
            members=self.n_members,
            max_iter=self.max_iter,
            validation_fraction=self.validation_fraction,
            beta=self.beta,
        )
        with limited_threads(1 if len(encoded) < FEW_ROWS else torch.get_num_threads()):
            best, far = self._best_candidate(encoded, targets, weights, plan, session, seed)
        likelihood = best.trained.likelihood.double()
        architecture = best.trained.architecture
        if targets.scaling is not None and architecture.likelihood != "poisson":
            unit = dict(likelihood.named_buffers())
            unit["target_mean"].copy_(torch.as_tensor(targets.scaling.mean))
            unit["target_scale"].copy_(torch.as_tensor(targets.scaling.scale))
        self.noise_factor_ = best.noise_factor
        self.notes_ = [*schema.rounded(table), *targets.notes]
        predictor = Predictor(
            schema, best.embedding, architecture, best.functions, likelihood, targets.classes, far
        )
        self._adopt(predictor, best.trained.model, best.trained.history)
        self._memory = Memory.of(encoded, weights).kept(seed)
        self.training_summary_ = {
            **_summary(best.trained, plan, len(encoded)),
            "validation_mnll": _json(best.mnll),
        }

    def _split(
        self, rows: Rows, sample_weight: Any, fraction: float, seed: int
    ) -> tuple[Rows, Rows | None]:
        """Return the rows to fit with their weights, and those that nothing in the fit may see."""
        if not isinstance(rows.y, pd.Series):
            rows = rows._replace(y=plain(rows.y))
        if sample_weight is not None:
            rows = rows.weighted(row_weights(sample_weight, len(rows.table)))
        apart = None
        if fraction != 0:
            self._targets(rows.y, len(rows.table))  # refuses what is wrong in any row
            rows, apart = set_apart(rows, fraction, seed)
        weights = self._weights(rows)
        return rows if weights is rows.weights else rows.weighted(weights), apart

    def _best_candidate(
        self,
        encoded: NDArray[np.float64],
        targets: Targets,
        weights: NDArray[np.float64] | None,
        plan: Plan,
        session: Session,
        seed: int,
    ) -> tuple[Candidate, Linearized | None]:
        """Train candidates, keep the one that held-out rows speak for, and linearise it."""
        values = {"": targets.values.to(self.device)}
        count_unit = None
        if targets.counts is not None:
            values["poisson"] = targets.counts.to(self.device)
        if targets.counts is not None and targets.scaling is not None:
            mean, scale = float(targets.scaling.mean[0, 0]), float(targets.scaling.scale[0, 0])
            count_unit = CountUnit(0.5 / scale, -mean / scale)
        counts = None if weights is None else torch.as_tensor(weights, device=self.device)
        embeddings = [learn_embedding(encoded), learn_embedding(encoded, num_bins=plan.bins)]
        trials = Trials(
            tuple(embeddings if len(embeddings[1].column) else embeddings[:1]),
            encoded, values, count_unit, targets.num_outputs, self.posterior, int(self.num_draws),
            plan, session, seed, counts,
        )  # fmt: skip
        best = choose(trials, self._candidates(targets))
        self.candidates_ = trials.done
        if not self.linearize:
            return best, None
        width, y = encoded.shape[1], values.get(best.trained.architecture.likelihood, values[""])
        far = linearized(
            best.trained, best.functions, best.x, y, seed, num_columns=width, weights=counts
        )
        return best, far

    def _adopt(self, predictor: Predictor, model: torch.nn.Sequential, history: History) -> None:
        """Take trained networks as one's own."""
        self._predictor, self.schema_ = predictor, predictor.schema
        self.model_, self.network_likelihood_ = model.requires_grad_(False), predictor.likelihood
        self.target_name_ = predictor.schema.target_names[0]
        self.likelihood_ = predictor.architecture.likelihood
        self.history_, self.n_iter_ = history, history.step[-1]
        self.conformal_scores_ = None  # those of other networks say nothing about these
        if predictor.classes is not None:
            self.classes_ = predictor.classes
        else:
            self.n_outputs_ = predictor.architecture.num_outputs

    def _check_options(self) -> None:
        positive_int("num_draws", self.num_draws)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, TypeError, AssertionError) as error:  # the last: of CUDA
            raise ConfigError(f"device {self.device!r} cannot be used: {error}") from error

    def _table(self, X: Any, *, reset: bool) -> tuple[pd.DataFrame, bool]:
        """Return ``X`` as a frame, and whether its columns came with names (all of them texts)."""
        found = X, True
        if not _is_ready(X):
            X = plain(X)
            found = as_table(X, type(self).__name__)
        validate_data(self, X=X, reset=reset, skip_check_array=True)
        return found

    # Predicting --------------------------------------------------------------------------------

    def _checked(self, X: Any) -> pd.DataFrame:
        check_is_fitted(self, "model_")
        keep_freed_memory()
        return self._table(X, reset=False)[0]

    def predict_dist(self, X: Any) -> Predictive:
        """Return the predictive distribution of every row, noise included, in the user's units.

        It is a mixture over ``num_draws`` weight draws, which are fixed by the fit: the same rows
        always have the same distribution. It takes ``num_draws`` numbers per row and output; the
        other methods keep only their results and work on any number of rows.
        """
        table = self._checked(X)
        return self._predictor.predict(table)

    def far_share(self, X: Any) -> NDArray[np.float64]:
        """Return how far from the training rows every row is, ``(N,)``, between 0 and 1.

        It is the share of the linearised networks in a prediction, which know less the farther a
        row is (:mod:`whvi.tabular.extrapolation`); 0 with ``linearize=False``.
        """
        table = self._checked(X)
        return self._predictor.evaluate(table, self._predictor.share)

    # Files -------------------------------------------------------------------------------------

    def to_onnx(
        self, path: str | os.PathLike[str], *, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> None:
        """Write an ONNX file that predicts the same from columns of numbers and codes of texts.

        See :func:`whvi.tabular.export.export_onnx` and ``docs/clients.md``.
        """
        from whvi.tabular.export import export_onnx

        check_is_fitted(self, "model_")
        export_onnx(self._predictor, path, quantiles=quantiles)

    def _content(self) -> ModelFile:
        tensors = {f"model.{name}": value for name, value in self.model_.state_dict().items()}
        training = {name.rstrip("_"): getattr(self, name) for name in _SUMMARIES}
        training["history"] = asdict(self.history_)
        if self.conformal_scores_ is not None:
            tensors |= to_tensors(self.conformal_scores_)
        own = content_of(self._predictor)
        tensors |= self._memory.tensors()
        return ModelFile({**tensors, **own.tensors}, {**own.document, "training": training})

    def _restore(self, content: ModelFile) -> None:
        predictor = predictor_of(content)
        others = {name.split(".")[0] for name in content.tensors}
        others -= {"model", "functions", "linearized", "likelihood", "inputs"}
        others -= {"conformal", "memory"}
        if others:
            raise ModelFileError(f"unknown tensors: {sorted(others)[:3]}")
        with torch.device("meta"):
            model, _ = predictor.architecture.build()
        load_tensors("model", model, content.tensors)
        training, columns = content.document["training"], predictor.schema.columns
        conform({name: training[name] for name in _TRAINING}, _TRAINING, "training")
        if training["training_summary"]["num_members"] != predictor.architecture.members:
            raise ModelFileError("the summary is of another number of networks")
        for attribute in _SUMMARIES:
            setattr(self, attribute, training[attribute.rstrip("_")])
        self._adopt(predictor, model, History(**training["history"]))
        num_scores = 1 if predictor.classes is not None else predictor.architecture.num_outputs
        self.conformal_scores_ = from_tensors(content.tensors, num_scores)
        width = sum(column.width for column in columns)
        self._memory = Memory.from_tensors(content.tensors, width)
        self.n_features_in_ = len(columns)
        if predictor.schema.named:
            self.feature_names_in_ = np.array([c.name for c in columns], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.non_deterministic = False
        return tags


def _is_ready(table: Any) -> bool:
    """Whether it is a frame as it should be, so that there is nothing to convert or to refuse."""
    return (
        isinstance(table, pd.DataFrame)
        and not table.empty
        and table.columns.is_unique
        and all(isinstance(name, str) for name in table.columns)
        and not any(isinstance(dtype, pd.SparseDtype) for dtype in table.dtypes)
    )


def _summary(trained: Trained, plan: Plan, num_rows: int) -> dict[str, Any]:
    modules = (trained.model, trained.likelihood)
    return {
        "num_rows": num_rows,
        "num_members": plan.members,
        "hidden_layer_sizes": list(plan.hidden),
        "num_parameters": sum(p.numel() for module in modules for p in module.parameters()),
        "steps": trained.history.step[-1],
        "batch_size": plan.batch,
        "learning_rate": plan.learning_rate,
        "beta": plan.beta,
    }


def _json(value: float) -> float | None:
    """NaN, which JSON does not know, becomes null."""
    return value if math.isfinite(value) else None
