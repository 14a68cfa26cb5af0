r"""From the rows of a table to predictive distributions: all that a prediction needs.

A fitted ensemble is a fixed set of functions: S draws of each of R networks. Prediction evaluates

.. math:: h \mapsto \phi(s_1 \odot H (g \odot H (s_2 \odot h)) + b)

layer by layer for the stored draws of ``g``; the last layer has drawn dense weights. The model
file holds these draws, so a prediction does not depend on a random number generator.

Far from the training rows these functions agree too much. There the networks are linearised at
their mean weights, ``f(x) + √α J(x) δ`` with stored draws of displacements ``δ`` of all their
parameters, and get a share that grows with the variance: :mod:`whvi.tabular.extrapolation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.compiler import is_exporting
from torch.nn import functional as F

from whvi._checks import block_size_for
from whvi._kernel.jacobian import row_gradients
from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear
from whvi.errors import ConfigError
from whvi.layers import WHVILinear
from whvi.layers.sines import Sine, Tile
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
from whvi.predictive.components import towards_mean
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

_ROWWISE_OUTPUTS = 4  # up to here a dense layer sums row by row, as MeanFieldLinear does
_VALUES_AT_ONCE = 1 << 19  # of a hidden layer in one pass: they stay in the cache
_MOST_ROWS, _LEAST_ROWS = 64, 8  # of a pass; a power of two
_FAR_DRAWS = 64  # of all members, where components are not Gaussian
_BLOCK = 1 << 23  # function values per block of rows: bounds the memory of a prediction
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


# Functions: S draws of R networks --------------------------------------------------------------


class StructuredDraws(NamedTuple):
    """``s1, s2 (R, K·D)``, draws ``g (R, S, K·D)``, ``bias (R, out)``."""

    s1: Tensor
    g: Tensor
    s2: Tensor
    bias: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        """Map ``(R, S, N, in)`` to ``(R, S, N, out)``."""
        return block_linear(h, *self, self._plan(h.shape[-1]))

    def _plan(self, width: int) -> BlockPlan:
        outputs, size = self.bias.shape[-1], block_size_for(width)
        return BlockPlan(width, outputs, size, -(-outputs // size), is_column=False)

    def gradients(self, h: Tensor, grad: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the derivatives of every row with respect to the four tensors, and to ``h``.

        For one draw, ``h (R, N, in)``, and the derivative ``grad (R, N, out)`` with respect to the
        output.
        """
        vectors = (self.s1, self.g[:, 0], self.s2)
        inputs, *pieces = row_gradients(h, *vectors, grad, self._plan(h.shape[-1]))
        return (*(piece.flatten(-2) for piece in pieces), grad), inputs


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

    def gradients(self, h: Tensor, grad: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the same for weights and bias."""
        weights = (grad.unsqueeze(-1) * h.unsqueeze(-2)).flatten(-2)
        return (weights, grad), grad @ self.weight[:, 0]


Draws = StructuredDraws | DenseDraws


@final
class Functions:
    """The fixed functions of an ensemble: draws of its layers, moved towards their mean."""

    def __init__(self, features: str, layers: tuple[Draws, ...], spread: float = 1.0) -> None:
        self.features, self.layers, self.spread = features, layers, spread
        last = layers[-1]
        assert isinstance(last, DenseDraws)  # of MeanFieldLinear
        self.shape = tuple(last.weight.shape[:2])  # (R, S)
        self.num_features = last.bias.shape[-1]
        draws = self.shape[0] * self.shape[1]
        self.width = draws * max(layer.bias.shape[-1] for layer in layers)
        rows = max(_LEAST_ROWS, _VALUES_AT_ONCE // self.width)
        self._rows_at_once = min(_MOST_ROWS, 1 << (rows.bit_length() - 1))
        self.block_rows = max(_MOST_ROWS, _BLOCK // (draws * self.num_features))

    def __call__(self, x: Tensor, sharing: int = 0) -> Tensor:
        """Evaluate at ``x (N, in)`` or ``(R, N, in)``: ``(R, S, N, num_features)``.

        In memory the draws of a row lie side by side, so sums over them have one order for any
        ``N``. ``sharing`` members have rows of their own; if 0, all.
        """
        f = torch.cat([self._evaluate(rows) for rows in self.passes(x)], dim=2)
        by_row = f[..., : x.shape[-2], :].permute(2, 0, 1, 3).contiguous()
        seen = x if x.dim() == 3 else None
        return towards_mean(by_row.permute(1, 2, 0, 3), self.spread, sharing, seen)

    def passes(self, x: Tensor) -> tuple[Tensor, ...]:
        """Cut rows into pieces of one size, the last one filled up with zeros.

        Matrix products of another size may round differently, and a prediction must not depend
        on the rows beside it. A graph that is exported takes all rows at once.
        """
        if is_exporting():
            return (x,)
        filled: Tensor = F.pad(x, (0, 0, 0, -x.shape[-2] % self._rows_at_once))
        return tuple(filled.split(self._rows_at_once, dim=-2))

    def _evaluate(self, x: Tensor) -> Tensor:
        rows = x.unsqueeze(-3) if x.dim() == 3 else x
        h = rows.expand(*self.shape, *rows.shape[-2:])
        *hidden, last = self.layers
        for k, layer in enumerate(hidden):
            a = layer(self.before(k, h))
            h = Sine()(a) if self.is_sine(k) else F.relu(a)
        return last(h)

    def before(self, k: int, h: Tensor) -> Tensor:
        """Return the inputs of layer ``k``: sine features are of inputs tiled to their width."""
        if k or self.features != "sine":
            return h
        tiled: Tensor = Tile(h.shape[-1], max(h.shape[-1], self.layers[0].bias.shape[-1]))(h)
        return tiled

    def is_sine(self, k: int) -> bool:
        """Whether the nonlinearity after hidden layer ``k`` is a sine; the others are ReLU."""
        return k == 0 and self.features != "relu"


# The same networks, linearised -----------------------------------------------------------------


class Tangent(NamedTuple):
    """One layer of the linearised networks."""

    mean: Tensor  # of g (R, K·D), or of dense weights (R, out, in)
    displacements: tuple[Tensor, ...]  # draws (R, S, ·), one for every tensor of the layer


class Gate(NamedTuple):
    """From the variance ``v`` of the linearised networks to their share in a prediction.

    The odds are those of ``log v`` under two normal distributions, *near* and *far*.
    """

    factor: float  # α, on the variance
    log_odds: float  # where both are equally likely
    near: float  # mean of log v
    far: float
    width: float

    def share(self, log_variance: Tensor) -> Tensor:
        """Return ``w`` of every row."""
        near, far = log_variance - self.near, log_variance - self.far
        return torch.sigmoid(self.log_odds + (near.square() - far.square()) / (2 * self.width**2))


@final
class Linearized:
    """The networks at their mean weights, and draws of ``J(x) δ``."""

    def __init__(self, functions: Functions, tangents: tuple[Tangent, ...], gate: Gate) -> None:
        self.functions, self.tangents, self.gate = functions, tangents, gate
        self.layers: list[Draws] = []
        for layer, tangent in zip(functions.layers, tangents, strict=True):
            name = "g" if isinstance(layer, StructuredDraws) else "weight"
            self.layers.append(layer._replace(**{name: tangent.mean.unsqueeze(1)}))

    def __call__(self, x: Tensor, num_outputs: int) -> tuple[Tensor, Tensor]:
        """Return ``f (R, N, F)`` and the changes ``(R, S, N, O)`` of its first ``O`` outputs."""
        parts = [self._evaluate(rows, num_outputs) for rows in self.functions.passes(x)]
        f, changes = (torch.cat(part, dim=-2) for part in zip(*parts, strict=True))
        return f[..., : x.shape[-2], :], changes[..., : x.shape[-2], :]

    def _evaluate(self, x: Tensor, num_outputs: int) -> tuple[Tensor, Tensor]:
        rows = x.unsqueeze(-3) if x.dim() == 3 else x
        h = rows.expand(self.functions.shape[0], 1, *rows.shape[-2:])
        inputs, slopes = [], []
        for k, layer in enumerate(self.layers[:-1]):
            inputs.append(self.functions.before(k, h))
            a = layer(inputs[-1])
            is_sine = self.functions.is_sine(k)
            h = Sine()(a) if is_sine else F.relu(a)
            slopes.append(Sine.SCALE * a.cos() if is_sine else (a > 0).to(a))
        f = self.layers[-1](h)[:, 0]
        inputs.append(h)
        units = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)[:num_outputs]
        changes = [self._changes(unit.expand_as(f), inputs, slopes) for unit in units]
        return f, torch.stack(changes, dim=-1)

    def _changes(self, grad: Tensor, inputs: list[Tensor], slopes: list[Tensor]) -> Tensor:
        """Return ``J(x) δ`` of one output, ``(R, S, N)``, by one pass from the last layer back."""
        change = grad.new_zeros(())
        for k in reversed(range(len(self.layers))):
            pieces, grad = self.layers[k].gradients(inputs[k][:, 0], grad)
            for piece, displacement in zip(pieces, self.tangents[k].displacements, strict=True):
                change = change + displacement @ piece.mT
            if k:
                grad = grad * slopes[k - 1][:, 0]
        return change


# Tables ----------------------------------------------------------------------------------------


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
                x, stretch = self.embedding.of_members(encoded[k : k + at_once], device, members)
                rest = -len(stretch) % _MOST_ROWS
                filled = F.pad(x, (0, 0, 0, rest)), F.pad(stretch, (0, 0, 0, rest), value=1.0)
                found.append(of(self.predictive(*filled))[: len(stretch)])
        return found

    def evaluate(self, table: Table, of: Callable[[Predictive], Tensor]) -> NDArray[np.float64]:
        """Evaluate ``of`` the predictive distribution of every row, ``(N, ...)``."""
        return np.asarray(torch.cat(self.map(table, of)).cpu().numpy())

    def predict(self, table: Table) -> Predictive:
        """Return the predictive distribution of all rows in one object."""
        return _by_row(Predictive.cat(self.map(table, lambda p: p)))

    def predictive(self, x: Tensor, stretch: Tensor | float = 1.0) -> Predictive:
        """Return the mixture over members and draws, near and far, of embedded rows."""
        near = self.likelihood.predictive(self.functions(x)).pool()
        if self.linearized is None:
            return _by_row(near)
        f, changes = self.linearized(x, self.architecture.num_functions)
        far, share = self._far(self.linearized.gate, f.double(), stretch * changes.double())
        return _by_row(Predictive.mix([near, far], [1 - share, share]))

    def share(self, predictive: Predictive) -> Tensor:
        """Return the share of the linearised networks in every row, ``(N,)``."""
        if predictive.weights is None:
            return torch.zeros(len(predictive))
        return predictive.weights[math.prod(self.functions.shape) :].sum(0)

    def _far(self, gate: Gate, f: Tensor, changes: Tensor) -> tuple[Predictive, Tensor]:
        """Return the linearised mixture of values and changes, and its share in every row."""
        variance = changes.square().mean(1)  # (R, N, O)
        share = gate.share(variance.mean(-1).clamp_min(1e-30).log().mean(0))
        gaussian = isinstance(self.likelihood, Gaussian | HeteroscedasticGaussian)
        if self.single or not gaussian:
            few = changes[:, : -(-_FAR_DRAWS // len(f))]
            if gaussian:  # the mean is that of the moments below
                few = F.pad(few - few.mean(1, keepdim=True), (0, f.shape[-1] - few.shape[-1]))
            if isinstance(self.likelihood, Poisson):  # rates are known to a factor of e, or better
                few = few / (gate.factor * variance).sqrt().clamp_min(1).unsqueeze(1)
            return self.likelihood.predictive(f.unsqueeze(1) + gate.factor**0.5 * few).pool(), share
        components = self.likelihood.predictive(f.unsqueeze(1)).pool().gaussian_components()
        assert components is not None
        loc, noise = components
        unit = self.likelihood.target_scale.unsqueeze(-2)
        spread = ((gate.factor * variance).sqrt() * unit).reshape(loc.shape)
        return Predictive.gaussian(loc, torch.hypot(noise, spread), spread), share


def _by_row(predictive: Predictive) -> Predictive:
    """Lay the components of a row side by side: sums over them do not depend on other rows."""
    return predictive.map(lambda p: p.movedim(0, -1).contiguous().movedim(-1, 0))
