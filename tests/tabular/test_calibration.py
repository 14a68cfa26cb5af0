import copy
import math

import pytest
import torch

from whvi.tabular.calibration import CountUnit, _mean, calibrate, count_mnll
from whvi.tabular.functions import Functions
from whvi.tabular.predictor import Architecture, Predictor
from whvi.tabular.training import Folds, Trained, common_fold
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
    return predictor.predictive(x).sample(1)[0].float().unsqueeze(-1)


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic", "student_t"])
def test_the_factor_undoes_a_wrong_noise(likelihood):
    torch.manual_seed(0)
    x = torch.randn(4000, 3)
    case = trained(likelihood)
    functions = case.draw_functions(1, 0)
    with torch.no_grad():
        y = sample(case, functions, x)
        case.likelihood.noise_parameters()[0].sub_(2 * math.log(3))
    factor, _, mnll = calibrate(case, functions, x, y)
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
    factor = calibrate(case, case.draw_functions(1, 0), x, y).factor
    assert factor == pytest.approx(1 / 4, rel=0.11)
    after = case.draw_functions(1, 0)(x)
    torch.testing.assert_close(after, 4 * factor * before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("likelihood", ["gaussian", "labels", "poisson"])
def test_weights_are_rows_several_times(likelihood):
    torch.manual_seed(0)
    x, y = torch.randn(50, 3), torch.randint(2, (50, 1)).float()
    times = torch.arange(50) % 4
    found = []
    for held_out, weights in (
        (torch.arange(50), times.double()),
        (torch.arange(50).repeat_interleave(times), None),
    ):
        torch.manual_seed(1)
        case = trained(likelihood, num_outputs=1 + (likelihood == "labels"))
        case.model[-1].matrix.posterior.loc.data.normal_()
        case = case._replace(folds=Folds(torch.arange(50), held_out))
        functions = case.draw_functions(4, 0)
        factor, functions, mnll = calibrate(case, functions, x, y, weights)
        found.append((factor, functions.spread, mnll))
        if likelihood == "gaussian":
            unit = CountUnit(0.1, -1.0)
            found[-1] += (count_mnll(case, functions, x, y, unit, weights),)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_members_that_share_rows_are_weighted_together():
    values = torch.tensor([[1.0, 2.0], [10.0, 20.0]]).double()  # of two groups
    weights = torch.tensor([[1.0, 3.0], [1.0, 3.0], [0.5, 0.0], [0.5, 0.0]])  # of four members
    assert _mean(values, 2, weights) == (1 + 6 + 5) / 4.5
    assert _mean(values, 2, torch.tensor([1.0, 3.0])) == (1 + 6 + 10 + 60) / 8
    assert _mean(values, 2, None) == 33 / 4


def test_without_held_out_rows_nothing_changes():
    case = trained("gaussian")._replace(folds=common_fold(5, 0.5, 0))
    found = calibrate(case, case.draw_functions(1, 0), torch.randn(5, 3), torch.randn(5, 1))
    assert found.factor == found.functions.spread == 1
    assert math.isnan(found.mnll)


def uncertain(likelihood):
    """Networks whose draws differ, and the mean of these draws."""
    torch.manual_seed(0)
    case = trained(likelihood)
    case.model[-1].matrix.posterior.loc.data.normal_()
    case.model[-1].matrix.posterior.log_scale.data.fill_(-1.0)
    functions = case.draw_functions(64, 0)
    return case, functions, lambda x: functions(x)[..., :1].mean((0, 1))


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
@pytest.mark.parametrize("spread", [0.1, 0.4, 1.0])
def test_the_spread_is_that_of_the_targets(likelihood, spread):
    case, functions, _ = uncertain(likelihood)
    x = torch.randn(4000, 3)
    with torch.no_grad():
        case.likelihood.noise_parameters()[0].fill_(math.log(0.05**2))
        claimed = Functions(functions.features, functions.layers, spread)
        y = sample(case, claimed, x)
    found = calibrate(case, functions, x, y)
    assert found.functions.spread == pytest.approx(spread, abs=0.16)
    assert found.factor == pytest.approx(1, rel=0.6)  # a spread between two of the grid is noise
    worse = calibrate(case, functions, x, y, spreads=(1.0,))
    assert found.mnll <= worse.mnll + 1e-6
    assert worse.functions.spread == 1


def test_few_rows_do_not_change_the_spread():
    case, functions, mean = uncertain("gaussian")
    x = torch.randn(3, 3)
    with torch.no_grad():
        case.likelihood.noise_parameters()[0].fill_(math.log(0.5**2))
        case = case._replace(folds=Folds(torch.arange(3), torch.arange(3)))
        assert calibrate(case, functions, x, mean(x)).functions.spread >= 0.85
