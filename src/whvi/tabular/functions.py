r"""The functions of an ensemble: S draws of each of R networks, and the networks linearised.

Weight draws are

.. math:: h \mapsto \phi(s_1 \odot H (g \odot H (s_2 \odot h)) + b)

layer by layer for stored draws of ``g``; the last layer has drawn dense weights. At mean weights
the linearised networks are ``f(x) + √α J(x) δ`` with stored draws of displacements ``δ`` of all
parameters, and ``v(x)`` is their mean square. The kernel evaluates all layers and draws in one call
(:mod:`whvi._kernel.network`); what is here in torch defines it, and serves other devices, ONNX and
layers without structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting
from torch.nn import functional as F

from whvi._checks import block_size_for
from whvi._kernel.jacobian import row_gradients
from whvi._kernel.layout import BlockPlan
from whvi._kernel.network import Displacements, HiddenLayer, Network, kernel_takes_network
from whvi._kernel.product import block_linear
from whvi.layers.linear import RandomLinear
from whvi.layers.sines import Sine, Tile
from whvi.layers.structured import StructuredMatrix

_ROWWISE_OUTPUTS = 4  # up to here a dense layer sums row by row, as MeanFieldLinear does
_VALUES_AT_ONCE = 1 << 19  # of a hidden layer in one pass: they stay in the cache
MOST_ROWS, _LEAST_ROWS = 64, 8  # of a pass; a power of two
_BLOCK = 1 << 17  # function values per block of rows: they stay in the cache


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


Draws: TypeAlias = StructuredDraws | DenseDraws


@final
class Functions:
    """The fixed functions of an ensemble: draws of its layers, moved towards their mean."""

    def __init__(self, features: str, layers: tuple[Draws, ...], spread: float = 1.0) -> None:
        self.features, self.spread = features, spread
        # as a model file has them: values do not depend on where layers come from
        self.layers: tuple[Draws, ...] = tuple(
            type(layer)(*(t.contiguous() for t in layer)) for layer in layers
        )
        last = layers[-1]
        assert isinstance(last, DenseDraws)  # of MeanFieldLinear
        self.shape = tuple(last.weight.shape[:2])  # (R, S)
        self.num_features = last.bias.shape[-1]
        draws = self.shape[0] * self.shape[1]
        self.width = draws * max(layer.bias.shape[-1] for layer in layers)
        rows = max(_LEAST_ROWS, _VALUES_AT_ONCE // self.width)
        self._rows_at_once = min(MOST_ROWS, 1 << (rows.bit_length() - 1))
        self.block_rows = max(MOST_ROWS, _BLOCK // (draws * self.num_features))

    def __call__(self, x: Tensor, sharing: int = 0) -> Tensor:
        """Evaluate at ``x (N, in)`` or ``(R, N, in)``: ``(R, S, N, num_features)``.

        In memory the draws of a row lie side by side, so sums over them have one order for any
        ``N``. ``sharing`` members have rows of their own; if 0, all.
        """
        network = self.network(self.layers, x)
        if network is not None:
            by_row = network.draws(x)
        else:
            f = torch.cat([self._evaluate(rows) for rows in self.passes(x)], dim=2)
            by_row = f[..., : x.shape[-2], :].permute(2, 0, 1, 3).contiguous()
        seen = x if x.dim() == 3 else None
        return towards_mean(by_row.permute(1, 2, 0, 3), self.spread, sharing, seen)

    def network(self, layers: Sequence[Draws], x: Tensor) -> Network | None:
        """Return layers as the kernel has them, if it may evaluate them at these rows."""
        *hidden, last = layers
        assert isinstance(last, DenseDraws)
        found = []
        for k, layer in enumerate(hidden):
            if not isinstance(layer, StructuredDraws):
                return None
            before = hidden[k - 1].bias.shape[-1] if k else self._first_inputs(x.shape[-1])
            found.append(HiddenLayer(before, self.is_sine(k), *layer))
        network = Network(found, *last)
        return network if kernel_takes_network(network, x) else None

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
        tiled: Tensor = Tile(h.shape[-1], self._first_inputs(h.shape[-1]))(h)
        return tiled

    def _first_inputs(self, num_inputs: int) -> int:
        """Return the inputs of layer 0."""
        return max(num_inputs, self.layers[0].bias.shape[-1] if self.features == "sine" else 0)

    def is_sine(self, k: int) -> bool:
        """Whether the nonlinearity after hidden layer ``k`` is a sine; the others are ReLU."""
        return k == 0 and self.features != "relu"


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


def towards_mean(f: Tensor, spread: float, sharing: int = 0, seen: Tensor | None = None) -> Tensor:
    """Return ``f̄ + spread · (f − f̄)`` of functions ``(R, S, N, F)``.

    The mean ``f̄`` of a row is that of all draws of ``sharing`` neighbouring members; of all if 0.
    Rows of ``seen (R, N, in)`` that these members do not see alike stay as they are: members guess
    what is missing, and there only their spread says so.
    """
    if spread == 1:
        return f
    groups = f.unflatten(0, (-1, sharing or len(f)))
    moved = torch.lerp(groups.mean((1, 2), keepdim=True), groups, spread)
    if seen is not None:
        inputs = seen.unflatten(0, groups.shape[:2])
        alike = (inputs == inputs[:, :1]).all(-1).all(1)  # (groups, N)
        moved = torch.where(alike[:, None, None, :, None], moved, groups)
    return moved.flatten(0, 1)


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


class LinearValues(NamedTuple):
    """What the linearised networks say about rows."""

    f: Tensor  # (R, N, F)
    variance: Tensor  # v of the first O outputs, (R, N, O), in float64
    changes: Tensor  # some J(x) δ, (R, num_kept, N, O)


@final
class Linearized:
    """The networks at their mean weights, and draws of ``J(x) δ``."""

    def __init__(self, functions: Functions, tangents: tuple[Tangent, ...], gate: Gate) -> None:
        self.functions, self.tangents, self.gate = functions, tangents, gate
        self.layers: list[Draws] = []
        for layer, tangent in zip(functions.layers, tangents, strict=True):
            name = "g" if isinstance(layer, StructuredDraws) else "weight"
            self.layers.append(layer._replace(**{name: tangent.mean.unsqueeze(1).contiguous()}))

    def __call__(self, x: Tensor, num_outputs: int) -> tuple[Tensor, Tensor]:
        """Return ``f (R, N, F)`` and the changes ``(R, S, N, O)`` of its first ``O`` outputs."""
        parts = [self._evaluate(rows, num_outputs) for rows in self.functions.passes(x)]
        f, changes = (torch.cat(part, dim=-2) for part in zip(*parts, strict=True))
        return f[..., : x.shape[-2], :], changes[..., : x.shape[-2], :]

    def values(self, x: Tensor, num_outputs: int, num_kept: int) -> LinearValues:
        """Return the same with the changes summed up, but for the first ``num_kept`` draws."""
        network = self.functions.network(self.layers, x)
        if network is None:
            f, changes = self(x, num_outputs)
            return LinearValues(f, changes.double().square().mean(1), changes[:, :num_kept])
        num_kept = min(num_kept, self._displacements.num_draws)
        f, variance, kept = network.changes(
            x, self._displacements, num_outputs=num_outputs, num_kept=num_kept
        )
        return LinearValues(f.transpose(0, 1), variance.transpose(0, 1), kept.permute(1, 3, 0, 2))

    @cached_property
    def _displacements(self) -> Displacements:
        parts = [part for tangent in self.tangents for part in tangent.displacements]
        return Displacements.of(torch.cat(parts, dim=-1))

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
