from __future__ import annotations

import numpy as np
import pytest

from reproduction.data import latin_hypercube_design, sobol_design, uniform_design
from whvi.errors import ConfigError

DESIGNS = [sobol_design, latin_hypercube_design, uniform_design]


@pytest.mark.parametrize("design", DESIGNS)
class TestEveryDesign:
    @pytest.mark.parametrize("num_points", [1, 2, 10, 1000, 4096])
    def test_shape_and_range(self, design, num_points):
        points = design(num_points, 5, 0)
        assert points.shape == (num_points, 5)
        assert points.dtype == np.float64
        assert (points >= 0).all()
        assert (points < 1).all()

    def test_a_pure_function_of_the_seed(self, design):
        np.testing.assert_array_equal(design(100, 3, 7), design(100, 3, 7))
        assert not np.array_equal(design(100, 3, 7), design(100, 3, 8))

    def test_points_are_distinct(self, design):
        assert len(np.unique(design(2000, 2, 0), axis=0)) == 2000

    @pytest.mark.parametrize("arguments", [(0, 2, 0), (5, 0, 0), (2.5, 2, 0), (5, 2, -1)])
    def test_refusals(self, design, arguments):
        with pytest.raises(ConfigError):
            design(*arguments)


def test_sobol_fills_every_dyadic_slice():
    points = sobol_design(256, 8, 0)
    for column in points.T:
        np.testing.assert_array_equal(np.bincount((column * 256).astype(int)), np.ones(256))


def test_sobol_is_extensible():
    np.testing.assert_array_equal(sobol_design(1000, 4, 3)[:300], sobol_design(300, 4, 3))


def test_latin_hypercube_has_one_point_per_slice():
    points = latin_hypercube_design(101, 4, 0)
    for column in points.T:
        np.testing.assert_array_equal(np.sort((column * 101).astype(int)), np.arange(101))
