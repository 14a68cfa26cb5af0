r"""What held-out rows decide: noise or logits, spread of the functions, inputs and likelihood.

Networks fit the rows they are trained on too closely, so the noise they learn is too small and
their logits are too large; and where noise is small, draws of their functions spread more than
their mean errs. A factor ``τ`` on noise or logits, and with noise the spread ``ω ≤ 1`` of the
functions about their mean, minimise

.. math:: \mathrm{MNLL}(\tau, \omega) + \frac{20}{N} (\log^2 \tau + \log^2 \omega)

over a grid, where ``N`` counts the held-out rows and the second term says that 20 rows speak for
``τ = ω = 1``: a few held-out rows may mislead.

Inputs with or without bins, and several likelihoods, are candidates: :func:`choose`.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from whvi.layers import MeanFieldLinear
from whvi.likelihoods import Bernoulli, Categorical, Likelihood
from whvi.tabular.functions import Functions, towards_mean
from whvi.tabular.inputs import Embedding
from whvi.tabular.predictor import Architecture
from whvi.tabular.training import Plan, Session, Trained, train_ensemble

PSEUDO_ROWS = 20

_FACTORS = torch.logspace(-2, 1, 73, dtype=torch.float64)
"""The factors tried: neighbours differ by 10 %, which costs less than 0.003 nats."""

_SPREADS = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
_WORTH_A_SPREAD = 0.02  # nats per row: between the data, less spread is less honest
_MOST_ROWS = 4096
_LEAST_MASS = 1e-12  # below, differences of distribution functions are rounding errors


def best_factor(
    mnll: Tensor,
    num_rows: float,
    factors: Tensor,
    *,
    is_mixture: bool = True,
    pseudo_rows: float = PSEUDO_ROWS,
) -> Tensor:
    """Return the index into ``factors`` of the best one, shape ``(...,)``.

    Args:
        mnll: For each of ``factors``, shape ``(..., K)``, averaged over ``num_rows`` rows.
        num_rows: How many held-out rows stand behind it, or the sum of their weights.
        factors: ``(K,)``.
        is_mixture: Whether the method gave a noise of its own, which then counts as much as
            20 held-out rows; a lone mean (trees) has none.
        pseudo_rows: As how many, if not 20.
    """
    weight = pseudo_rows / num_rows if is_mixture else 0.0
    return (mnll + weight * factors.log().square()).argmin(-1)


class Calibration(NamedTuple):
    """What held-out rows say about an ensemble.

    Attributes:
        factor: Of its noise or logits.
        functions: Its draws, with the spread that suits these rows.
        mnll: Mean negative log-likelihood of these rows with both, in nats per row and in units of
            the targets; NaN if there are no such rows.
    """

    factor: float
    functions: Functions
    mnll: float


@torch.no_grad()
def calibrate(
    trained: Trained,
    functions: Functions,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    *,
    spreads: Sequence[float] = _SPREADS,
    pseudo_rows: float = PSEUDO_ROWS,
) -> Calibration:
    """Fit factor and spread on the rows that ``trained`` left out; build the factor into it.

    Args:
        trained: Its noise, or its last layer, is changed in place.
        functions: Draws of its networks as they are before.
        x, y: All rows.
        weights: How often each of them counts, ``(N,)``.
        spreads: To choose from, from the largest down; logits and rates keep the first.
        pseudo_rows: How many held-out rows speak for the networks as they are.
    """
    held_out = trained.folds.held_out
    draws = partial(Functions, functions.features, functions.layers)
    if held_out is None:
        return Calibration(1.0, draws(spreads[0]), math.nan)
    held_out = held_out[..., :_MOST_ROWS]
    likelihood = trained.likelihood
    f, targets = draws()(x[held_out]), y[held_out]
    noise = likelihood.noise_parameters()
    pooled = trained.folds.sharing or trained.architecture.members
    score_of = partial(
        _mnll, likelihood, y=targets, pooled=pooled, weights=_taken(weights, held_out)
    )
    if not noise and not isinstance(likelihood, Bernoulli | Categorical):
        return Calibration(1.0, draws(), score_of(f))
    num_rows = held_out.numel() if weights is None else float(weights[held_out].sum())
    kept, spread = (noise[0].clone() if noise else None), spreads[0]

    def mnll(k: int, spread: float) -> float:
        if kept is None:
            return score_of(f * float(_FACTORS[k]))
        noise[0].copy_(kept + 2 * float(_FACTORS[k].log()))
        return score_of(towards_mean(f, spread, pooled))

    def penalised(k: int, spread: float) -> float:
        doubt = float(_FACTORS[k].log()) ** 2 + math.log(spread / spreads[0]) ** 2
        return mnll(k, spread) + pseudo_rows / num_rows * doubt

    curve = torch.tensor([penalised(k, spread) for k in range(len(_FACTORS))])
    found = [(float(curve.min()), int(curve.argmin()), spread)]
    for smaller in spreads[1:] if noise else ():
        k, value = _descend(partial(penalised, spread=smaller), found[-1][1])
        if value >= found[-1][0]:
            break
        found.append((value, k, smaller))
    worth_it = found[0][0] - found[-1][0] >= _WORTH_A_SPREAD
    _, best, spread = found[-1] if worth_it else found[0]
    score, factor = mnll(best, spread), float(_FACTORS[best])  # leaves the noise at its best
    if kept is None:
        _scale_last_layer(trained.model, factor)
    return Calibration(factor, draws(spread), score)


def _descend(objective: Callable[[int], float], start: int) -> tuple[int, float]:
    """Walk along the factors from ``start`` to a minimum of ``objective``."""
    values = {start: objective(start)}
    for step in (1, -1):
        while 0 <= start + step < len(_FACTORS):
            values[start + step] = objective(start + step)
            if values[start + step] >= values[start]:
                break
            start += step
    return start, values[start]


def _mnll(
    likelihood: Likelihood, f: Tensor, y: Tensor, pooled: int, weights: Tensor | None
) -> float:
    """Score every ``pooled`` members that left out the same rows as one mixture."""
    log_prob = likelihood.log_prob(f, y).double().unflatten(0, (-1, pooled)).flatten(1, 2)
    return math.log(log_prob.shape[-2]) - _mean(log_prob.logsumexp(-2), pooled, weights)


def _taken(weights: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if weights is None else weights[rows]


def _mean(values: Tensor, pooled: int, weights: Tensor | None) -> float:
    """Average ``values (groups, V)``; weights are ``(V,)``, or ``(R, V)`` equal within a group."""
    if weights is None:
        return float(values.mean())
    per_group = (weights if weights.dim() == 1 else weights[::pooled]).expand_as(values)
    return float((per_group * values).sum() / per_group.sum())


def _scale_last_layer(model: nn.Sequential, factor: float) -> None:
    """Multiply the network's outputs by ``factor``: weights, their scales, and the bias."""
    last = cast(MeanFieldLinear, model[-1])
    posterior = last.matrix.posterior
    posterior.loc.mul_(factor)
    posterior.log_scale.add_(math.log(factor))
    if last.bias is not None:
        last.bias.mul_(factor)


# Counts are scored by their probability, so that densities and probabilities can be compared


class CountUnit(NamedTuple):
    """Half a count, and no count, in standard units of the targets."""

    half: float
    zero: float


@torch.no_grad()
def count_mnll(
    trained: Trained,
    functions: Functions,
    x: Tensor,
    y: Tensor,
    unit: CountUnit,
    weights: Tensor | None = None,
) -> float:
    """Score held-out counts; a density gives them what it has from ``y - ½`` to ``y + ½``."""
    held_out = trained.folds.held_out
    if held_out is None:
        return math.nan
    held_out = held_out[..., :_MOST_ROWS]
    pooled = trained.folds.sharing or trained.architecture.members
    f, targets = functions(x[held_out], pooled), y[held_out].squeeze(-1)
    weights = _taken(weights, held_out)
    if trained.architecture.likelihood == "poisson":
        return _mnll(trained.likelihood, f, y[held_out], pooled, weights)
    predictive = copy.deepcopy(trained.likelihood).double().predictive(f.double())
    t = targets.double().expand(len(f), -1)
    below = predictive.cdf(t - unit.half).where(t > unit.zero + unit.half, torch.zeros_like(t))
    mass = (predictive.cdf(t + unit.half) - below).unflatten(0, (-1, pooled)).mean(1)
    return -_mean(mass.clamp_min(_LEAST_MASS).log(), pooled, weights)


# Candidates ------------------------------------------------------------------------------------

_ASKED_FOR = ("student_t", "poisson")
_GO_ON = ("heteroscedastic", "student_t")  # whose functions are those of the noise before
_LEAST_GAIN = {"gaussian": 0.05, "heteroscedastic": 0.05, "student_t": 0.01, "poisson": 0.01}
"""Nats per held-out row by which a later candidate must win: bins and a second head have a cost."""
_ROUGH_GAIN = 0.02  # likewise, of networks for rough functions


class Candidate(NamedTuple):
    """A trained and calibrated ensemble."""

    mnll: float  # of held-out rows
    embedding: Embedding
    plan: Plan
    trained: Trained
    functions: Functions
    noise_factor: float
    x: Tensor  # inputs of all rows


@dataclass
class Trials:
    """What all candidates share, and a list of how they did.

    Attributes:
        embeddings: The inputs to choose from: without bins, then with them.
        encoded: Columns of all rows, ``(N, w)``.
        targets: By likelihood, ``(N, outputs)``; the key ``""`` is for all others.
        count_unit: If targets are counts.
        num_outputs, posterior: Of the networks.
        num_draws: Weight draws of a prediction.
        plan, session, seed: Of their training.
        weights: How often each row counts, ``(N,)``; ``None``: once.
        done: One entry for each run.
    """

    embeddings: tuple[Embedding, ...]
    encoded: Any
    targets: dict[str, Tensor]
    count_unit: CountUnit | None
    num_outputs: int
    posterior: str
    num_draws: int
    plan: Plan
    session: Session
    seed: int
    weights: Tensor | None = None
    done: list[dict[str, Any]] = field(default_factory=list)

    def train(
        self,
        embedding: Embedding,
        likelihood: str,
        plan: Plan,
        *,
        short: bool = False,
        start: Trained | None = None,
    ) -> Candidate:
        """Train one candidate, shortly or in full, or from ``start`` on with other noise."""
        begun, binned = time.perf_counter(), len(embedding.column) > 0
        full, plan = plan, plan.short() if short else plan
        plan = plan if start is None else plan.going_on()
        y = self.targets.get(likelihood, self.targets[""])
        x = embedding(self.encoded, y.device).x
        architecture = Architecture(
            in_features=embedding.num_inputs,
            hidden=plan.hidden,
            features=plan.features,
            members=plan.members,
            posterior=self.posterior,
            likelihood=likelihood,
            num_outputs=self.num_outputs,
        )
        rough = plan.features == "laplace"
        name = likelihood + "-bins" * binned + "-rough" * rough + "-trial" * short
        session = Session(self.session.checkpoint) if short else self.session
        trained = train_ensemble(
            architecture, x, y, plan,
            seed=self.seed, session=session.within(name), weights=self.weights, start=start,
        )  # fmt: skip
        functions = trained.draw_functions(self.num_draws, self.seed)
        factor, functions, mnll = calibrate(trained, functions, x, y, self.weights)
        if self.count_unit is not None:
            mnll = count_mnll(trained, functions, x, y, self.count_unit, self.weights)
        if likelihood == "labels":  # whose last layer was scaled
            functions = trained.draw_functions(self.num_draws, self.seed)
        self.done.append(
            {
                "likelihood": likelihood,
                "bins": binned,
                "features": plan.features,
                "steps": trained.history.step[-1],
                "validation_mnll": mnll if math.isfinite(mnll) else None,
                "seconds": time.perf_counter() - begun,
            }
        )
        return Candidate(mnll, embedding, full, trained, functions, factor, x)


def choose(trials: Trials, likelihoods: Sequence[str]) -> Candidate:
    """Return the candidate that held-out rows speak for.

    Networks with bins, and on many rows those for rough functions, are trained in full after the
    plain ones if a short run under the first likelihood speaks for them: it does not miss that they
    help, but often takes to them where functions are smooth, which takes longer to learn. Then come
    the noise that depends on the inputs, and noise that targets ask for if a short run speaks for
    it; both go on from the best networks so far.
    """
    first, plan = likelihoods[0], trials.plan
    plain, score = trials.embeddings[0], math.nan
    others: list[tuple[Embedding, Plan]] = []
    if plan.validation_fraction:
        others += [(each, plan.with_bins()) for each in trials.embeddings[1:]]
        rough = plan.for_rough_functions() if first != "labels" else None
        others += [(plain, rough)] if rough is not None else []
    if others:
        score = trials.train(plain, first, plan, short=True).mnll
        tried = [(trials.train(each, first, p, short=True).mnll, each, p) for each, p in others]
        others = [(each, p) for mnll, each, p in tried if mnll < score]
        score = min(score, *(mnll for mnll, _, _ in tried))
    best = trials.train(plain, first, plan)
    for embedding, its_plan in others:
        found = trials.train(embedding, first, its_plan)
        best = _better(best, found, _gain_of_inputs(first, its_plan))
    for likelihood in likelihoods[1:]:
        if likelihood in _ASKED_FOR:
            if math.isnan(score):
                score = trials.train(best.embedding, first, best.plan, short=True).mnll
            if not trials.train(best.embedding, likelihood, best.plan, short=True).mnll < score:
                continue
        start = best.trained if likelihood in _GO_ON else None
        found = trials.train(best.embedding, likelihood, best.plan, start=start)
        best = _better(best, found, _LEAST_GAIN[likelihood])
    return best


def _gain_of_inputs(likelihood: str, plan: Plan) -> float:
    return _ROUGH_GAIN if plan.features == "laplace" else _LEAST_GAIN.get(likelihood, 0.0)


def _better(best: Candidate, other: Candidate, least_gain: float) -> Candidate:
    return other if other.mnll < best.mnll - least_gain else best
