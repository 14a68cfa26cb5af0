"""Every layer of the library joins the conformance suite here, one line each."""

from __future__ import annotations

from functools import partial

from tests.conformance.layer_suite import Case, LayerSuite
from whvi.layers import (
    MCDropout,
    MeanFieldConv1d,
    MeanFieldConv2d,
    MeanFieldConv3d,
    MeanFieldLinear,
    WHVIConv1d,
    WHVIConv2d,
    WHVIConv3d,
    WHVILinear,
)
from whvi.posteriors import LowRankGaussian
from whvi.priors import FixedPrior


class TestWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 5, 7), (5,), (7,))


class TestStackedWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 3, 9, bias=False, prior="learned"), (3,), (9,))


class TestRandomBiasWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 5, 7, bias_posterior="diagonal"), (5,), (7,))


class TestLowRankWHVILinear(LayerSuite):
    low_rank = partial(LowRankGaussian, rank=2)
    case = Case(partial(WHVILinear, 5, 7, posterior=low_rank), (5,), (7,))


class TestFullWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 5, 7, posterior="full"), (5,), (7,))


class TestFlowWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 5, 7, posterior="flow"), (5,), (7,), has_kl=False)


class TestPointWHVILinear(LayerSuite):
    point = partial(WHVILinear, 5, 7, posterior="point", prior=FixedPrior(0.5))
    case = Case(point, (5,), (7,), is_random=False, has_kl=False)


class TestGridWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 5, 7, num_blocks=2), (5,), (7,))


class TestLowRankGridWHVILinear(LayerSuite):
    low_rank = partial(LowRankGaussian, rank=2)
    case = Case(partial(WHVILinear, 6, 3, num_blocks=3, posterior=low_rank), (6,), (3,))


class TestOneOutputWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 11, 1), (11,), (1,))


class TestOneInputWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 1, 11, posterior="full"), (1,), (11,))


class TestRandomScalesWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 5, 11, scales="gaussian"), (5,), (11,))


class TestRandomScalesOneOutputWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 11, 1, scales="gaussian"), (11,), (1,))


class TestRandomScalesOneInputWHVILinear(LayerSuite):
    case = Case(partial(WHVILinear, 1, 11, scales="gaussian", posterior="full"), (1,), (11,))


class TestMeanFieldLinear(LayerSuite):
    case = Case(partial(MeanFieldLinear, 5, 7), (5,), (7,), is_bitwise=False)


class TestFewOutputsMeanFieldLinear(LayerSuite):
    case = Case(partial(MeanFieldLinear, 5, 4, prior="standard_normal"), (5,), (4,))


class TestOneOutputMeanFieldLinear(LayerSuite):
    case = Case(partial(MeanFieldLinear, 130, 1, bias_posterior="full"), (130,), (1,))


class TestWHVIConv1d(LayerSuite):
    case = Case(partial(WHVIConv1d, 4, 6, 3, padding=1, groups=2), (4, 6), (6, 6), is_bitwise=False)


class TestWHVIConv2d(LayerSuite):
    case = Case(partial(WHVIConv2d, 2, 3, (2, 3), stride=2), (2, 4, 5), (3, 2, 2), is_bitwise=False)


class TestWHVIConv3d(LayerSuite):
    case = Case(
        partial(WHVIConv3d, 2, 3, 2, posterior="full"), (2, 3, 2, 3), (3, 2, 1, 2), is_bitwise=False
    )


class TestRandomBiasWHVIConv2d(LayerSuite):
    grouped = partial(WHVIConv2d, groups=2, bias_posterior="low_rank")
    case = Case(partial(grouped, 4, 6, 2), (4, 3, 2), (6, 2, 1))


class TestRandomScalesWHVIConv2d(LayerSuite):
    grouped = partial(WHVIConv2d, groups=2, scales="gaussian", bias_posterior="diagonal")
    case = Case(partial(grouped, 4, 6, 2), (4, 3, 2), (6, 2, 1))


class TestMeanFieldConv1d(LayerSuite):
    case = Case(partial(MeanFieldConv1d, 4, 10, 3, groups=2), (4, 6), (10, 4), is_bitwise=False)


class TestMeanFieldConv2d(LayerSuite):
    case = Case(
        partial(MeanFieldConv2d, 2, 3, (2, 3), stride=2), (2, 4, 5), (3, 2, 2), is_bitwise=False
    )


class TestMeanFieldConv3d(LayerSuite):
    case = Case(
        partial(MeanFieldConv3d, 2, 3, 2, bias=False), (2, 3, 2, 3), (3, 2, 1, 2), is_bitwise=False
    )


class TestMCDropout(LayerSuite):
    case = Case(partial(MCDropout, 0.3), (40,), (40,), any_width=True)
