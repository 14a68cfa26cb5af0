r"""How far a row is from the training rows, and what the networks know there.

Each member is linearised at its mean weights ``θ*`` (:func:`whvi.linearize`) with the posterior
``N(0, Σ)`` of a displacement of all its parameters, given the rows it was trained on:

.. math:: f(x) = f(x; \theta^*) + J(x) \delta, \qquad v(x) = J(x) \Sigma J(x)^\top

``v`` is large where training rows say little. Predictions mix weight draws, which are right near
the training rows, and these functions, which are right far from them (:class:`Gate`). Everything
that the mixture needs is learned from training rows:

- *near* is what ``v`` is in the rows that a member left out;
- *far* is what ``v`` is in the middle third of a column if the rows there are taken from the
  linear model, and the factor ``α`` on the variance is the one that suits their errors best;
- few rows prove little: ``log α`` is shrunk as if 20 rows said zero, and the share of *far* begins
  at 0.98 and approaches 0.05, half of the way after 10 rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from whvi.layers import WHVILinear
from whvi.layers.linear import RandomLinear
from whvi.likelihoods import Gaussian, HeteroscedasticGaussian
from whvi.linearized.chain import Column
from whvi.linearized.covariance import RowCovariance
from whvi.linearized.curvature import curvature_root, slope
from whvi.linearized.evidence import Evidence, maximise
from whvi.linearized.jacobians import jacobian
from whvi.linearized.parameters import ParameterSpace, parameter_space
from whvi.linearized.statistics import Statistics
from whvi.linearized.triangular import cholesky
from whvi.tabular.functions import Functions, Gate, Linearized, Tangent
from whvi.tabular.training import Trained
from whvi.training.config import seeded_generator

NUM_DRAWS = 64  # of displacements: 18 % error of a variance in one row, and less in their mean
_SUPPORT = 256  # rows, or outputs if there are several, that stand for all
_HELD_OUT_ROWS = 100
_SLABS = 3  # that each member takes out in turn, of different columns
_FEWEST_ROWS = 9  # of which a third can be taken out
_MOST_OUTPUTS = 8  # which are differentiated one by one
_FACTORS = torch.logspace(-2, 0.7, 28, dtype=torch.float64)
_FACTOR_ROWS, _SHARE_ROWS = 20, 10
_SHARES = (0.98, 0.05)  # of what is far, after no rows and after many
_LEAST_WIDTH = 0.3


class _Slab(NamedTuple):
    """Rows that were taken out of the linear model, one value for every output of each."""

    variance: Tensor  # v there
    noise: Tensor  # σ²
    error: Tensor


@torch.no_grad()
def linearized(
    trained: Trained,
    functions: Functions,
    x: Tensor,
    y: Tensor,
    seed: int,
    *,
    num_columns: int,
    weights: Tensor | None = None,
) -> Linearized | None:
    """Linearise the members of an ensemble; ``None`` where it is not affordable.

    Args:
        trained: Members, and which of the rows they left out.
        functions: Their weight draws.
        x, y: All rows.
        seed: Of the displacements.
        num_columns: The first of the inputs, which are columns; the others are bins of them.
        weights: How often each row counts, ``(N,)``; ``None``: once.
    """
    architecture = trained.architecture
    if architecture.posterior == "flow" or architecture.num_functions > _MOST_OUTPUTS:
        return None
    members = _members(trained, x, y, num_columns, weights)
    generator = seeded_generator("displacements", seed)
    draws = torch.stack([m.covariance.draw(NUM_DRAWS, generator) for m in members])
    num_rows = len(x) if weights is None else float(weights.sum())
    return Linearized(functions, tangents(trained, draws.to(x)), _gate(members, num_rows))


def _members(
    trained: Trained, x: Tensor, y: Tensor, num_columns: int, weights: Tensor | None
) -> list[_Member]:
    """Differentiate all members at the rows they were trained on, and at those they left out."""
    model, likelihood, folds = trained.model, trained.likelihood, trained.folds
    num_members, num_functions = trained.architecture.members, trained.architecture.num_functions
    num_rows = max(_FEWEST_ROWS, _SUPPORT // num_functions)
    rows = folds.train[..., :num_rows].expand(num_members, -1)
    space = parameter_space(model)
    f, J = (part.double() for part in jacobian(model, x[rows], space))
    gradient = slope(likelihood, f, y[rows])[1]
    root = curvature_root(likelihood, f).square().sum(-1).sqrt()  # of the diagonal of R
    f, J, gradient, root = (part[:, :, :num_functions] for part in (f, J, gradient, root))
    left_out: list[Tensor | None] = [None] * num_members
    if folds.held_out is not None:
        held_out = folds.held_out[..., :_HELD_OUT_ROWS].expand(num_members, -1)
        found = jacobian(model, x[held_out], space).derivatives
        left_out = list(found[:, :, :num_functions].double())
    columns = x[rows][..., :num_columns]
    counts = root.new_full((num_members, rows.shape[-1]), folds.train.shape[-1] / rows.shape[-1])
    if weights is not None:
        total = weights[folds.train].sum(-1, keepdim=True)
        counts = weights[rows] * (total / weights[rows].sum(-1, keepdim=True))
    errors_count = isinstance(likelihood, Gaussian | HeteroscedasticGaussian)
    return [
        _Member(space, *parts, errors_count=errors_count)
        for parts in zip(
            space.vector(model), columns, J, root, gradient, counts, left_out, strict=True
        )
    ]


def prior_precision(space: ParameterSpace, theta: Tensor, rows: Tensor) -> Tensor:
    """Return ``Λ (P,)`` of one network by the evidence of whitened Jacobians ``rows (M, P)``."""
    zero = theta.new_zeros(())
    statistics = Statistics(rows, None, torch.zeros_like(theta), zero, zero, len(rows))
    evidence = Evidence(statistics, theta, space, linear=False)
    return space.spread(maximise(evidence, precision=None, fit_noise=False).precision)


class _Member:
    """One network, linearised at ``n`` rows that stand for all it was trained on.

    Args:
        space: Its parameters.
        theta: Their values, ``(P,)``.
        x: The rows, ``(n, columns)``.
        J: Derivatives of its functions there, ``(n, O, P)``.
        root: Root of the curvature of the likelihood, ``(n, O)``; for Gaussian noise ``1 / σ``.
        gradient: Of the log-likelihood with respect to the functions, ``(n, O)``.
        counts: How often each row counts, ``(n,)``.
        left_out: Derivatives at rows that were left out, ``(h, O, P)``, if there are any.
        errors_count: Whether errors of the linear model are those of its targets.
    """

    def __init__(
        self,
        space: ParameterSpace,
        theta: Tensor,
        x: Tensor,
        J: Tensor,
        root: Tensor,
        gradient: Tensor,
        counts: Tensor,
        left_out: Tensor | None,
        *,
        errors_count: bool,
    ) -> None:
        self.x, self.left_out, self.errors_count = x, left_out, errors_count
        whitening = counts.sqrt().unsqueeze(-1) * root
        rows = (whitening.unsqueeze(-1) * J).flatten(0, 1)  # Z, (n·O, P)
        precision = prior_precision(space, theta, rows)
        self.covariance = RowCovariance(rows, precision, theta.new_ones(()))
        self.kernel = (rows / precision) @ rows.mT
        self.whitening, self.noise = whitening, root.square().reciprocal()
        self.residual = gradient * self.noise  # y − f if errors count
        self.targets = whitening * self.residual + (rows @ theta).view_as(root)

    def held_out_variance(self) -> Tensor:
        """Return ``v`` of the rows that were left out, averaged over functions."""
        if self.left_out is None:
            return self.noise.new_zeros(0)
        covariance = self.covariance.of_outputs(self.left_out)
        return covariance.diagonal(dim1=-2, dim2=-1).mean(-1)

    def slabs(self, first: int) -> list[_Slab]:
        """Take the middle third of the rows out, along some columns from number ``first`` on."""
        columns = [c for c in range(self.x.shape[1]) if len(self.x[:, c].unique()) > 2]
        if len(self.x) < _FEWEST_ROWS or not columns:
            return []
        chosen = {columns[(first + k) % len(columns)] for k in range(_SLABS)}
        return [self._without(*_middle_third(self.x[:, c])) for c in sorted(chosen)]

    def _without(self, inside: Tensor, outside: Tensor) -> _Slab:
        entries = torch.arange(self.noise.numel()).view_as(self.noise)
        asked, known = entries[inside].flatten(), entries[outside].flatten()
        cross = self.kernel[asked][:, known]
        factor = cholesky(self.kernel[known][:, known] + torch.eye(len(known), dtype=cross.dtype))
        half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
        variance = self.kernel.diagonal()[asked] - half.square().sum(0)
        without = _fitted(cross, factor, self.targets.flatten()[known])
        change = without - _fitted(
            self.kernel[asked], self.covariance.factor, self.targets.flatten()
        )
        unit = self.whitening[inside]
        error = self.residual[inside] - change.view_as(unit) / unit
        variance = variance.clamp_min(0).view_as(unit) / unit.square()
        return _Slab(variance, self.noise[inside], error)


def _fitted(cross: Tensor, factor: Tensor, targets: Tensor) -> Tensor:
    """Return ``cross · (L Lᵀ)⁻¹ targets``: values of the linear model, given whitened targets."""
    return cross @ torch.cholesky_solve(targets.unsqueeze(-1), factor).squeeze(-1)


def _middle_third(column: Tensor) -> tuple[Tensor, Tensor]:
    """Return row numbers inside and outside."""
    order, n = column.argsort(stable=True), len(column)
    return order[n // 3 : 2 * n // 3], torch.cat([order[: n // 3], order[2 * n // 3 :]])


def log_odds_of_far(num_rows: float) -> float:
    """Return the log odds of *far* where the variance says nothing, after ``num_rows`` rows."""
    after_none, after_many = _SHARES
    share = (_SHARE_ROWS * after_none + num_rows * after_many) / (_SHARE_ROWS + num_rows)
    return math.log(share / (1 - share))


def _gate(members: list[_Member], num_rows: float) -> Gate:
    near = torch.cat([member.held_out_variance() for member in members])
    slabs = [slab for r, member in enumerate(members) for slab in member.slabs(r * _SLABS)]
    log_odds = log_odds_of_far(num_rows)
    if not len(near) or not slabs:
        return Gate(1.0, log_odds, 0.0, 0.0, 1.0)
    far = torch.cat([slab.variance.mean(-1) for slab in slabs])
    log_near, log_far = near.clamp_min(1e-30).log(), far.clamp_min(1e-30).log()
    width = (0.5 * (log_near.var(correction=0) + log_far.var(correction=0))).sqrt()
    factor = 1.0
    if members[0].errors_count:
        factor = _best_factor(slabs) ** (num_rows / (num_rows + _FACTOR_ROWS))
    middle = float(log_near.mean())
    return Gate(
        factor,
        log_odds,
        middle,
        max(float(log_far.mean()), middle),
        max(float(width), _LEAST_WIDTH),
    )


def _best_factor(slabs: list[_Slab]) -> float:
    """Maximise the likelihood of the errors, ``N(0, σ² + α v)``, over a grid."""
    variance, noise, error = (torch.cat(part).flatten() for part in zip(*slabs, strict=True))
    total = noise + _FACTORS[:, None] * variance
    return float(_FACTORS[(error.square() / total + total.log()).mean(-1).argmin()])


def tangents(trained: Trained, draws: Tensor) -> tuple[Tangent, ...]:
    """Sort displacements ``(R, S, P)`` by layers and their tensors."""
    space = parameter_space(trained.model)
    parts = {name: draws[..., where] for name, where in space.slices.items()}
    found = []
    for name, layer in trained.model.named_children():
        if not isinstance(layer, RandomLinear):
            continue
        matrix, bias = layer.matrix, parts[f"{name}.bias"]
        loc = matrix.posterior.loc.detach()
        if not isinstance(layer, WHVILinear):
            mean = loc.unflatten(-1, (layer.out_features, -1))
            found.append(Tangent(mean, (parts[f"{name}.matrix.posterior.loc"], bias)))
            continue
        names = (f"{name}.matrix.s1", f"{name}.matrix.posterior.loc", f"{name}.matrix.s2")
        vectors = tuple(parts[each] for each in names)
        if layer.matrix.plan.is_column:
            column = Column(layer)
            weights = sum(d @ v.mT for d, v in zip(column.derivatives, vectors, strict=True)).mT
            found.append(Tangent(column.weight, (weights, bias)))
        else:
            found.append(Tangent(loc, (*vectors, bias)))
    return tuple(found)
