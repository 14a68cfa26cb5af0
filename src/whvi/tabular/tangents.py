r"""The networks of an ensemble, linearised at their mean weights.

.. math:: f(x) + \sqrt{\alpha} \, J(x) \delta, \qquad v(x) = \frac{1}{S} \sum_s (J(x) \delta_s)^2

with stored draws of displacements ``δ`` of all parameters. :class:`Gate` says which share they get
in a prediction; :mod:`whvi.tabular.extrapolation` learns all of it.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from whvi._kernel.network import Displacements
from whvi.layers.sines import Sine
from whvi.tabular.draws import Draws, Functions, StructuredDraws


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
            self.layers.append(layer._replace(**{name: tangent.mean.unsqueeze(1)}))

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
        num_kept = min(num_kept, self._displacements.count)
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
