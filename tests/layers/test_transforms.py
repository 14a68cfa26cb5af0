"""Every transform joins the conformance suite of layers, and has exact moments."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tests.conformance.layer_suite import Case, LayerSuite, normal
from whvi.layers import WHVIConv2d, WHVILinear
from whvi.posteriors import LowRankGaussian

TRANSFORMS = ["dct", "hartley", "circulant", "butterfly", "butterfly-random"]


class Rotation:
    """A fixed random rotation: an object of one's own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.matrix = torch.linalg.qr(normal(size, size, seed=9)).Q

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix.to(x.dtype).mT

    def transpose(self, x: Tensor) -> Tensor:
        return x @ self.matrix.to(x.dtype)


linear = partial(WHVILinear, 5, 7)


class TestDctWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="dct"), (5,), (7,), is_bitwise=False)


class TestHartleyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="hartley"), (5,), (7,), is_bitwise=False)


class TestCirculantWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="circulant"), (5,), (7,), is_bitwise=False)


class TestButterflyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="butterfly"), (5,), (7,), is_bitwise=False)


class TestRandomButterflyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="butterfly-random"), (5,), (7,), is_bitwise=False)


class TestRotationWHVILinear(LayerSuite):
    case = Case(partial(linear, transform=Rotation), (5,), (7,), is_bitwise=False)


class TestLowRankDctWHVILinear(LayerSuite):
    low_rank = partial(LowRankGaussian, rank=2)
    low = partial(linear, transform="dct", posterior=low_rank)
    case = Case(low, (5,), (7,), is_bitwise=False)


class TestGridDctWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="dct", num_blocks=2), (5,), (7,), is_bitwise=False)


class TestGridButterflyWHVILinear(LayerSuite):
    case = Case(partial(linear, transform="butterfly", num_blocks=2), (5,), (7,), is_bitwise=False)


class TestRandomScalesCirculantWHVILinear(LayerSuite):
    random = partial(linear, transform="circulant", scales="gaussian")
    case = Case(random, (5,), (7,), is_bitwise=False)


class TestRandomScalesButterflyWHVILinear(LayerSuite):
    random = partial(linear, transform="butterfly", scales="gaussian")
    case = Case(random, (5,), (7,), is_bitwise=False)


class TestOneOutputHartleyWHVILinear(LayerSuite):
    one = partial(WHVILinear, 11, 1, transform="hartley")
    case = Case(one, (11,), (1,), is_bitwise=False)


class TestOneInputButterflyWHVILinear(LayerSuite):
    one = partial(WHVILinear, 1, 11, transform="butterfly", posterior="full")
    case = Case(one, (1,), (11,), is_bitwise=False)


class TestCirculantWHVIConv2d(LayerSuite):
    conv = partial(WHVIConv2d, 4, 6, 2, groups=2, transform="circulant")
    case = Case(conv, (4, 3, 2), (6, 2, 1), is_bitwise=False)


class TestButterflyWHVIConv2d(LayerSuite):
    conv = partial(WHVIConv2d, 4, 6, 2, groups=2, transform="butterfly-random")
    case = Case(conv, (4, 3, 2), (6, 2, 1), is_bitwise=False)
