"""The fused KL of diagonal Gaussians, against closed forms and numerical derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from whvi._kernel.kl import KLTerm, sum_of_kls

DTYPE = torch.float64


def inputs(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(shape, generator=generator, dtype=DTYPE).requires_grad_(),
        torch.randn(shape, generator=generator, dtype=DTYPE).requires_grad_(),
    )


@pytest.mark.parametrize("batch_shape", [(), (3,), (2, 3)])
def test_values_are_those_of_torch_distributions(batch_shape: tuple[int, ...]) -> None:
    loc, log_scale = inputs((*batch_shape, 7))
    best = (loc.square() + (2 * log_scale).exp()).mean(-1)
    learned = torch.full(batch_shape, 0.4, dtype=DTYPE)
    for given, variance in ((2.0, torch.full_like(best, 2.0)), (None, best), (learned, learned)):
        prior = Normal(torch.zeros_like(loc), variance.sqrt().unsqueeze(-1))
        expected = kl_divergence(Normal(loc, log_scale.exp()), prior).sum(-1)
        found = sum_of_kls([KLTerm(loc, log_scale, given)])
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("variance", [0.3, None], ids=["fixed", "empirical_bayes"])
@pytest.mark.parametrize("shape", [(6,), (2, 6)])
def test_two_terms_in_one_node_pass_gradcheck_and_gradgradcheck(
    variance: float | None, shape: tuple[int, ...]
) -> None:
    def kl(loc: Tensor, log_scale: Tensor) -> Tensor:
        return sum_of_kls([KLTerm(loc, log_scale, variance), KLTerm(log_scale, loc, variance)])

    assert torch.autograd.gradcheck(kl, inputs(shape))
    assert torch.autograd.gradgradcheck(kl, inputs(shape))


@pytest.mark.parametrize("prior_shape", [(2,), ()])
def test_a_learned_variance_passes_gradcheck_and_gradgradcheck(
    prior_shape: tuple[int, ...],
) -> None:
    variance = torch.full(prior_shape, 0.3, dtype=DTYPE, requires_grad=True)

    def kl(loc: Tensor, log_scale: Tensor, variance: Tensor) -> Tensor:
        return sum_of_kls([KLTerm(loc, log_scale, variance)])

    assert torch.autograd.gradcheck(kl, (*inputs((2, 6)), variance))
    assert torch.autograd.gradgradcheck(kl, (*inputs((2, 6)), variance))


def test_the_composition_is_used_under_functorch_and_agrees() -> None:
    loc, log_scale = inputs((3, 5))

    def kl(loc: Tensor, log_scale: Tensor) -> Tensor:
        return sum_of_kls([KLTerm(loc, log_scale), KLTerm(loc, log_scale, 0.5)])

    torch.testing.assert_close(
        torch.vmap(kl)(loc, log_scale), kl(loc, log_scale), rtol=1e-13, atol=0
    )
