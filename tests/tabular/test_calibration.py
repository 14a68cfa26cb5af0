import copy
import math

import pytest
import torch

from whvi.predictive import Predictive
from whvi.tabular.calibration import (
    FACTORS,
    best_factor,
    calibrate,
    mnll_by_factor,
    pool_members,
    rescaled,
)
from whvi.tabular.predictor import Architecture, Predictor
from whvi.tabular.training import Trained, common_fold
from whvi.training.history import History


def trained(likelihood, num_rows=4000, num_outputs=1):
    architecture = Architecture(
        in_features=3,
        hidden=(8,),
        features="relu",
        members=1,  # targets below follow a single function
        posterior="diagonal",
        likelihood=likelihood,
        num_outputs=num_outputs,
    )
    model, noise = architecture.build()
    return Trained(architecture, model, noise, History(), common_fold(num_rows, 0.9, 0))


def sample(case, functions, x):
    """Draw targets from what the networks and their noise claim."""
    predictor = Predictor(None, None, case.architecture, functions, copy.deepcopy(case.likelihood))
    return predictor.predictive(functions(x)).sample(1)[0].float().unsqueeze(-1)


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic", "student_t"])
def test_the_factor_undoes_a_wrong_noise(likelihood):
    torch.manual_seed(0)
    x = torch.randn(4000, 3)
    case = trained(likelihood)
    functions = case.draw_functions(1, 0)
    with torch.no_grad():
        y = sample(case, functions, x)
        case.likelihood.noise_parameters()[0].sub_(2 * math.log(3))
    factor, mnll = calibrate(case, functions, x, y)
    assert factor == pytest.approx(3, rel=0.11)  # neighbouring factors differ by 10 %
    assert math.isfinite(mnll)


def test_the_factor_undoes_wrong_logits():
    torch.manual_seed(0)
    x = 3 * torch.randn(4000, 3)
    case = trained("labels", num_outputs=3)
    functions = case.draw_functions(1, 0)
    with torch.no_grad():
        y = sample(case, functions, x)
        before = functions(x)
        last = case.model[-1]
        last.matrix.posterior.loc.mul_(4)
        last.matrix.posterior.log_scale.add_(math.log(4))
        last.bias.mul_(4)
    factor, _ = calibrate(case, case.draw_functions(1, 0), x, y)
    assert factor == pytest.approx(1 / 4, rel=0.11)
    after = case.draw_functions(1, 0)(x)
    torch.testing.assert_close(after, 4 * factor * before, rtol=1e-4, atol=1e-5)


def test_without_held_out_rows_nothing_changes():
    case = trained("gaussian")._replace(folds=common_fold(5, 0.5, 0))
    factor, mnll = calibrate(case, case.draw_functions(1, 0), torch.randn(5, 3), torch.randn(5, 1))
    assert factor == 1
    assert math.isnan(mnll)


def test_the_factor_repairs_a_noise_that_is_too_small(generator):
    y = 3.0 * torch.randn(2, 4000, generator=generator).double()
    loc = torch.zeros(2, 1, 4000).double()
    scale = torch.stack([torch.full((1, 4000), 1.0), torch.full((1, 4000), 6.0)]).double()
    curve = mnll_by_factor(Predictive.gaussian(loc, scale, batch_dims=1), y)
    found = FACTORS[best_factor(curve, 4000, is_mixture=False)]
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
        float(FACTORS[best_factor(curve, n, is_mixture=mixture)])
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
