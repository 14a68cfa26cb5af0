import pytest
import torch

from reproduction.methods.calibration import FACTORS, mnll_by_factor, pool_members, rescaled
from whvi.predictive import Predictive
from whvi.tabular.calibration import best_factor


def test_the_factor_repairs_a_noise_that_is_too_small(generator):
    y = 3.0 * torch.randn(2, 4000, generator=generator).double()
    loc = torch.zeros(2, 1, 4000).double()
    scale = torch.stack([torch.full((1, 4000), 1.0), torch.full((1, 4000), 6.0)]).double()
    curve = mnll_by_factor(Predictive.gaussian(loc, scale, batch_dims=1), y)
    found = FACTORS[best_factor(curve, 4000, FACTORS, is_mixture=False)]
    assert found.tolist() == pytest.approx([3.0, 0.5], rel=0.1)


def test_the_curve_is_the_mnll_of_the_mixture(generator):
    loc, scale = torch.randn(2, 5, 30, generator=generator), torch.rand(2, 5, 30) + 0.1
    y = torch.randn(2, 30, generator=generator).double()
    predictive = Predictive.gaussian(loc, scale, batch_dims=1)
    curve = mnll_by_factor(predictive, y)
    for k in (60, 75, 90):
        factor = FACTORS[k].expand(2)
        scaled = rescaled(predictive, factor, torch.zeros(2), torch.ones(2))
        assert torch.allclose(curve[:, k], -scaled.log_prob(y).mean(-1), rtol=1e-5)


def test_few_rows_are_trusted_less():
    curve = (FACTORS.log() - 1.0).square().unsqueeze(0)  # best at e
    factors = [
        float(FACTORS[best_factor(curve, n, FACTORS, is_mixture=mixture)])
        for n, mixture in ((20, True), (2000, True), (20, False))
    ]
    assert factors == pytest.approx([torch.tensor(0.5).exp().item(), 2.72, 2.72], rel=0.06)


def test_members_are_pooled_side_by_side():
    loc = torch.arange(4.0).reshape(4, 1, 1)
    pooled = pool_members(Predictive.gaussian(loc, torch.ones(4, 1, 1), batch_dims=1), 2)
    assert pooled.mean.tolist() == [[0.5], [2.5]]
    back = rescaled(pooled, torch.tensor([2.0, 1.0]), torch.tensor([10.0, 0.0]), torch.ones(2))
    assert back.mean.tolist() == [[10.5], [2.5]]
    assert back.aleatoric.tolist() == [[2.0], [1.0]]
