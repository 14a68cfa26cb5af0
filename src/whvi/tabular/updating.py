r"""New rows for a fitted ensemble: its posterior becomes the prior.

Let ``q*`` be the posterior of a member, with means ``c`` of its weights, and ``f*`` its function at
``c``. Around ``q*`` the objective of the rows it has seen is, to second order,

.. math:: -\tfrac12 \sum_m w_m \mathbb{E}_q |f(x_m) - f^*(x_m)|^2_{R_m}
          - \beta \, \mathrm{KL}(q \,\|\, N(c, \lambda I))

where ``R`` is the Fisher information of the likelihood (:mod:`whvi.linearized.curvature`) and some
rows ``m`` were kept to stand for ``w_m`` rows each; of a linear model with Gaussian noise and all
rows kept this is exact. An update maximises it together with the new rows' ``E_q log p(y | f)``.

Without rows that are kept, by ``KL(q ‖ q*)`` alone, ensembles forget: where new rows lay beside the
old ones, errors on the latter grew by 30 % with ``s1``, ``s2`` and biases frozen (and those on the
new rows were a third larger), and eightfold with these free. So they are free, and held by ``f*``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from whvi.layers.protocol import BayesianLayer, bayesian_layers
from whvi.likelihoods import Likelihood
from whvi.linearized.covariance import RowCovariance
from whvi.linearized.curvature import curvature_root
from whvi.linearized.jacobians import jacobian
from whvi.linearized.parameters import parameter_space
from whvi.posteriors import PlanarFlow
from whvi.predictive import Predictive
from whvi.sampling import MeanWeights, sampling
from whvi.tabular.extrapolation import NUM_DRAWS, log_odds_of_far, prior_precision, tangents
from whvi.tabular.functions import Functions, Gate, Linearized
from whvi.tabular.training import Memory, Session, Trained, train_finite
from whvi.training import FitConfig, fit
from whvi.training.config import seeded_generator

_SUPPORT = 256  # rows, or outputs if there are several, at which members are linearised
_FEWEST_SUPPORT = 9
_FEWEST_STEPS = 400
_VISITS = 128  # of every new row, roughly


# The objective ---------------------------------------------------------------------------------


@final
class Recollection(Likelihood):
    """``log p(y | f)`` of new rows, and ``−½ |f − f*|²_R`` of rows that are remembered.

    Targets have the columns ``y``, weight if new, weight if remembered, ``f*``.
    """

    def __init__(self, inner: Likelihood) -> None:
        super().__init__(inner.num_outputs + 2 + inner.num_features, inner.batch_shape)
        self.inner = inner.requires_grad_(False)

    @property
    def num_features(self) -> int:
        """As of the likelihood."""
        return self.inner.num_features

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return the weighted terms of all rows."""
        sizes = [self.inner.num_outputs, 1, 1, self.num_features]
        targets, new, old, before = y.split(sizes, -1)
        root = curvature_root(self.inner, before).unsqueeze(-4)
        distance = root.mT @ (f - before.unsqueeze(-3)).unsqueeze(-1)
        past = old.mT * distance.square().sum((-2, -1))
        log_prob: Tensor = new.mT * self.inner.log_prob(f, targets) - 0.5 * past
        return log_prob

    def check_targets(self, y: Tensor) -> None:
        """Accept any: they were checked before."""

    def predictive(self, f: Tensor) -> Predictive:
        """As of the likelihood."""
        return self.inner.predictive(f)


@final
class Anchor(BayesianLayer):
    """The identity, whose KL turns the prior ``N(0, λ I)`` of other layers into ``N(c, λ I)``.

    ``KL(q ‖ N(c, λ I)) = KL(q ‖ N(0, λ I)) − cᵀ E[g] / λ + |c|² / 2λ``, with the ``c`` and ``λ``
    that these layers have now.
    """

    def __init__(self, layers: Iterable[BayesianLayer]) -> None:
        super().__init__()
        self._held = []  # not in a module: the layers own them
        for layer in layers:
            self.batch_shape = layer.batch_shape
            for q, prior in layer.kl_terms() or ():
                if not isinstance(q, PlanarFlow):  # whose mean is an estimate
                    pull = q.loc.detach() / prior.variance(q.mean_square()).detach().unsqueeze(-1)
                    self._held.append((q, pull, 0.5 * (pull * q.loc.detach()).sum(-1)))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x

    def kl(self) -> Tensor:
        """Return what the other prior adds to the KLs of the layers."""
        terms = [half - (pull * q.loc).sum(-1) for q, pull, half in self._held]
        return torch.stack(terms).sum(0)


class Weighted(NamedTuple):
    """Inputs of networks ``x (N, in)``, and how often each row counts."""

    x: Tensor
    weight: Tensor


def absorb(
    old: Trained, past: Weighted, new: Weighted, y: Tensor, config: FitConfig, session: Session
) -> Trained:
    """Train a copy of ``old`` on ``new`` rows, of which ``old.folds`` leaves some out.

    New rows and others are seen equally often, whatever their numbers. The noise stays as it is.
    """
    rows = _rows(old, past, *(part[old.folds.train] for part in (*new, y)))

    def train(factor: float) -> Trained:
        model = copy.deepcopy(old.model).requires_grad_(True)
        objective = Recollection(copy.deepcopy(old.likelihood))
        fit(
            nn.Sequential(*model, Anchor(bayesian_layers(model))),
            objective,
            rows,
            config=replace(config, learning_rate=factor * config.learning_rate),
            callbacks=session.callbacks,
            progress=session.progress,
        )
        return old._replace(model=model, likelihood=objective.inner)

    return train_finite(train)


@torch.no_grad()
def _rows(
    old: Trained, past: Weighted, x: Tensor, weight: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the inputs and the targets of a :class:`Recollection`, ``(R, N, ...)`` each."""
    members = old.architecture.members
    x, y, known = (part.expand(members, -1, -1) for part in (x, y, past.x))
    again, more = max(1, known.shape[1] // x.shape[1]), max(1, x.shape[1] // known.shape[1])
    with sampling(MeanWeights()):
        f = old.model(known)
    new = torch.stack([weight / again, torch.zeros_like(weight)], -1).to(y).expand(members, -1, -1)
    seen = torch.stack([torch.zeros_like(past.weight), past.weight / more], -1).to(y)
    y = torch.cat([y, new, f.new_zeros(*y.shape[:-1], f.shape[-1])], -1)
    nothing = f.new_zeros(*f.shape[:-1], old.likelihood.num_outputs)
    recalled = torch.cat([nothing, seen.expand(members, -1, -1), f], -1)
    inputs = torch.cat([x.repeat(1, again, 1), known.repeat(1, more, 1)], 1)
    return inputs, torch.cat([y.repeat(1, again, 1), recalled.repeat(1, more, 1)], 1)


# What follows from new weights -----------------------------------------------------------------


@torch.no_grad()
def linearized_again(
    trained: Trained, functions: Functions, rows: Weighted, gate: Gate, seed: int
) -> Linearized:
    """Linearise members at rows that stand for all they have seen.

    *Near* is what the variance is in each of these rows, given the others: with the share ``h`` of
    a row in its own fitted value, ``v = h / (1 - h) / (w R)``. How much larger it is far from them
    stays, and ``α``.
    """
    space, num_functions = parameter_space(trained.model), trained.architecture.num_functions
    f, J = (part.double() for part in jacobian(trained.model, rows.x, space))
    root = curvature_root(trained.likelihood, f).square().sum(-1).sqrt()
    root, J = root[..., :num_functions], J[:, :, :num_functions]
    root = root * rows.weight.sqrt().unsqueeze(-1)
    whitened = root.unsqueeze(-1) * J
    theta, Z = space.vector(trained.model), whitened.flatten(1, 2)
    precision = torch.stack([prior_precision(space, *each) for each in zip(theta, Z, strict=True)])
    covariance = RowCovariance(Z, precision, theta.new_ones(len(theta)))
    draws = covariance.draw(NUM_DRAWS, seeded_generator("displacements", seed))
    if gate.far > gate.near:  # else there is nothing to tell them apart by
        share = covariance.of_outputs(whitened).diagonal(dim1=-2, dim2=-1).clamp(1e-12, 1 - 1e-6)
        variance = (share / (1 - share) / root.square().clamp_min(1e-30)).mean(-1)
        near = float(variance.log().mean())
        gate = gate._replace(near=near, far=near + gate.far - gate.near)
    gate = gate._replace(log_odds=log_odds_of_far(float(rows.weight.sum())))
    return Linearized(functions, tangents(trained, draws.to(rows.x)), gate)


def support(memory: Memory, new: Memory, num_functions: int, seed: int) -> Memory:
    """Return rows at which to linearise: half of them new, if there are as many."""
    size = max(_FEWEST_SUPPORT, _SUPPORT // num_functions)
    new = new.thinned(max(size // 2, size - len(memory.weight)), seed)
    return memory.thinned(size - len(new.weight), seed).joined(new)


def num_steps(most: int, num_rows: int, batch_size: int) -> int:
    """Return how many steps ``num_rows`` new rows take."""
    return min(most, _FEWEST_STEPS + _VISITS * num_rows // batch_size)
