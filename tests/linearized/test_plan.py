from __future__ import annotations

import pytest

from whvi.errors import ConfigError
from whvi.linearized.plan import Sizes, make_plan

SMALL = Sizes(1153, 129, 1, 8, 4, 3000)
WIDE = Sizes(6657, 513, 1, 8, 4, 9000)
LETTERS = Sizes(19_482, 1000, 26, 8, 4, 16_000)
BUDGET = 1 << 27


def test_the_default_network_of_a_small_table_is_full():
    plan = make_plan(SMALL, "auto", BUDGET, None)
    assert (plan.form, plan.num_rows) == ("full", None)
    assert plan.num_bytes == 8 * 1153**2 * 4 <= BUDGET
    assert str(plan).startswith("full covariance of 1,153 parameters: 42.5 MB, about ")


def test_a_wide_one_takes_as_many_rows_as_fit():
    plan = make_plan(WIDE, "auto", BUDGET, None)
    assert plan.form == "rows"
    assert plan.num_rows > 64
    assert 0.98 * BUDGET < plan.num_bytes <= BUDGET
    assert "the full covariance takes 1.42e+03 MB" in str(plan)


def test_many_outputs_take_the_last_layer():
    plan = make_plan(LETTERS, "auto", BUDGET, None)
    assert (plan.form, plan.num_parameters) == ("last_layer", 1000)


def test_without_a_last_layer_that_fits_rows_remain():
    plan = make_plan(Sizes(19_482, 19_000, 26, 8, 4, None), "auto", BUDGET, None)
    assert plan.form == "rows"
    assert 1 <= plan.num_rows < 64


@pytest.mark.parametrize("form", ["full", "rows", "last_layer"])
def test_what_is_asked_for_is_taken(form):
    plan = make_plan(WIDE, form, BUDGET, 100)
    assert (plan.form, plan.reason) == (form, "asked for")
    assert plan.num_rows == (100 if form == "rows" else None)


def test_no_more_rows_than_there_are():
    assert make_plan(SMALL, "rows", BUDGET, 10**6).num_rows == 3000


def test_other_forms_are_refused():
    with pytest.raises(ConfigError, match="got 'diagonal'"):
        make_plan(SMALL, "diagonal", BUDGET, None)
