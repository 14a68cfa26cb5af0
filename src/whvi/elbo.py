r"""The evidence lower bound, in one place.

.. math::
    \mathrm{ELBO} = \frac{N}{B} \sum_{i \in \text{batch}}
        \mathbb{E}_{q}\left[\log p(y_i \mid f(x_i))\right] - \beta \sum_{\text{layers}} \mathrm{KL}

The factor ``N / B`` appears here and nowhere else; the KL is a sum over all weights and is never
averaged, never divided by layers, rows or batches. ``beta = 1`` is the ELBO; any other value is a
tempered objective, not a bound on the evidence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whvi._checks import check_module, check_not_negative, check_positive_int, check_tensor
from whvi._kernel.backend import HALF_TYPES, differentiable_gradients
from whvi.errors import ConfigError, DataError
from whvi.functions import (
    Inputs,
    batch_shape_of,
    check_rows,
    count_rows,
    local_function_values,
    row_axis,
    with_draws,
)
from whvi.layers.compiled import compiled_now
from whvi.layers.protocol import kl
from whvi.likelihoods import Likelihood
from whvi.likelihoods.base import check_likelihood
from whvi.sampling import LocalReparameterization, draw_seed, sampling


class Elbo(NamedTuple):
    """The two terms of the objective in nats, each of shape ``batch_shape``."""

    expected_log_lik: Tensor  # over the whole data set
    kl: Tensor  # summed over all layers, never averaged
    beta: float = 1.0  # weight of the KL; 1 is the ELBO

    @property
    def value(self) -> Tensor:
        """``expected_log_lik − beta · kl``: what training maximises."""
        return torch.sub(self.expected_log_lik, self.kl, alpha=self.beta)


def elbo(
    model: nn.Module,
    likelihood: Likelihood,
    x: Inputs,
    y: Tensor,
    *,
    num_data: int,
    num_draws: int = 1,
    beta: float = 1.0,
    generator: torch.Generator | None = None,
) -> Elbo:
    r"""Estimate the ELBO of the whole data set from one batch, unbiasedly.

    ``expected_log_lik = (num_data / B) Σ_batch mean_S log p(y | f_s(x))``, with weights drawn
    afresh for each row (local reparameterization).

    Args:
        model: Module whose Bayesian layers share one ``batch_shape``. A model wrapped in
            ``DistributedDataParallel`` works as well.
        likelihood: Gives ``log_prob(f, y)``.
        x: Batch ``(B, ...)`` shared by the replicas, or ``(*batch_shape, B, ...)``; a tuple or
            mapping of tensors is passed on as ``model(*x)`` or ``model(**x)``.
        y: Targets ``(B,)``, ``(B, out)``, ``(*batch_shape, B)`` or ``(*batch_shape, B, out)``.
        num_data: ``N``, rows of the whole training set (per replica): no fewer than the batch has.
        num_draws: ``S``, draws per row.
        beta: Weight of the KL in :attr:`Elbo.value`.
        generator: Source of randomness; ``None`` is torch's default generator.

    Returns:
        Both terms, each of shape ``batch_shape``.
    """
    check_positive_int("num_data", num_data)
    check_positive_int("num_draws", num_draws)
    check_not_negative("beta", beta)
    check_module("model", model)
    check_likelihood(likelihood)
    check_tensor("y", y)
    compiled = None
    if isinstance(x, Tensor) and not (x.requires_grad or y.requires_grad):
        compiled = compiled_now(model)
    batch_shape = batch_shape_of(model) if compiled is None else compiled.batch_shape
    check_rows(x, batch_shape)
    _check_counts(count_rows(x, batch_shape), num_data)
    if compiled is not None and isinstance(x, Tensor) and x.dim() == row_axis(x, batch_shape) + 2:
        rows = with_draws(x, batch_shape, num_draws)
        given = (model, compiled, likelihood, rows, y, num_data, draw_seed(generator))
        trained = (*compiled.parameters, *likelihood.parameters())
        log_lik, kl_value = _apply_node(*given, *trained)
        return Elbo(log_lik, kl_value, beta)
    f = local_function_values(model, x, batch_shape, num_draws, generator)
    with sampling(LocalReparameterization(generator)):  # for KLs that are estimated
        kl_value = kl(model)
    return elbo_of_values(likelihood, f, y, kl_value, num_data=num_data, beta=beta)


def _check_counts(num_rows: int, num_data: int) -> None:
    if num_rows == 0:
        raise DataError("the batch has no rows, so it says nothing of the data; leave it out")
    if num_data < num_rows:
        raise ConfigError(
            f"num_data counts the rows of the whole training set, at least the {num_rows} of this "
            f"batch, got {num_data}; pass len(dataset), not a number of batches"
        )


def elbo_of_values(
    likelihood: Likelihood,
    f: Tensor,
    y: Tensor,
    kl_value: Tensor,
    *,
    num_data: int | Tensor,
    beta: float,
) -> Elbo:
    """Put the two terms together from function values ``f (*batch_shape, S, B, features)``.

    Those of half precision, as under autocast, are taken to float32 first.
    """
    if f.dtype in HALF_TYPES:
        f = f.float()
    log_prob = likelihood.log_prob(f, y)
    # The mean over draws and rows times N is (N / B) Σ_batch mean_S.
    return Elbo(num_data * log_prob.mean((-2, -1)), kl_value, beta)


class _CompiledElbo(torch.autograd.Function):
    """Both terms of a compiled model as one node: at small sizes nodes are what a step costs."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        model, compiled, likelihood, rows, y, num_data, seed, *trained = given
        f, kl_value, kept = compiled.forward(rows, LocalReparameterization.starting_at(seed))
        log_prob, vjp = likelihood.vjp(f, y)
        ctx.save_for_backward(rows, y, *trained)
        ctx.given = model, compiled, likelihood, num_data, seed, kept, vjp, log_prob.shape
        return num_data * log_prob.mean((-2, -1)), kl_value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        rows, y, *trained = ctx.saved_tensors  # refuses what was changed since
        model, compiled, likelihood, num_data, seed, kept, vjp, shape = ctx.given
        if torch.is_grad_enabled():
            with sampling(LocalReparameterization.starting_at(seed)):
                f, kl_value = model(rows), kl(model)
            terms = elbo_of_values(likelihood, f, y, kl_value, num_data=num_data, beta=1.0)
            value = (terms.expected_log_lik * grads[0]).sum() + (terms.kl * grads[1]).sum()
            return (None,) * 7 + tuple(differentiable_gradients(value, trained, value.new_ones(())))
        slope = grads[0].mul(num_data).div(shape[-2] * shape[-1])
        to_f, *to_likelihood = vjp(slope[..., None, None].expand(shape))
        return (None,) * 7 + (*compiled.backward(kept, to_f, grads[1]), *to_likelihood)


# Function.apply without its search for torch.func wrappers: compiled_now has excluded them
_apply_node: Any = super(torch.autograd.Function, _CompiledElbo).apply
