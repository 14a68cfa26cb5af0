from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whvi._checks import (
    check_finite,
    check_last_dim,
    check_positive,
    check_positive_int,
    hadamard_factor,
    is_power_of_two,
    next_hadamard_order,
    next_power_of_two,
    positive_int,
)
from whvi.errors import ConfigError, DataError, ShapeError, WhviError


@pytest.mark.parametrize("bits", [*range(70), 1000])
def test_powers_of_two_by_bits(bits):
    # a float logarithm takes 2**49 + 1 for a power of two
    power = 2**bits
    assert is_power_of_two(power)
    assert next_power_of_two(power) == power
    assert next_power_of_two(power + 1) == 2 * power
    if bits > 1:
        assert not is_power_of_two(power + 1)
        assert not is_power_of_two(power - 1)
        assert next_power_of_two(power - 1) == power


@pytest.mark.parametrize("size", [0, -1, -2, -4, -(2**70)])
def test_no_power_of_two_below_one(size):
    assert not is_power_of_two(size)
    assert next_power_of_two(size) == 1


def test_whole_numbers_of_numpy_are_options_too():
    found = positive_int("width", np.int32(3))
    assert (found, type(found)) == (3, int)
    for wrong in (0, np.int64(0), True, 2.0, "2", None):
        with pytest.raises(ConfigError, match="width must be an integer of at least 1"):
            positive_int("width", wrong)


@given(st.integers(1, 2**200))
def test_next_power_of_two_is_the_least_one(size):
    power = next_power_of_two(size)
    assert is_power_of_two(power)
    assert power >= size > power // 2


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, 2.5, torch.tensor(1)])
def test_positive_int_refuses(value):
    with pytest.raises(ConfigError, match="width must be an integer of at least 1, got"):
        check_positive_int("width", value)


@pytest.mark.parametrize("value", [1, 2, 10**30])
def test_positive_int_accepts(value):
    check_positive_int("width", value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", None])
def test_positive_refuses(value):
    with pytest.raises(ConfigError, match="rate must be a finite number above 0, got"):
        check_positive("rate", value)


@pytest.mark.parametrize("value", [1, 1e-300, 1e300])
def test_positive_accepts(value):
    check_positive("rate", value)


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (4, 0)])
def test_last_dim_refuses(shape):
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., 4\), got"):
        check_last_dim("x", torch.ones(shape), 4)


def test_last_dim_accepts():
    check_last_dim("x", torch.ones(4), 4)
    check_last_dim("x", torch.ones(0, 4), 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_finite_names_the_first_offender(value):
    x = torch.zeros(3, 4)
    x[2, 0] = x[1, 3] = value
    with pytest.raises(DataError, match=rf"y holds 2 .*first: {value} at index \(1, 3\)"):
        check_finite("y", x)


@pytest.mark.parametrize("x", [torch.zeros(0), torch.tensor(1.0), torch.ones(2, dtype=torch.int64)])
def test_finite_accepts(x):
    check_finite("x", x)


def test_finite_names_a_scalar():
    with pytest.raises(DataError, match=r"at index \(\)"):
        check_finite("x", torch.tensor(float("nan")))


def test_errors_are_the_built_in_ones_too():
    assert issubclass(ShapeError, ValueError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(DataError, ValueError)
    assert issubclass(ShapeError, WhviError)


def test_orders_are_those_of_the_list():
    orders = {factor << bits for factor in (1, 12, 20, 28) for bits in range(13)}
    for size in range(-3, 4097):
        order = hadamard_factor(size)
        assert (order > 0) == (size in orders)
        assert order == 0 or is_power_of_two(size // order)
        assert next_hadamard_order(size) == min(n for n in orders if n >= size)
