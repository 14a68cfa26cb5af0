"""Who decides how weights are drawn: the innermost context, and nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from whvi.errors import ConfigError
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
    one = sampler.draw_once(first, lambda: torch.zeros(3))
    assert sampler.draw_once(first, lambda: torch.ones(3)) is one
    assert torch.equal(sampler.draw_once(second, lambda: torch.ones(3)), torch.ones(3))
    assert WeightDraws(3).draw_once(first, lambda: torch.ones(3)) is not one
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
