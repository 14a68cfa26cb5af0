"""What the regressor and the classifier share: from a table to a trained ensemble and back."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.nn import functional as F

from whvi._checks import check_positive_int
from whvi.errors import ConfigError
from whvi.layers.protocol import kl_per_layer
from whvi.predictive import Predictive
from whvi.tabular.architecture import Architecture
from whvi.tabular.calibration import calibrate
from whvi.tabular.ensemble import Ensemble, Session, Trained, by_row, train_ensemble
from whvi.tabular.modelfile import ModelFile, read_model_file, write_model_file
from whvi.tabular.plan import Plan, plan_for
from whvi.tabular.preprocessing import Inputs
from whvi.tabular.schema import learn_schema
from whvi.tabular.storage import content_of, restored
from whvi.tabular.tables import as_table
from whvi.training.history import History, StepRecord
from whvi.training.process import keep_freed_memory

_WORTH_A_HEAD = 0.05
"""Nats per held-out row by which a later candidate must win: a second head costs the first one."""

_ROW_MULTIPLE = 64
"""Blocks are filled up to a multiple of it: vectorised sums treat the last columns differently."""

Callback = Callable[[StepRecord], None]
Self = TypeVar("Self", bound="WHVIEstimator")


class _Fitted(NamedTuple):
    mnll: float  # of held-out rows
    architecture: Architecture
    trained: Trained
    noise_factor: float


class WHVIEstimator(BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """A Bayesian ensemble behind scikit-learn's interface; see its two subclasses."""

    hidden_layer_sizes: int | Sequence[int] | None
    posterior: str
    n_members: int | None
    max_iter: int | None
    validation_fraction: float | None
    imputer: str | None
    num_draws: int
    random_state: Any
    device: str
    verbose: int

    # Fitting -------------------------------------------------------------------------------

    @abstractmethod
    def _candidates(self, num_rows: int) -> tuple[str, ...]:
        """Return the likelihoods to try, the preferred one first."""

    def _fit_network(
        self,
        table: pd.DataFrame,
        targets: Tensor,
        num_outputs: int,
        *,
        named: bool,
        target_names: Sequence[str],
        checkpoint: str | os.PathLike[str] | None,
        callbacks: Sequence[Callback],
    ) -> Trained:
        """Learn schema, scaling and networks; ``targets (N, ...)`` are what the network sees."""
        start = time.perf_counter()
        keep_freed_memory()
        self._check_options()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        schema = learn_schema(
            table, named=named, target_names=target_names, impute=self.imputer is not None
        )
        encoded = schema.encode(table)
        inputs = Inputs.fit(encoded)
        x = inputs.transform(encoded, self.device)
        targets = targets.to(self.device)
        plan = plan_for(
            len(x),
            hidden=self.hidden_layer_sizes,
            members=self.n_members,
            max_iter=self.max_iter,
            validation_fraction=self.validation_fraction,
        )
        folder = None if checkpoint is None else Path(checkpoint)
        session = Session(folder, tuple(callbacks), self.verbose > 0)
        best = self._best_candidate(x, targets, num_outputs, plan, seed, session)
        mnll, self._architecture, trained, self.noise_factor_ = best
        self.schema_, self._inputs = schema, inputs
        self._adopt(trained.ensemble, trained.history)
        self.training_summary_ = {
            **_summary(trained, plan, len(x)),
            "validation_mnll": _json(mnll),
            "seconds": time.perf_counter() - start,
        }
        return trained

    def _best_candidate(
        self, x: Tensor, y: Tensor, num_outputs: int, plan: Plan, seed: int, session: Session
    ) -> _Fitted:
        """Train every likelihood to try and keep the one that held-out rows speak for."""
        best: _Fitted | None = None
        self.candidates_ = []
        for likelihood in self._candidates(len(x)):
            begun = time.perf_counter()
            architecture = Architecture(
                in_features=x.shape[1],
                hidden=plan.hidden,
                sine=plan.sine,
                members=plan.members,
                posterior=self.posterior,
                likelihood=likelihood,
                num_outputs=num_outputs,
            )
            trained = self._train(architecture, x, y, plan, seed, session.within(likelihood))
            factor, mnll = calibrate(trained, x, y)
            seconds = time.perf_counter() - begun
            self.candidates_.append(
                {"likelihood": likelihood, "validation_mnll": _json(mnll), "seconds": seconds}
            )
            if best is None or mnll < best.mnll - _WORTH_A_HEAD:
                best = _Fitted(mnll, architecture, trained, factor)
        assert best is not None  # there is at least one candidate
        return best

    def _train(
        self,
        architecture: Architecture,
        x: Tensor,
        y: Tensor,
        plan: Plan,
        seed: int,
        session: Session,
    ) -> Trained:
        def build() -> Any:
            model, likelihood = architecture.build()
            if architecture.likelihood == "poisson":
                likelihood.set_target_scaling(y.cpu())
            return model.to(self.device), likelihood.to(self.device)

        return train_ensemble(
            build, x, y, plan, num_draws=self.num_draws, seed=seed, session=session
        )

    def _adopt(self, ensemble: Ensemble, history: History) -> None:
        """Take a trained ensemble as one's own."""
        ensemble.likelihood.double()
        ensemble.model.requires_grad_(False)
        ensemble.likelihood.requires_grad_(False)
        self._ensemble = ensemble
        self.model_, self.network_likelihood_ = ensemble.model, ensemble.likelihood
        self.history_ = history
        self.n_iter_ = history.step[-1]
        self.likelihood_ = self._architecture.likelihood

    def _check_options(self) -> None:
        check_positive_int("num_draws", self.num_draws)
        if self.imputer not in (None, "median"):
            raise ConfigError(f"imputer must be None or 'median', got {self.imputer!r}")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"device {self.device!r} cannot be used: {error}") from error

    def _table(self, X: Any, *, reset: bool) -> tuple[pd.DataFrame, bool]:
        table, named = as_table(X, type(self).__name__)
        validate_data(self, X=X, reset=reset, skip_check_array=True)
        return table, named

    # Predicting ----------------------------------------------------------------------------

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        keep_freed_memory()
        table, _ = self._table(X, reset=False)
        return self._inputs.transform(self.schema_.encode(table), self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.model_.parameters()).device

    def predict_dist(self, X: Any) -> Predictive:
        """Return the predictive distribution of every row, noise included, in the user's units.

        It is a mixture over ``num_draws`` weight draws, which are fixed by the fit: the same rows
        always have the same distribution. It takes ``num_draws`` numbers per row and output; the
        other methods keep only their results and work on any number of rows.
        """
        blocks = self._blocks(X)
        return by_row(Predictive.cat([self._ensemble.predictive(block) for block in blocks]))

    def _blocks(self, X: Any) -> list[Tensor]:
        """Return the network's inputs in parts that fit in memory."""
        rows = self._rows(X)
        return self._ensemble.blocks(rows)

    def _by_block(self, X: Any, of: Callable[[Predictive], Tensor]) -> NDArray[Any]:
        """Evaluate ``of`` block by block and join along its first axis, the rows."""
        parts = []
        for block in self._blocks(X):
            filled = F.pad(block, (0, 0, 0, -len(block) % _ROW_MULTIPLE))
            parts.append(of(self._ensemble.predictive(filled))[: len(block)])
        joined: NDArray[Any] = torch.cat(parts).cpu().numpy()
        return joined

    # Files ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file that holds no code; see ``docs/file_format.md``.

        Raises:
            ModelFileError: The file cannot be written; what was there before is untouched.
        """
        check_is_fitted(self, "model_")
        content = content_of(self)
        write_model_file(path, content.tensors, content.document)

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """Read an estimator that :meth:`save` wrote; it predicts the same, bit for bit.

        Raises:
            ModelFileError: The file is damaged, untrue, of a later version or of another class.
        """
        return cls.from_content(read_model_file(path))

    @classmethod
    def from_content(cls: type[Self], content: ModelFile) -> Self:
        """Rebuild the estimator from the content of a model file, verifying it."""
        return restored(cls, content)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.imputer is not None
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.non_deterministic = False
        return tags


def _summary(trained: Trained, plan: Plan, num_rows: int) -> dict[str, Any]:
    ensemble, history = trained.ensemble, trained.history
    model = ensemble.model
    return {
        "num_rows": num_rows,
        "num_members": plan.members,
        "hidden_layer_sizes": list(plan.hidden),
        "num_parameters": ensemble.num_parameters,
        "steps": history.step[-1],
        "batch_size": plan.batch,
        "learning_rate": plan.learning_rate,
        "beta": plan.beta,
        "kl_per_layer": {name: float(kl.sum()) for name, kl in kl_per_layer(model).items()},
    }


def _json(value: float) -> float | None:
    """NaN, which JSON does not know, becomes null."""
    return value if math.isfinite(value) else None
