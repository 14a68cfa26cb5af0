"""Who decides how weights are drawn: the innermost context, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whvi.elbo import elbo
from whvi.errors import ConfigError
from whvi.layers import MCDropout, MeanFieldLinear, WHVILinear
from whvi.likelihoods import Gaussian
from whvi.sampling import (
    LocalReparameterization,
    MeanWeights,
    WeightDraws,
    current_sampler,
    draw_seed,
    sampling,
)


def test_default_is_one_new_draw_at_every_call() -> None:
    first, second = current_sampler(), current_sampler()
    assert isinstance(first, WeightDraws)
    assert first is not second
    assert first.num_draws is None
    assert first.sample_shape == ()


def test_innermost_context_decides_and_the_outer_one_comes_back() -> None:
    outer, inner = MeanWeights(), LocalReparameterization()
    with sampling(outer) as given:
        assert given is outer
        with sampling(inner):
            assert current_sampler() is inner
        assert current_sampler() is outer
    assert isinstance(current_sampler(), WeightDraws)


def test_context_ends_with_an_error_too() -> None:
    with pytest.raises(KeyError), sampling(MeanWeights()):
        raise KeyError
    assert isinstance(current_sampler(), WeightDraws)


def test_contexts_are_per_thread_and_per_task() -> None:
    seen: list[object] = []
    with sampling(MeanWeights()):
        thread = threading.Thread(target=lambda: seen.append(current_sampler()))
        thread.start()
        thread.join()
    assert isinstance(seen[0], WeightDraws)

    async def task(sampler: MeanWeights | LocalReparameterization) -> bool:
        with sampling(sampler):
            await asyncio.sleep(0)
            return current_sampler() is sampler

    async def both() -> list[bool]:
        return await asyncio.gather(task(MeanWeights()), task(LocalReparameterization()))

    assert asyncio.run(both()) == [True, True]


def test_a_layer_keeps_its_draw_within_one_sampler() -> None:
    sampler, first, second = WeightDraws(3), nn.Identity(), nn.Identity()
    one = sampler.draw_once(first, lambda _: torch.zeros(3))
    assert sampler.draw_once(first, lambda _: torch.ones(3)) is one
    assert torch.equal(sampler.draw_once(second, lambda _: torch.ones(3)), torch.ones(3))
    assert WeightDraws(3).draw_once(first, lambda _: torch.ones(3)) is not one
    assert sampler.sample_shape == (3,)


@pytest.mark.parametrize("num_draws", [0, -1, 1.5, True, "3"])
def test_wrong_numbers_of_draws_are_refused(num_draws: object) -> None:
    with pytest.raises(ConfigError, match="num_draws"):
        WeightDraws(num_draws)


def test_seeds_fill_their_range(generator: torch.Generator) -> None:
    seeds = [draw_seed(generator) for _ in range(2000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = np.array([[seed >> bit & 1 for bit in range(63)] for seed in seeds]).mean(0)
    assert abs(bits - 0.5).max() < 5 * 0.5 / len(seeds) ** 0.5  # five standard errors


@pytest.mark.parametrize("make", [lambda: None, torch.Generator], ids=["default", "generator"])
def test_a_seed_is_what_randint_draws(make: Callable[[], torch.Generator | None]) -> None:
    generator = make()
    source = torch.default_generator if generator is None else generator
    state = source.get_state()
    drawn = [draw_seed(generator) for _ in range(4)]
    source.set_state(state)
    expected = [int(torch.randint(2**63 - 1, (), generator=generator)) for _ in range(4)]
    assert drawn == expected


# --- gradient checkpointing ----------------------------------------------------------------------


class Checkpointed(nn.Module):
    """Blocks, one of them used twice, each recomputed in the backward pass as ``mode`` says."""

    def __init__(self, layer) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(layer(8, 8), nn.Tanh(), MCDropout(0.2), layer(8, 8), nn.Dropout(0.1))
            for _ in range(2)
        ]
        self.blocks = nn.ModuleList([*blocks, blocks[0]])
        self.use_reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.use_reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


CHECKPOINT_SAMPLERS = {
    "none": None,
    "local": LocalReparameterization,
    "local, generator": lambda: LocalReparameterization(_generator()),
    "draws": WeightDraws,
    "draws, generator": lambda: WeightDraws(generator=_generator()),
    "mean": MeanWeights,
}


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("name", CHECKPOINT_SAMPLERS)
@pytest.mark.parametrize(
    "layer",
    [WHVILinear, MeanFieldLinear, partial(WHVILinear, posterior="full")],
    ids=["whvi", "mean_field", "full"],
)
def test_checkpointing_draws_the_same_again(layer, name: str, inside: bool) -> None:
    """With backward inside or outside of the ``sampling`` block, reentrant or not."""
    torch.manual_seed(0)
    net, x = Checkpointed(layer), torch.randn(5, 8, requires_grad=True)
    make, found = CHECKPOINT_SAMPLERS[name], []
    for net.use_reentrant in (None, False, True):
        net.zero_grad()
        x.grad = None
        torch.manual_seed(7)
        with contextlib.nullcontext() if make is None else sampling(make()):
            y = net(x)
            if inside:
                y.square().sum().backward()
        if not inside:
            y.square().sum().backward()
        gradients = [p.grad if p.grad is not None else torch.zeros(()) for p in net.parameters()]
        found.append([y.detach(), x.grad, *gradients])
    for again in found[1:]:
        for one, other in zip(found[0], again, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_checkpointing_twice_through_a_kept_graph() -> None:
    torch.manual_seed(0)
    net, x = Checkpointed(WHVILinear), torch.randn(5, 8, requires_grad=True)
    net.use_reentrant = False
    with sampling(LocalReparameterization()):
        y = net(x).sum()
    one = torch.autograd.grad(y, list(net.parameters()), retain_graph=True)
    other = torch.autograd.grad(y, list(net.parameters()))
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def test_checkpointed_network_in_elbo() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(Checkpointed(WHVILinear), WHVILinear(8, 1)), torch.randn(5, 8)
    likelihood, found = Gaussian(), []
    for net[0].use_reentrant in (None, False):
        torch.manual_seed(7)
        value = elbo(
            net, likelihood, x, x[:, 0], num_data=5, num_draws=2, generator=_generator()
        ).value
        found.append(torch.autograd.grad(value, list(net.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_checkpoints_in_checkpoints_are_right_or_refused() -> None:
    torch.manual_seed(0)
    net = Checkpointed(WHVILinear)
    net.use_reentrant = False
    x = torch.randn(5, 8, requires_grad=True)
    with sampling(LocalReparameterization()):
        y = checkpoint(net, x, use_reentrant=False)
    with pytest.raises(ConfigError, match="checkpointed blocks"):
        y.sum().backward()
