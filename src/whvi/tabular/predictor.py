r"""From the rows of a table to predictive distributions: all that a prediction needs.

A fitted ensemble is a fixed set of functions (:mod:`whvi.tabular.functions`). The model file holds
their draws, so a prediction does not depend on a random number generator. Far from the training
rows these functions agree too much; there linearised networks get a share that grows with their
variance (:mod:`whvi.tabular.extrapolation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from whvi.errors import ConfigError
from whvi.layers import WHVILinear
from whvi.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from whvi.likelihoods.base import RealLikelihood
from whvi.predictive import Predictive
from whvi.tabular.functions import MOST_ROWS, Functions, Linearized
from whvi.tabular.inputs import Embedding, TableSchema
from whvi.tabular.networks import FEATURES, build_network
from whvi.training.process import limited_threads

_LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    "gaussian": Gaussian,
    "heteroscedastic": HeteroscedasticGaussian,
    "student_t": StudentT,
    "poisson": Poisson,
}
REGRESSION_LIKELIHOODS = tuple(_LIKELIHOODS)
Table: TypeAlias = pd.DataFrame | NDArray[np.float64]  # rows as the user has them, or encoded
POSTERIORS = ("diagonal", "low_rank", "full", "flow", "point")

_PRIOR_SPREAD = 4.0  # of a function of which nothing is known, in those of the targets
_FAR_DRAWS = 64  # of all members, where components are not Gaussian
# Values of a hidden layer from which on threads gain: on a busy machine waiting costs more.
_WORTH_THREADS = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What an ensemble is made of, as plain values from which it can be built again.

    Attributes:
        in_features: Encoded columns.
        hidden, features: As in :func:`whvi.tabular.networks.build_network`.
        members: Networks of the ensemble.
        posterior: Of the structured layers.
        likelihood: One of the names for regression, or ``"labels"``.
        num_outputs: Target columns, or classes.
    """

    in_features: int
    hidden: tuple[int, ...]
    features: str
    members: int
    posterior: str
    likelihood: str
    num_outputs: int

    def __post_init__(self) -> None:
        sizes = (self.in_features, *self.hidden, self.members, self.num_outputs)
        if not self.hidden or not all(type(size) is int and size > 0 for size in sizes):
            raise ConfigError(f"sizes of a network must be positive integers, got {sizes!r:.80}")
        kinds = {"features": FEATURES, "posterior": POSTERIORS}
        for name, known in {**kinds, "likelihood": (*REGRESSION_LIKELIHOODS, "labels")}.items():
            if (got := getattr(self, name)) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, got {got!r:.80}")

    @property
    def num_functions(self) -> int:
        """Outputs of a network that are functions of their own: means, or logits."""
        return 1 if self.likelihood == "labels" and self.num_outputs <= 2 else self.num_outputs

    def build(self) -> tuple[nn.Sequential, Likelihood]:
        """Make untrained networks and their likelihood, as R replicas."""
        likelihood = self.build_likelihood()
        # a point mass has no spread to which empirical Bayes could fit the prior
        prior = "standard_normal" if self.posterior == "point" else "empirical_bayes"
        model = build_network(
            self.in_features,
            self.hidden,
            likelihood.num_features,
            features=self.features,
            layer=partial(WHVILinear, posterior=self.posterior, prior=prior),
            batch_shape=(self.members,),
        )
        return model, likelihood

    def build_likelihood(self) -> Likelihood:
        """Make the likelihood of R replicas."""
        batch_shape = (self.members,)
        if self.likelihood != "labels":
            return _LIKELIHOODS[self.likelihood](self.num_outputs, batch_shape=batch_shape)
        if self.num_outputs <= 2:
            return Bernoulli(batch_shape=batch_shape)
        return Categorical(self.num_outputs, batch_shape=batch_shape)


@final
@dataclass(frozen=True, eq=False)
class Predictor:
    """Predicts the rows of tables."""

    schema: TableSchema
    embedding: Embedding  # of the encoded columns
    architecture: Architecture
    functions: Functions
    likelihood: Likelihood  # of R replicas, in the units of the targets
    classes: NDArray[Any] | None = None  # in the order of the logits
    linearized: Linearized | None = None
    single: bool = False  # whether every component is one function, far rows' too

    def __post_init__(self) -> None:
        self.likelihood.double().requires_grad_(False)

    @torch.no_grad()
    def map(self, table: Table, of: Callable[[Predictive], Any]) -> list[Any]:
        """Evaluate ``of`` the predictive distributions of one block of rows after the other.

        Blocks are filled up to a multiple of 64 rows: vectorised sums treat the last differently.
        """
        encoded = table if isinstance(table, np.ndarray) else self.schema.encode(table)
        found = []
        at_once, members = self.functions.block_rows, self.functions.shape[0]
        device = self.functions.layers[0].bias.device
        few = len(encoded) * self.functions.width < _WORTH_THREADS
        with limited_threads(1 if few else torch.get_num_threads()):
            for k in range(0, len(encoded), at_once):
                rows = self.embedding.of_members(encoded[k : k + at_once], device, members)
                rest = -len(rows.reach) % MOST_ROWS
                filled = (F.pad(part, (0, 0, 0, rest), value=1.0) for part in rows)
                found.append(of(self.predictive(*filled))[: len(rows.reach)])
        return found

    def evaluate(self, table: Table, of: Callable[[Predictive], Tensor]) -> NDArray[np.float64]:
        """Evaluate ``of`` the predictive distribution of every row, ``(N, ...)``."""
        return np.asarray(torch.cat(self.map(table, of)).cpu().numpy())

    def predict(self, table: Table) -> Predictive:
        """Return the predictive distribution of all rows in one object."""
        return _by_row(Predictive.cat(self.map(table, lambda p: p)))

    def predictive(
        self, x: Tensor, stretch: Tensor | float = 1.0, reach: Tensor | float = 1.0
    ) -> Predictive:
        """Return the mixture over members and draws, near and far, of embedded rows.

        If training had one class, it is certain.
        """
        if self.classes is not None and len(self.classes) == 1:
            return Predictive.categorical(x.new_zeros(1, x.shape[-2], 1))
        near = self.likelihood.predictive(self.functions(x)).pool()
        if self.linearized is None:
            return _by_row(near)
        distances = (torch.as_tensor(part).double() for part in (stretch, reach))
        far, share = self._far(self.linearized, x, *distances)
        return _by_row(Predictive.mix([near, far], [1 - share, share]))

    def share(self, predictive: Predictive) -> Tensor:
        """Return the share of the linearised networks in every row, ``(N,)``."""
        if predictive.weights is None:
            return torch.zeros(len(predictive))
        return predictive.weights[math.prod(self.functions.shape) :].sum(0)

    def _far(
        self, linearized: Linearized, x: Tensor, stretch: Tensor, reach: Tensor
    ) -> tuple[Predictive, Tensor]:
        """Return the linearised mixture, and its share in every row.

        ``N(f, αv)`` of a real target is multiplied by what is known of a function before any row
        is seen: ``N(0, 4²)`` in units of the standardised target, and wider beyond the range of the
        training rows.
        """
        gaussian = isinstance(self.likelihood, Gaussian | HeteroscedasticGaussian)
        single, members = self.single or not gaussian, self.architecture.members
        num_kept = -(-_FAR_DRAWS // members) if single else 0
        values = linearized.values(x, self.architecture.num_functions, num_kept)
        gate, f, variance = linearized.gate, values.f.double(), values.variance * stretch.square()
        share = gate.share(variance.mean(-1).clamp_min(1e-30).log().mean(0))
        variance, few = gate.factor * variance, gate.factor**0.5 * stretch * values.changes.double()
        if isinstance(self.likelihood, RealLikelihood):
            known = 1 / (1 + variance / (_PRIOR_SPREAD * reach).square())
            f = f * F.pad(known, (0, f.shape[-1] - known.shape[-1]), value=1.0)
            variance, few = known * variance, known.sqrt().unsqueeze(1) * few
        if single:
            if gaussian:  # the mean is that of the moments below
                few = F.pad(few - few.mean(1, keepdim=True), (0, f.shape[-1] - few.shape[-1]))
            if isinstance(self.likelihood, Poisson):  # rates are known to a factor of e, or better
                few = few / variance.sqrt().clamp_min(1).unsqueeze(1)
            return self.likelihood.predictive(f.unsqueeze(1) + few).pool(), share
        components = self.likelihood.predictive(f.unsqueeze(1)).pool().gaussian_components()
        assert components is not None
        loc, noise = components
        unit = self.likelihood.target_scale.unsqueeze(-2)
        spread = (variance.sqrt() * unit).reshape(loc.shape)
        return Predictive.gaussian(loc, torch.hypot(noise, spread), spread), share


def _by_row(predictive: Predictive) -> Predictive:
    """Lay the components of a row side by side: sums over them do not depend on other rows."""
    return predictive.map(lambda p: p.movedim(0, -1).contiguous().movedim(-1, 0))
