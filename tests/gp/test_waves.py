"""Cosines and sines with their derivatives: first, second, forward mode and batched."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from whvi.gp.waves import Waves, cos_sin, wave_slopes


def phases(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_both_halves():
    p = phases(4, 3, 5)
    expected = torch.cat([p.cos(), p.sin()], -1)
    assert torch.equal(cos_sin(p), expected)
    assert torch.equal(cos_sin(p.clone().requires_grad_()), expected)
    assert cos_sin(p[:, :, :0]).shape == (4, 3, 0)


def test_derivatives_of_first_and_second_order():
    p = phases(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(cos_sin, p)
    assert torch.autograd.gradgradcheck(cos_sin, p)


# torch's own forward mode compiles a part of itself with torch.jit.script on first use
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
def test_function_transforms():
    p = phases(4)
    jacobian = torch.cat([torch.diag(-p.sin()), torch.diag(p.cos())])
    torch.testing.assert_close(torch.func.jacrev(cos_sin)(p), jacobian)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(cos_sin(forward_ad.make_dual(p, torch.ones_like(p))))
    torch.testing.assert_close(moved.tangent, jacobian.sum(-1))
    torch.testing.assert_close(torch.func.vmap(cos_sin)(phases(3, 4)), cos_sin(phases(3, 4)))


def test_slopes_are_the_derivative_by_the_phase():
    p, weights = phases(6, 5).requires_grad_(), phases(10)
    (expected,) = torch.autograd.grad((cos_sin(p) @ weights).sum(), p)
    torch.testing.assert_close(wave_slopes(cos_sin(p.detach()), weights), expected)


@pytest.mark.parametrize("learned", [True, False])
def test_known_frequencies_change_nothing(learned):
    waves = Waves(3, 8, learned=learned, dtype=torch.float64)
    waves.restart(torch.Generator().manual_seed(1))
    assert waves.frequencies.requires_grad is learned
    x = phases(5, 3)
    assert torch.equal(waves(x), waves(x, waves.omega))
    torch.testing.assert_close(waves.omega, waves.frequencies / 3**0.5)
    torch.testing.assert_close(waves.scale, torch.tensor(0.5, dtype=torch.float64))
