"""Each simulator against a second implementation with scalar mathematics and published values."""

from __future__ import annotations

import cmath
from math import log, pi, sin, sqrt

import numpy as np
import pytest
from scipy import special
from sklearn.datasets import make_friedman1

from reproduction.data import SIMULATORS, simulate
from reproduction.data.simulators import sobol_design
from whvi.errors import ConfigError, ShapeError


def borehole(rw, r, Tu, Hu, Tl, Hl, L, Kw):
    # written as a series of resistances instead of one fraction
    ring = log(r / rw) / (2 * pi * Tu)
    leak = log(r / rw) / (2 * pi * Tl)
    pipe = L / (pi * rw**2 * Kw)
    return (Hu - Hl) / (ring + leak + pipe)


def robot_arm(*x):
    end, angle = 0j, 0.0
    for theta, length in zip(x[:4], x[4:], strict=True):
        angle += theta
        end += length * cmath.exp(1j * angle)
    return abs(end)


def piston(M, S, V0, k, P0, Ta, T0):
    A = P0 * S + 19.62 * M - k * V0 / S
    c = P0 * V0 * Ta / T0
    # the larger root of k h^2 + A h - c = 0 is the height of the gas, V = S h
    h = 2 * c / (A + sqrt(A * A + 4 * k * c))
    return 2 * pi / sqrt((k + c / h**2) / M)


def otl_circuit(Rb1, Rb2, Rf, Rc1, Rc2, beta):
    Vb1 = 12 * Rb2 / (Rb1 + Rb2)
    g = beta * (Rc2 + 9)
    total = (Vb1 + 0.74) * g / (g + Rf)
    total += 11.35 * Rf / (g + Rf)
    total += 0.74 * Rf * g / ((g + Rf) * Rc1)
    return total


def friedman(a, b, c, d, e):
    return 10 * sin(pi * a * b) + 20 * (c * c - c + 0.25) + 5 * (2 * d + e)


SECOND = {each.__name__: each for each in (borehole, robot_arm, piston, otl_circuit, friedman)}
NUM_INPUTS = {"borehole": 8, "robot_arm": 8, "piston": 7, "otl_circuit": 6, "friedman": 5}


def test_every_simulator_has_a_second_implementation():
    assert set(SECOND) == set(SIMULATORS)


@pytest.mark.parametrize("name", SIMULATORS)
class TestEverySimulator:
    def test_agrees_with_the_second_implementation(self, name):
        x, y = simulate(name, 256, 0)
        expected = [SECOND[name](*row) for row in x.tolist()]
        # a few dozen roundings
        np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-12)

    def test_inputs_lie_in_their_ranges_and_fill_them(self, name):
        simulator = SIMULATORS[name]
        x, _ = simulate(name, 1024, 0)
        low = np.array([each.low for each in simulator.inputs])
        high = np.array([each.high for each in simulator.inputs])
        assert (low < high).all()
        assert (x >= low).all()
        assert (x <= high).all()
        np.testing.assert_allclose(x.min(0), low, atol=0.002 * (high - low).max(), rtol=0.05)
        np.testing.assert_allclose(x.mean(0), (low + high) / 2, atol=1e-2 * (high - low).max())

    def test_leading_axes(self, name):
        simulator = SIMULATORS[name]
        x, y = simulate(name, 24, 0)
        many = simulator(x.reshape(2, 3, 4, -1))
        assert many.shape == (2, 3, 4)
        np.testing.assert_allclose(many.ravel(), y, rtol=1e-13, atol=1e-14)
        assert simulator(x[0]).shape == ()

    def test_the_arguments_are_not_modified(self, name):
        x, _ = simulate(name, 8, 0)
        copy = x.copy()
        SIMULATORS[name](x)
        np.testing.assert_array_equal(x, copy)

    def test_other_widths_are_refused(self, name):
        width = SIMULATORS[name].num_inputs
        with pytest.raises(ShapeError, match=rf"\(\.\.\., {width}\)"):
            SIMULATORS[name](np.ones((3, width + 1)))

    def test_a_pure_function_of_the_seed(self, name):
        for first, second in zip(simulate(name, 33, 4), simulate(name, 33, 4), strict=True):
            np.testing.assert_array_equal(first, second)
            assert first.dtype == np.float64

    def test_is_documented(self, name):
        simulator = SIMULATORS[name]
        assert simulator.source
        assert simulator.output
        assert simulator.formula.__doc__
        assert NUM_INPUTS[name] == simulator.num_inputs
        assert len({each.name for each in simulator.inputs}) == simulator.num_inputs


# Published values --------------------


@pytest.mark.parametrize(
    ("name", "point", "value", "digits"),
    [
        ("robot_arm", [0, 0, 0, 0, 1, 1, 1, 1], 4.0, 1e-15),
        ("robot_arm", [0, pi, pi, pi, 1, 1, 1, 1], 0.0, 1e-15),
        ("friedman", [0.5, 1, 0.5, 1, 1], 25.0, 1e-13),
    ],
)
def test_published_values(name, point, value, digits):
    assert SIMULATORS[name](point) == pytest.approx(value, abs=digits)


# Mean and variance over the box: in closed form where there is one, else as published.
FRIEDMAN_WAVE = (np.euler_gamma + log(pi) - special.sici(pi)[1]) / pi  # mean of sin(pi x1 x2)
MOMENTS = {
    "friedman": (10 * FRIEDMAN_WAVE + 20 / 12 + 5 + 2.5, None),
    "borehole": (77.65, 45.595**2),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name):
    """2**16 scrambled Sobol' points integrate these smooth functions to about five digits."""
    _, y = simulate(name, 2**16, 0)
    mean, variance = MOMENTS[name]
    assert y.mean() == pytest.approx(mean, rel=1e-4)
    if variance is not None:
        assert y.var() == pytest.approx(variance, rel=1e-3)


def test_friedman_against_scikit_learn():
    x, y = make_friedman1(n_samples=50, n_features=5, noise=0.0, random_state=0)
    np.testing.assert_allclose(SIMULATORS["friedman"](x), y, rtol=1e-13)


# simulate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_points", [1, 10, 1000, 200_000])
def test_sizes(num_points):
    x, y = simulate("borehole", num_points, 0)
    assert x.shape == (num_points, 8)
    assert y.shape == (num_points,)
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bore hole", 10, 0), "choose one of borehole"),
        (("borehole", 0, 0), "num_points"),
        (("borehole", 10, -1), "seed"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        simulate(*arguments)


# The design -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_points", [1, 2, 10, 1000, 4096])
def test_sobol_points_are_distinct_and_in_the_unit_cube(num_points):
    points = sobol_design(num_points, 5, 0)
    assert points.shape == (num_points, 5)
    assert points.dtype == np.float64
    assert (points >= 0).all()
    assert (points < 1).all()
    assert len(np.unique(points, axis=0)) == num_points


def test_sobol_is_a_pure_function_of_the_seed():
    np.testing.assert_array_equal(sobol_design(100, 3, 7), sobol_design(100, 3, 7))
    assert not np.array_equal(sobol_design(100, 3, 7), sobol_design(100, 3, 8))


def test_sobol_fills_every_dyadic_slice():
    for column in sobol_design(256, 8, 0).T:
        np.testing.assert_array_equal(np.bincount((column * 256).astype(int)), np.ones(256))


def test_sobol_is_extensible():
    np.testing.assert_array_equal(sobol_design(1000, 4, 3)[:300], sobol_design(300, 4, 3))
