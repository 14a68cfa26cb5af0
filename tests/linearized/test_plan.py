from __future__ import annotations

import pytest

from whvi.errors import ConfigError
from whvi.linearized.plan import Sizes, make_plan

SMALL = Sizes(1153, 129, 1, 8, 4, 3000)
WIDE = Sizes(6657, 513, 1, 8, 4, 9000)
HUGE = Sizes(200_000, 1000, 10, 8, 4, 16_000)
BUDGET = 100_000_000


def test_the_default_network_of_a_small_table_is_full():
    plan = make_plan(SMALL, "auto", BUDGET)
    assert (plan.form, plan.rank) == ("full", None)
    assert plan.num_bytes == 8 * 1153**2 * 4 <= BUDGET
    assert str(plan).startswith("full covariance of 1,153 parameters: 42.5 MB, about ")


def test_a_wide_one_takes_a_low_rank():
    plan = make_plan(WIDE, "auto", BUDGET)
    assert (plan.form, plan.rank) == ("low_rank", 234)
    assert plan.num_bytes == 8 * 234 * 6657 * 4 <= BUDGET // 2
    assert make_plan(WIDE, "auto", 2 * BUDGET).rank == 256
    assert "the full one takes 1.42e+03 MB, more than the budget of 100 MB" in str(plan)


def test_a_huge_one_takes_the_last_layer():
    plan = make_plan(HUGE, "auto", BUDGET)
    assert (plan.form, plan.num_parameters, plan.rank) == ("last_layer", 1000, None)


def test_without_a_last_layer_that_fits_a_low_rank_remains():
    plan = make_plan(Sizes(200_000, 190_000, 26, 8, 4, None), "auto", BUDGET)
    assert plan.form == "low_rank"
    assert 1 <= plan.rank < 32
    assert plan.seconds is None


@pytest.mark.parametrize("form", ["full", "low_rank", "last_layer"])
def test_what_is_asked_for_is_taken(form):
    plan = make_plan(WIDE, form, BUDGET)
    assert (plan.form, plan.reason) == (form, "asked for")


def test_other_forms_are_refused():
    with pytest.raises(ConfigError, match="got 'diagonal'"):
        make_plan(SMALL, "diagonal", BUDGET)
