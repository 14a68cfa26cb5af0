"""``whvi.linearize``: from a trained model and its rows to a posterior over all its parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi.errors import ConfigError
from whvi.functions import batch_shape_of
from whvi.likelihoods import Gaussian, Likelihood
from whvi.likelihoods.base import check_likelihood
from whvi.linearized.covariance import RootCovariance, RowCovariance
from whvi.linearized.evidence import Evidence, Hyperparameters, maximise, precision_matrix
from whvi.linearized.parameters import ParameterSpace, parameter_space
from whvi.linearized.plan import Plan, Sizes, make_plan
from whvi.linearized.posterior import LinearizedPosterior, rows_per_block
from whvi.linearized.rows import Data, checked, chosen, count_all, pairs_of
from whvi.linearized.statistics import Statistics, stream, stream_low_rank
from whvi.linearized.triangular import cholesky, inverse_of_triangle

MAX_BYTES = 100_000_000
"""Memory that the automatic choice of the form allows for the covariance, all replicas together."""

Precision = float | Mapping[str, float | Tensor]


@torch.no_grad()
def linearize(
    model: nn.Module,
    likelihood: Likelihood,
    data: Data,
    *,
    prior_precision: Precision | None = None,
    noise: str = "evidence",
    mean: str = "mode",
    form: str = "auto",
    max_bytes: int = MAX_BYTES,
    num_rows: int | None = None,
    block_rows: int | None = None,
    generator: torch.Generator | None = None,
) -> LinearizedPosterior:
    r"""Make a Gaussian posterior over all parameters of a trained model, at its mean weights.

    The model is replaced by its tangent at ``θ*``, the likelihood by its curvature there:
    ``Σ⁻¹ = Σ_n JᵀRJ + diag(λ)``, one ``λ_k`` per parameter tensor (``docs/linearize.md``).

    Args:
        model: Any module; its random layers take part by the means of their posteriors.
        likelihood: Of the model's outputs.
        data: ``(x, y)``, or an iterable of such pairs that is read once. Rows are shared by the
            replicas, ``(N, ...)``, or each has its own, ``(*batch_shape, N, ...)``; a tuple or
            mapping of tensors is passed on as ``model(*x)`` or ``model(**x)``.
        prior_precision: ``λ``: a number, or one for every tensor by name; ``None``: by evidence.
        noise: ``"evidence"``: constant Gaussian noise is found together with ``λ``; ``"keep"``:
            that of the likelihood. Other likelihoods keep theirs.
        mean: ``"mode"``: the model's function stays the mean, as if it were a mode. ``"linear"``:
            it moves to the mean of the linear model, whose evidence decides everything.
            ``"step"``: the precisions of ``"mode"``, then mean and noise of the linear model.
        form: ``"full"``, ``"low_rank"``, ``"last_layer"``, or ``"auto"`` by ``max_bytes``; see
            :mod:`whvi.linearized.plan`.
        max_bytes: Memory for the covariance.
        num_rows: Draw so many rows, each of which counts ``N / num_rows`` times; ``None``: all.
        block_rows: Rows whose Jacobians are held at a time; ``None``: some tens of megabytes.
        generator: Draws these rows.
    """
    _check_choice("noise", noise, ("evidence", "keep"))
    _check_choice("mean", mean, ("mode", "step", "linear"))
    if block_rows is not None:
        check_positive_int("block_rows", block_rows)
    batch_shape, pairs, weight = batch_shape_of(model), pairs_of(data), 1.0
    if num_rows is not None:
        pairs, weight = chosen(pairs, batch_shape, num_rows, generator)
    num_data = count_all(pairs, batch_shape)
    plan = plan_of(model, likelihood, num_data=num_data, form=form, max_bytes=max_bytes)
    space = parameter_space(model, last_layer=plan.form == "last_layer")
    block_rows = block_rows or rows_per_block(space, likelihood.num_features, plan.rank or 1)
    rows = checked(pairs, likelihood, batch_shape)
    if plan.rank is None:
        statistics = stream(model, likelihood, space, rows, block_rows=block_rows)
    else:
        statistics = stream_low_rank(
            model, likelihood, space, rows, block_rows=block_rows, rank=plan.rank
        )
    statistics.scale(weight)
    found = _search(
        statistics, space, space.vector(model),
        precision=_given(prior_precision, space),
        fit_noise=noise == "evidence" and isinstance(likelihood, Gaussian),
        mean=mean,
    )  # fmt: skip
    stacked = {name: _stack(found, name, space) for name in _STACKED}
    make = _root_covariance if plan.rank is None else _row_covariance
    covariance = make(statistics, space, found, next(model.parameters()).dtype)
    return LinearizedPosterior(
        model, likelihood, space, covariance, **stacked, form=plan.form, description=str(plan)
    )


def plan_of(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    num_data: int | None = None,
    form: str = "auto",
    max_bytes: int = MAX_BYTES,
) -> Plan:
    """Say which form :func:`linearize` would take for ``num_data`` rows, and what it costs."""
    check_positive_int("max_bytes", max_bytes)
    check_likelihood(likelihood)
    space = parameter_space(model)
    sizes = Sizes(
        num_parameters=space.num_parameters,
        num_last=parameter_space(model, last_layer=True).num_parameters,
        num_outputs=likelihood.num_features,
        num_replicas=math.prod(space.batch_shape),
        itemsize=next(model.parameters()).element_size(),
        num_data=num_data,
    )
    return make_plan(sizes, form, max_bytes)


def _search(
    statistics: Statistics,
    space: ParameterSpace,
    theta: Tensor,
    *,
    precision: Tensor | None,
    fit_noise: bool,
    mean: str,
) -> list[Hyperparameters]:
    """Maximise the evidence of every replica, one after the other."""
    found = []
    for index in itertools.product(*map(range, space.batch_shape)):
        linear = mean == "linear"
        evidence = Evidence(statistics.replica(index), theta[index], space, linear=linear)
        given = None if precision is None else precision[index]
        best = maximise(evidence, precision=given, fit_noise=fit_noise)
        if mean == "step":
            evidence = evidence.of_linear_model()
            best = maximise(evidence, precision=best.precision, fit_noise=fit_noise)
        found.append(best)
    return found


_STACKED = ("precision", "noise", "shift", "log_evidence")


def _stack(found: list[Hyperparameters], name: str, space: ParameterSpace) -> Tensor:
    stacked = torch.stack([getattr(each, name) for each in found])
    return stacked.reshape((*space.batch_shape, *stacked.shape[1:]))


def _root_covariance(
    statistics: Statistics, space: ParameterSpace, found: list[Hyperparameters], dtype: torch.dtype
) -> RootCovariance:
    """Return the covariance of all parameters of every replica."""
    P = space.num_parameters
    roots = torch.empty(len(found), P, P, dtype=dtype, device=statistics.gradient.device)
    for r, index in enumerate(itertools.product(*map(range, space.batch_shape))):
        root = found[r].root
        if root is None:  # the evidence worked on rows
            gram = statistics.replica(index).full_gram()
            spread = space.spread(found[r].precision)
            root = inverse_of_triangle(cholesky(precision_matrix(gram, spread, found[r].noise)))
        roots[r] = root
    return RootCovariance(roots.view(*space.batch_shape, P, P))


def _row_covariance(
    statistics: Statistics, space: ParameterSpace, found: list[Hyperparameters], dtype: torch.dtype
) -> RowCovariance:
    """Return the covariance by rank and diagonal."""
    assert statistics.rows is not None
    assert statistics.diagonal is not None
    noise, precision = (_stack(found, name, space) for name in ("noise", "precision"))
    base = space.spread(precision) + statistics.diagonal / noise.unsqueeze(-1)
    return RowCovariance(statistics.rows.to(dtype), base, noise)


# ---- what came in --------------------------------------------------------------------------------


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def _given(precision: Precision | None, space: ParameterSpace) -> Tensor | None:
    """Spread a given ``λ`` over replicas and tensors: ``(*batch_shape, K)``."""
    if precision is None:
        return None
    if not isinstance(precision, Mapping):
        precision = dict.fromkeys(space.names, precision)
    if set(precision) != set(space.names):
        raise ConfigError(
            f"prior_precision needs one value for each of {', '.join(space.names)}; "
            f"got {', '.join(precision)}"
        )
    columns = [_column(name, precision[name], space.batch_shape) for name in space.names]
    given = torch.stack(columns, -1)
    if not bool(((given > 0) & given.isfinite()).all()):
        raise ConfigError(f"prior_precision must be finite and above 0, got {precision!r}")
    return given


def _column(name: str, precision: float | Tensor, batch_shape: tuple[int, ...]) -> Tensor:
    """Return the precision of one tensor in every replica."""
    try:
        return torch.as_tensor(precision, dtype=torch.float64).expand(batch_shape)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"prior_precision of {name} must be a number, or a tensor of shape {batch_shape} with "
            f"one for every replica, got {precision!r}; a mapping by name gives each tensor its own"
        ) from error
