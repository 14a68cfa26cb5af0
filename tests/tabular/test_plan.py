import numpy as np
import pytest

from whvi.errors import ConfigError
from whvi.tabular.training import plan_for


@pytest.mark.parametrize("num_rows", [1, 50, 2999, 3000, 100_000])
def test_every_size_has_a_plan(num_rows):
    plan = plan_for(num_rows)
    assert plan.fit_config(0).num_steps == plan.steps
    assert plan.rotate == (num_rows < 3000)


def test_what_the_user_says_is_kept():
    plan = plan_for(100, hidden=7, members=3, max_iter=11, validation_fraction=0.2, beta=1)
    assert plan.fit_config(0).beta == 1
    assert (plan.hidden, plan.members, plan.steps) == ((7,), 3, 11)
    assert plan.validation_fraction == 0.2
    assert plan_for(100, hidden=np.array([7, 8])).hidden == (7, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": ()},
        {"hidden": (0,)},
        {"hidden": "128"},
        {"hidden": 1.5},
        {"hidden": (8.5,)},
        {"hidden": (8, None)},
        {"members": 0},
        {"max_iter": 0},
        {"validation_fraction": 1.0},
        {"validation_fraction": -0.1},
        {"beta": 0},
        {"beta": float("nan")},
    ],
)
def test_nonsense_is_refused(options):
    with pytest.raises(ConfigError):
        plan_for(100, **options)
