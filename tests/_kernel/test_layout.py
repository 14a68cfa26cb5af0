"""The block plan is integers: check its rules for every shape up to 70 × 70."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whvi._checks import is_power_of_two, next_power_of_two
from whvi._kernel.layout import BlockPlan
from whvi.errors import ConfigError


def fast_sizes(size):
    """Sizes of blocks between half and twice ``size``."""
    powers = [1 << bits for bits in range(size.bit_length() + 2)]
    sizes = [factor * power for power in powers for factor in (1, 12, 20, 28)]
    return [n for n in sizes if size <= 2 * n <= 4 * size and (n % 7 or n >= 3584)]


def check_stacked(plan, in_features, out_features):
    D, K = plan.block_size, plan.num_blocks
    assert not plan.is_column
    if in_features < 256:
        assert next_power_of_two(in_features) == D
    else:
        assert min(n for n in fast_sizes(in_features) if n >= in_features) == D
    assert K * D >= out_features > (K - 1) * D  # as many blocks as needed, the last one trimmed


def check_column(plan, weights):
    D = plan.block_size
    assert plan.is_column
    assert is_power_of_two(D)
    assert plan.num_blocks == 1
    assert weights <= D**2  # vec(W) holds them
    assert D == 1 or weights > (D // 2) ** 2  # and no smaller block would


def check(in_features, out_features):
    plan = BlockPlan.for_shape(in_features, out_features)
    assert (plan.in_features, plan.out_features) == (in_features, out_features)
    assert plan.vector_shape == (plan.num_blocks, plan.block_size)
    assert plan.num_weights == in_features * out_features
    if 1 in (in_features, out_features) and (in_features, out_features) != (1, 1):
        check_column(plan, in_features * out_features)
    else:
        check_stacked(plan, in_features, out_features)


@pytest.mark.parametrize("in_features", range(1, 71))
def test_every_small_shape(in_features):
    for out_features in range(1, 71):
        check(in_features, out_features)


@given(st.integers(1, 2**60), st.integers(1, 2**60))
def test_any_shape(in_features, out_features):
    check(in_features, out_features)
    check(1, out_features)
    check(in_features, 1)


@pytest.mark.parametrize("bits", [24, 26, 30, 49, 52, 60])
def test_shapes_near_powers_of_two_where_float_logarithms_err(bits):
    for size in (2**bits - 1, 2**bits, 2**bits + 1):
        check(size, 3)
        check(size, 1)
        check(1, size)
    assert BlockPlan.for_shape(2**bits + 1, 1).block_size == 2 ** math.ceil((bits + 1) / 2)


def test_examples_of_the_paper():
    assert BlockPlan.for_shape(128, 128) == BlockPlan(128, 128, 128, 1, False)
    assert BlockPlan.for_shape(13, 128) == BlockPlan(13, 128, 16, 8, False)
    assert BlockPlan.for_shape(784, 10) == BlockPlan(784, 10, 1024, 1, False)
    assert BlockPlan.for_shape(1, 1) == BlockPlan(1, 1, 1, 1, False)
    assert BlockPlan.for_shape(1024, 1) == BlockPlan(1024, 1, 32, 1, True)
    assert BlockPlan.for_shape(1, 1025) == BlockPlan(1, 1025, 64, 1, True)


@pytest.mark.parametrize("width", [384, 768, 1536, 3072, 2560, 5120, 3584])
def test_widths_of_transformers_need_no_padding(width):
    assert BlockPlan.for_shape(width, 4 * width) == BlockPlan(width, 4 * width, width, 4, False)


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (-3, 4), (2.0, 4), (4, True), (None, 2)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ConfigError, match="features must be an integer of at least 1"):
        BlockPlan.for_shape(*shape)


def test_a_plan_does_not_change():
    with pytest.raises(AttributeError):
        BlockPlan.for_shape(3, 4).block_size = 8
