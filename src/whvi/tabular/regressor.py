"""Regression on tables with honest error bars."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, DataError
from whvi.likelihoods import Likelihood
from whvi.tabular.architecture import REGRESSION_LIKELIHOODS
from whvi.tabular.base import Callback, WHVIEstimator
from whvi.tabular.inputs import Standardizer
from whvi.tabular.plan import FEW_ROWS
from whvi.tabular.tables import regression_targets


class ArrayInterval(NamedTuple):
    """Ends of central predictive intervals, each ``(N[, O])``."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@final
class WHVIRegressor(RegressorMixin, WHVIEstimator):  # type: ignore[misc]  # no types there
    """Bayesian regression by an ensemble of Walsh-Hadamard networks; no tuning needed.

    Numeric, boolean and categorical columns, one target or several. Everything left at ``None``
    is chosen by the number of rows.

    Args:
        hidden_layer_sizes: Widths of the hidden layers.
        posterior: Of the structured weights: ``"diagonal"``, ``"low_rank"``, ``"full"``,
            ``"flow"`` or ``"point"``.
        likelihood: Noise of the targets: ``"gaussian"`` (constant), ``"heteroscedastic"`` (a
            function of the inputs), ``"student_t"`` (outliers), ``"poisson"`` (counts), or
            ``"auto"``: the second from 3,000 rows on, below that the first unless held-out
            rows clearly speak for the second.
        n_members: Networks of the ensemble.
        max_iter: Most steps of Adam; training stops earlier when held-out rows say so.
        validation_fraction: Share of the rows that each member leaves out for that, and for the
            calibration of the noise. 0: none, which makes the noise too small.
        imputer: ``"median"`` fills missing numbers by the median and missing texts by a category
            of their own; ``None`` refuses them.
        num_draws: Weight draws of a prediction, over all members. They are fixed by the fit.
        random_state: Seed; the same seed gives the same fit and predictions, bit for bit.
        device: Where to compute.
        verbose: 1 or more shows a progress bar on stderr.

    Attributes:
        schema_, target_name_: Columns and target.
        history_, training_summary_, candidates_: What happened in training.
        likelihood_, noise_factor_: Noise that was chosen, and the factor of its calibration.
        model_, network_likelihood_: The networks as R replicas, and their likelihood.
        n_iter_, n_features_in_, feature_names_in_, n_outputs_: As everywhere in scikit-learn.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> model = WHVIRegressor(max_iter=50, random_state=0).fit(X[:400], y[:400])
        >>> mean, std = model.predict(X[400:], return_std=True)
        >>> lower, upper = model.predict_interval(X[400:], level=0.9)
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | None = None,
        *,
        posterior: str = "diagonal",
        likelihood: str = "auto",
        n_members: int | None = None,
        max_iter: int | None = None,
        validation_fraction: float | None = None,
        imputer: str | None = None,
        num_draws: int = 64,
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.posterior = posterior
        self.likelihood = likelihood
        self.n_members = n_members
        self.max_iter = max_iter
        self.validation_fraction = validation_fraction
        self.imputer = imputer
        self.num_draws = num_draws
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> WHVIRegressor:
        """Fit the ensemble.

        Args:
            X: Frame or array ``(N, d)``.
            y: Targets ``(N,)`` or ``(N, O)``.
            checkpoint: Folder; a fit of the same data and options that was stopped goes on from
                there and ends bitwise as if it had not been.
            callbacks: Each is called with every :class:`whvi.training.history.StepRecord`.
        """
        table, named = self._table(X, reset=True)
        values, names = regression_targets(y, len(table))
        targets, scaling = self._scaled(values)
        trained = self._fit_network(
            table,
            targets,
            targets.shape[1],
            named=named,
            target_names=names,
            checkpoint=checkpoint,
            callbacks=callbacks,
        )
        _set_units(trained.ensemble.likelihood, scaling)
        self._take_targets(names, None)
        return self

    def _candidates(self, num_rows: int) -> tuple[str, ...]:
        if self.likelihood == "auto":
            few = num_rows < FEW_ROWS
            return ("gaussian", "heteroscedastic") if few else ("heteroscedastic",)
        if self.likelihood not in REGRESSION_LIKELIHOODS:
            raise ConfigError(
                f"likelihood must be 'auto' or one of {', '.join(REGRESSION_LIKELIHOODS)}, got "
                f"{self.likelihood!r}"
            )
        return (self.likelihood,)

    def _scaled(self, y: NDArray[np.float64]) -> tuple[torch.Tensor, Standardizer | None]:
        """Return what the networks see, ``(N, O)`` float32: standard units, or counts."""
        rows = y.reshape(len(y), -1)
        if self.likelihood == "poisson":
            bad = np.argwhere((rows < 0) | (rows != np.floor(rows)))
            if len(bad):
                raise DataError(
                    f"targets of a Poisson must be counts 0, 1, 2, …; row {int(bad[0][0])} holds "
                    f"{rows[tuple(bad[0])]}"
                )
            return torch.as_tensor(rows, dtype=torch.float32), None
        scaling = Standardizer.fit(rows)
        return torch.as_tensor(scaling.transform(rows), dtype=torch.float32), scaling

    def _take_targets(self, names: Sequence[str], classes: Any) -> None:
        self.target_name_ = names[0]
        self.n_outputs_ = self._architecture.num_outputs

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean ``(N[, O])``, and if asked the standard deviation, noise included."""
        if not return_std:
            return self._by_block(X, lambda p: p.mean)
        both = self._by_block(X, lambda p: torch.stack([p.mean, p.std], dim=-1))
        return both[..., 0], both[..., 1]

    def predict_interval(self, X: Any, level: float = 0.9) -> ArrayInterval:
        """Return the ends of the central intervals that hold probability ``level``."""
        ends = self._by_block(X, lambda p: torch.stack(tuple(p.interval(level)), dim=-1))
        return ArrayInterval(ends[..., 0], ends[..., 1])

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> NDArray[np.float64]:
        """Return the quantiles ``(N[, O], K)`` at K levels."""
        return self._by_block(X, lambda p: p.quantile(list(quantiles)).movedim(0, -1))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = None) -> NDArray[np.float64]:
        """Draw ``(N[, O], n_samples)`` outcomes, noise included.

        One sample follows one function through all rows, with fresh noise per row.
        """
        check_positive_int("n_samples", n_samples)
        generator = torch.Generator(self._rows(X).device)
        generator.manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        draws = self.predict_dist(X).sample(n_samples, generator=generator)
        samples: NDArray[np.float64] = draws.movedim(0, -1).cpu().numpy()
        return samples

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _set_units(likelihood: Likelihood, scaling: Standardizer | None) -> None:
    """Give the likelihood, float64 by now, the units of the user's targets."""
    if scaling is not None:
        buffers = dict(likelihood.named_buffers())
        buffers["target_mean"].copy_(torch.as_tensor(scaling.mean))
        buffers["target_scale"].copy_(torch.as_tensor(scaling.scale))
