from __future__ import annotations

import re
import sys

import pytest

from tests.training.doubles import gaussian, tiny_config, tiny_data, tiny_net
from whvi.errors import MissingDependencyError
from whvi.training import History, StepRecord, fit
from whvi.training.history import describe, progress_bar


def test_the_bar_goes_to_stderr(capfd):
    fit(tiny_net(), gaussian(), tiny_data(), config=tiny_config(), progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "30" in err


def test_a_record_in_one_line():
    record = StepRecord(5, 0.1, 0.5, [-10.0, -20.0], [2.0, 4.0], {}, [[[-1.0], [-3.0]]], [1.0, 2.0])
    assert describe(record) == "ELBO -16.5  KL 3  log noise -2  validation 1.5"
    assert describe(StepRecord(5, 0.1, 1.0, -10.0, 2.0, {}, [], None)) == "ELBO -12  KL 2"


def test_without_rich_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingDependencyError, match=r"whvi\[progress\]"):
        fit(tiny_net(), gaussian(), tiny_data(), config=tiny_config(), progress=True)


def test_a_history_says_how_many_records_and_whether_it_was_compiled():
    assert repr(History()) == "History(0 records, compiled=False)"
    history = fit(tiny_net(), gaussian(), tiny_data(), config=tiny_config())
    assert repr(history) == "History(6 records up to step 30, compiled=False)"
    assert repr(History(step=[5], compiled=True)) == (
        "History(1 records up to step 5, compiled=True)"
    )


def test_the_time_that_remains_is_seen_in_80_columns(monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    with progress_bar(10_000) as show:
        for step in range(1, 6):
            show(StepRecord(step, 0.1, 1.0, -12345.678, 1234.5, {}, [-1.234], -1234.5))
    assert re.search(r"5/10000 +(-:--:--|\d+:\d\d:\d\d)", capfd.readouterr().err)
