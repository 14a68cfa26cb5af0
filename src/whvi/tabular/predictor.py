r"""From the rows of a table to predictive distributions: all that a prediction needs.

A fitted ensemble is a fixed set of functions: S draws of each of R networks. Prediction evaluates

.. math:: h \mapsto \phi(s_1 \odot H (g \odot H (s_2 \odot h)) + b)

layer by layer for the stored draws of ``g``; the last layer has drawn dense weights. The model
file holds these draws, so a prediction does not depend on a random number generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear
from whvi.errors import ConfigError
from whvi.layers import WHVILinear
from whvi.layers.linear import RandomLinear
from whvi.layers.sines import Sine, Tile
from whvi.layers.structured import StructuredMatrix
from whvi.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from whvi.predictive import Predictive
from whvi.tabular.inputs import Standardizer, TableSchema
from whvi.tabular.networks import FEATURES, build_network
from whvi.training.process import limited_threads

_LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    "gaussian": Gaussian,
    "heteroscedastic": HeteroscedasticGaussian,
    "student_t": StudentT,
    "poisson": Poisson,
}
REGRESSION_LIKELIHOODS = tuple(_LIKELIHOODS)
POSTERIORS = ("diagonal", "low_rank", "full", "flow", "point")

_ROWWISE_OUTPUTS = 4  # up to here a dense layer sums row by row, as MeanFieldLinear does
_VALUES_AT_ONCE = 1 << 19  # of a hidden layer in one pass: they stay in the cache
_MOST_ROWS, _LEAST_ROWS = 64, 8  # of a pass; a power of two
_BLOCK = 1 << 23  # function values per block of rows: bounds the memory of a prediction
# Values of a hidden layer from which on several threads are used: for less work they gain little
# on an idle machine, and waiting for each other on a busy one costs many times the work itself.
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
        for name, known in (
            ("features", FEATURES),
            ("posterior", POSTERIORS),
            ("likelihood", (*REGRESSION_LIKELIHOODS, "labels")),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r:.80}"
                )

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


# Functions: S draws of R networks --------------------------------------------------------------


class StructuredDraws(NamedTuple):
    """``s1, s2 (R, K·D)``, draws ``g (R, S, K·D)``, ``bias (R, out)``."""

    s1: Tensor
    g: Tensor
    s2: Tensor
    bias: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        """Map ``(R, S, N, in)`` to ``(R, S, N, out)``."""
        width, outputs = h.shape[-1], self.bias.shape[-1]
        size = 1 << (width - 1).bit_length()
        plan = BlockPlan(width, outputs, size, -(-outputs // size), is_column=False)
        return block_linear(h, *self, plan)


class DenseDraws(NamedTuple):
    """Drawn matrices ``weight (R, S, out, in)`` and ``bias (R, out)``."""

    weight: Tensor
    bias: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        """Map ``(R, S, N, in)`` to ``(R, S, N, out)``."""
        if self.weight.shape[-2] <= _ROWWISE_OUTPUTS:
            y = (h.unsqueeze(-2) * self.weight.unsqueeze(-3)).sum(-1)
        else:
            y = h @ self.weight.mT
        return y + self.bias[:, None, None]


Draws = StructuredDraws | DenseDraws


@torch.no_grad()
def draw_layers(
    model: nn.Sequential, num_draws: int, generator: torch.Generator
) -> tuple[Draws, ...]:
    """Draw ``num_draws`` sets of weights of every replica, from the first layer to the last."""
    state = model.state_dict()
    found: list[Draws] = []
    for name, layer in model.named_children():
        if not isinstance(layer, RandomLinear):
            continue
        matrix, bias = layer.matrix, state[f"{name}.bias"]
        draw = matrix.posterior.draw((num_draws,), generator)
        if not isinstance(matrix, StructuredMatrix):
            found.append(DenseDraws(draw.unflatten(-1, (bias.shape[-1], -1)), bias))
        elif matrix.plan.is_column:
            found.append(DenseDraws(matrix.dense(draw), bias))
        else:
            s1, s2 = state[f"{name}.matrix.s1"], state[f"{name}.matrix.s2"]
            found.append(StructuredDraws(s1, draw, s2, bias))
    return tuple(found)


@final
class Functions:
    """The fixed functions of an ensemble: draws of its layers, from the first to the last."""

    def __init__(self, features: str, layers: tuple[Draws, ...]) -> None:
        self.features, self.layers = features, layers
        last = layers[-1]
        assert isinstance(last, DenseDraws)  # of MeanFieldLinear
        self.shape = tuple(last.weight.shape[:2])  # (R, S)
        self.num_features = last.bias.shape[-1]
        draws = self.shape[0] * self.shape[1]
        self.width = draws * max(layer.bias.shape[-1] for layer in layers)
        rows = max(_LEAST_ROWS, _VALUES_AT_ONCE // self.width)
        self._rows_at_once = min(_MOST_ROWS, 1 << (rows.bit_length() - 1))
        self.block_rows = max(_MOST_ROWS, _BLOCK // (draws * self.num_features))

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate at ``x (N, in)`` or ``(R, N, in)``: ``(R, S, N, num_features)``.

        All passes have the same number of rows, the last one filled up with zeros: matrix
        products of another size may round differently, and a prediction must not depend on the
        rows beside it. In memory the draws of a row lie side by side, so sums over draws are
        formed in the same order whatever the number of rows.
        """
        num_rows = x.shape[-2]
        filled = F.pad(x, (0, 0, 0, -num_rows % self._rows_at_once))
        passes = filled.split(self._rows_at_once, dim=-2)
        f = torch.cat([self._evaluate(rows) for rows in passes], dim=2)
        by_row = f[..., :num_rows, :].permute(2, 0, 1, 3).contiguous()
        return by_row.permute(1, 2, 0, 3)

    def _evaluate(self, x: Tensor) -> Tensor:
        rows = x.unsqueeze(-3) if x.dim() == 3 else x
        h = rows.expand(*self.shape, *rows.shape[-2:])
        *hidden, last = self.layers
        for k, layer in enumerate(hidden):
            if k == 0 and self.features == "sine":
                h = Tile(h.shape[-1], max(h.shape[-1], layer.bias.shape[-1]))(h)
            activation = Sine() if k == 0 and self.features != "relu" else F.relu
            h = activation(layer(h))
        return last(h)


# Tables ----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Predictor:
    """Predicts the rows of tables."""

    schema: TableSchema
    scaling: Standardizer  # of the encoded columns
    architecture: Architecture
    functions: Functions
    likelihood: Likelihood  # of R replicas, in the units of the targets
    classes: NDArray[Any] | None = None  # in the order of the logits

    def __post_init__(self) -> None:
        self.likelihood.double().requires_grad_(False)

    def rows(self, table: pd.DataFrame) -> Tensor:
        """Return the inputs of the networks, ``(N, in)``."""
        device = self.functions.layers[0].bias.device
        return self.scaling.network_inputs(self.schema.encode(table), device)

    @torch.no_grad()
    def map(self, table: pd.DataFrame, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Evaluate ``of`` function values block by block and join along its first axis, the rows.

        Blocks are filled up with zeros to a multiple of 64 rows, because vectorised sums treat
        the last columns differently, and cut back afterwards.
        """
        x = self.rows(table)
        parts = []
        few = len(x) * self.functions.width < _WORTH_THREADS
        with limited_threads(1 if few else torch.get_num_threads()):
            for block in x.split(self.functions.block_rows):
                filled = F.pad(block, (0, 0, 0, -len(block) % _MOST_ROWS))
                parts.append(of(self.functions(filled))[: len(block)])
        return torch.cat(parts)

    def evaluate(
        self, table: pd.DataFrame, of: Callable[[Predictive], Tensor]
    ) -> NDArray[np.float64]:
        """Evaluate ``of`` the predictive distribution of every row, ``(N, ...)``."""
        found = self.map(table, lambda f: of(self.predictive(f)))
        values: NDArray[np.float64] = found.cpu().numpy()
        return values

    def predict(self, table: pd.DataFrame) -> Predictive:
        """Return the predictive distribution of all rows in one object."""
        f = self.map(table, lambda f: f.movedim(2, 0))
        return self.predictive(f.movedim(0, 2))

    def predictive(self, f: Tensor) -> Predictive:
        """Return the mixture over members and draws, the draws of a row side by side."""
        mixture = self.likelihood.predictive(f).pool()
        found = mixture.gaussian_components()
        if found is None:
            return mixture
        loc, scale = (part.movedim(0, -1).contiguous().movedim(-1, 0) for part in found)
        return Predictive.gaussian(loc, scale)

    # Files -------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is not in :meth:`document`."""
        found = {
            "inputs.mean": torch.as_tensor(self.scaling.mean),
            "inputs.scale": torch.as_tensor(self.scaling.scale),
        }
        found |= {f"likelihood.{k}": t for k, t in self.likelihood.state_dict().items()}
        for k, layer in enumerate(self.functions.layers):
            found |= {f"functions.{k}.{name}": t for name, t in layer._asdict().items()}
        return found

    def document(self) -> dict[str, Any]:
        """Return a description in plain values, ready for JSON."""
        labels = self.classes
        return {
            "schema": asdict(self.schema),
            "architecture": asdict(self.architecture),
            "classes": None
            if labels is None
            else {
                "dtype": "O" if labels.dtype.kind == "O" else labels.dtype.str,
                "values": labels.tolist(),
            },
        }
