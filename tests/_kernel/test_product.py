"""Stacked blocks as one node, against the composition of plain operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.conformance.layer_suite import DTYPE, EPS, normal, seeded
from tests.layers.oracle import hadamard_matrix
from whvi._kernel.layout import BlockPlan
from whvi._kernel.noise import normal_from_seed
from whvi._kernel.product import block_linear, noisy_block_linear
from whvi.sampling import draw_seed

PLANS = [(5, 7), (3, 9), (8, 8), (8, 20), (2, 2), (1, 1)]


def reference(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, bias: Tensor | None, plan: BlockPlan
) -> Tensor:
    """``[W_1 x; …; W_K x][:out] + b`` block by block; ``g`` already has all axes of ``x``."""
    padded = torch.nn.functional.pad(x, (0, plan.block_size - plan.in_features))
    inner = (1,) * (x.dim() - s1.dim())
    s1, g, s2 = (v.unflatten(-1, plan.vector_shape) for v in (s1, g, s2))
    H, blocks = hadamard_matrix(plan.block_size), []
    for k in range(plan.num_blocks):
        first, second = (v[..., k, :].reshape(*v.shape[:-2], *inner, -1) for v in (s1, s2))
        blocks.append(first * ((g[..., k, :] * ((second * padded) @ H)) @ H))
    y = torch.cat(blocks, -1)[..., : plan.out_features]
    return y if bias is None else y + bias.reshape(*bias.shape[:-1], *inner, -1)


def operands(plan: BlockPlan, batch: tuple[int, ...]) -> list[Tensor]:
    shapes = [(*batch, plan.vector_size)] * 2 + [(*batch, plan.out_features)]
    return [normal(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


def assert_equal_with_gradients(actual: Tensor, expected: Tensor, wanted: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=64 * EPS)
    upstream = normal(*actual.shape, seed=9)
    pairs = zip(
        torch.autograd.grad(actual, wanted, upstream),
        torch.autograd.grad(expected, wanted, upstream),
        strict=True,
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=64 * EPS * (1 + other.abs().max()))


@pytest.mark.parametrize("sizes", PLANS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("shared", ["all", "rows", "none"])
def test_given_g(sizes: tuple[int, int], batch: tuple[int, ...], shared: str) -> None:
    plan = BlockPlan.for_shape(*sizes)
    s1, s2, bias = operands(plan, batch)
    x = normal(*batch, 4, 3, sizes[0], seed=5).requires_grad_()
    some = {"all": (), "rows": (4,), "none": (4, 3)}[shared]
    g = normal(*batch, *some, plan.vector_size, seed=6).requires_grad_()
    spread = g.reshape(*batch, *some, *(1,) * (2 - len(some)), plan.vector_size)
    for b in (bias, None):
        wanted = [x, s1, g, s2] + ([] if b is None else [b])
        actual = block_linear(x, s1, g, s2, b, plan)
        assert_equal_with_gradients(actual, reference(x, s1, spread, s2, b, plan), wanted)


@pytest.mark.parametrize("sizes", PLANS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("inner", [(), (4,), (4, 3)])
def test_fresh_g_for_every_row(
    sizes: tuple[int, int], batch: tuple[int, ...], inner: tuple[int, ...]
) -> None:
    """``g = mean + exp(log_scale) ε`` with noise in the order ``(*batch, *inner, K·D)``."""
    plan = BlockPlan.for_shape(*sizes)
    s1, s2, bias = operands(plan, batch)
    x = normal(*batch, *inner, sizes[0], seed=5).requires_grad_()
    mean, log_scale = (normal(*batch, plan.vector_size, seed=s).requires_grad_() for s in (6, 7))
    actual = noisy_block_linear(x, s1, (mean, log_scale), s2, bias, plan, draw_seed(seeded(3)))
    shape = (*batch, *inner, plan.vector_size)
    noise = normal_from_seed(shape, draw_seed(seeded(3)), dtype=DTYPE)
    every = (*batch, *(1,) * len(inner), plan.vector_size)
    g = mean.reshape(every) + log_scale.exp().reshape(every) * noise
    expected = reference(x, s1, g, s2, bias, plan)
    assert_equal_with_gradients(actual, expected, [x, s1, mean, log_scale, s2, bias])


SHARED_VECTORS = [(2, 2), (2, 5), (2, 37), (3, 21), (4, 34), (4, 128), (7, 70), (8, 104)]
WHOLE_VECTORS = [(13, 100), (30, 96), (120, 640), (250, 600), (260, 330)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("sizes", [*SHARED_VECTORS, *WHOLE_VECTORS])
@pytest.mark.parametrize("noisy", [False, True])
def test_blocks_side_by_side(
    instruction_set: str, sizes: tuple[int, int], noisy: bool, dtype: torch.dtype
) -> None:
    """Blocks that share vectors or fill them, with leftover and trimmed ones, against float64.

    The last two blocks are 20 · 16 wide, with padding.
    """
    plan, rows = BlockPlan.for_shape(*sizes), (2, 70)  # more than one chunk of rows
    s1, s2, bias = operands(plan, (2,))
    x = normal(*rows, sizes[0], seed=5).requires_grad_()
    mean, log_scale = (normal(2, plan.vector_size, seed=s).requires_grad_() for s in (6, 7))
    wanted = [x, s1, mean, s2, bias] + ([log_scale] if noisy else [])
    low = {id(t): t.detach().to(dtype).requires_grad_() for t in [*wanted, log_scale]}
    low_x, low_s1, low_mean, low_s2, low_bias = (low[id(t)] for t in (x, s1, mean, s2, bias))
    seed = draw_seed(seeded(3))
    if noisy:
        fresh = (low_mean, low[id(log_scale)])
        actual = noisy_block_linear(low_x, low_s1, fresh, low_s2, low_bias, plan, seed)
        noise = normal_from_seed((*rows, plan.vector_size), seed, dtype=dtype).double()
        g = mean.unsqueeze(1) + log_scale.exp().unsqueeze(1) * noise
    else:
        actual = block_linear(low_x, low_s1, low_mean, low_s2, low_bias, plan)
        g = mean.unsqueeze(1)
    expected = reference(x, s1, g, s2, bias, plan)
    upstream = normal(*expected.shape, seed=9)
    found = torch.autograd.grad(actual, [low[id(t)] for t in wanted], upstream.to(dtype))
    right = torch.autograd.grad(expected, wanted, upstream)
    for one, other in zip((actual, *found), (expected, *right), strict=True):
        error = (one - other).abs().max() / other.abs().max()
        assert error <= 64 * torch.finfo(dtype).eps


def test_sizes_are_found_without_floats() -> None:
    """A logarithm in floats errs near powers of two: 2**49 + 1 already rounds to 2**49."""
    for exponent in range(1, 62):
        power = 1 << exponent
        assert BlockPlan.for_shape(power, 2).block_size == power
        above = 2 * power if power < 256 else power // 4 * 5
        assert BlockPlan.for_shape(power + 1, 2).block_size == above
        if power > 2:
            assert BlockPlan.for_shape(power - 1, 2).block_size == power
        if exponent < 31:
            assert BlockPlan.for_shape(power**2, 1).block_size == power
            assert BlockPlan.for_shape(power**2 + 1, 1).block_size == 2 * power
