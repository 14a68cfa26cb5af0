"""The Hartley and cosine transforms of the kernel against dense matrices."""

from __future__ import annotations

import math

import pytest
import torch

from whvi._kernel.hartley import hartley_levels, hartley_takes

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
cosine = pytest.mark.parametrize("is_dct", [False, True], ids=["hartley", "dct"])
pytestmark = pytest.mark.skipif(
    not hartley_takes(16, torch.zeros(16)), reason="the kernel is not active"
)


def dense(size, is_dct):
    """``T``, with angles reduced to one turn before they are rounded."""
    k, n = torch.arange(size).unsqueeze(-1), torch.arange(size)
    if is_dct:
        quarter_turns = (k * (2 * n + 1) % (4 * size)).double() / size
        T = math.sqrt(2 / size) * (math.pi / 2 * quarter_turns).cos()
        T[0] /= math.sqrt(2)
        return T
    angle = 2 * math.pi / size * (k * n % size).double()
    return (angle.cos() + angle.sin()) / math.sqrt(size)


def rows(count, size):
    return torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@dtypes
@cosine
@pytest.mark.parametrize("size", [16, 32, 64, 128, 512, 1024, 2048])
def test_both_directions_are_those_of_the_dense_matrix(instruction_set, size, is_dct, dtype):
    levels, T, x = hartley_levels(size, dtype, is_dct=is_dct), dense(size, is_dct), rows(37, size)
    tolerance = 16 * math.log2(size) * torch.finfo(dtype).eps
    down = levels.down(x.to(dtype))
    up = levels.up(x.to(dtype)[:, levels.order])
    for found, expected in ((down, (x @ T)[:, levels.order]), (up, x @ T.T)):
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(levels.order[levels.place], torch.arange(size))


@cosine
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33])
def test_a_row_does_not_depend_on_the_others(instruction_set, count, is_dct):
    levels, x = hartley_levels(64, torch.float32, is_dct=is_dct), rows(count, 64).float()
    alone = torch.cat([levels.down(row.unsqueeze(0)) for row in x])
    assert torch.equal(levels.down(x), alone)
    x[count // 2, 3] = math.nan
    spoilt = levels.down(x).isnan().any(-1)
    assert spoilt.nonzero().flatten().tolist() == [count // 2]


def test_up_is_in_place_and_down_is_not():
    levels, x = hartley_levels(32, torch.float64, is_dct=False), rows(5, 32)
    before = x.clone()
    down = levels.down(x)
    assert torch.equal(x, before)
    assert levels.up(down).data_ptr() == down.data_ptr()
    torch.testing.assert_close(down, before)


def test_threads_change_nothing(instruction_set):
    levels, x = hartley_levels(1024, torch.float32, is_dct=True), rows(200, 1024).float()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = levels.down(x)
        torch.set_num_threads(2)
        assert torch.equal(levels.down(x), alone)
    finally:
        torch.set_num_threads(before)


def test_what_the_kernel_takes():
    x = torch.zeros(3, 64)
    assert hartley_takes(64, x, x)
    assert not hartley_takes(64, x, x.double())
    assert not hartley_takes(64, x, x.clone().requires_grad_())
    assert not hartley_takes(96, x)
    assert not hartley_takes(8, x)
    assert not hartley_takes(64, x.half())
