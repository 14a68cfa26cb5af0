"""``whvi fit --cv`` and ``--holdout``: honest rows, the scores of a loop by hand, nothing lost."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import KFold

from tests.cli.small_tables import QUICK, rows, write
from whvi.cli import main
from whvi.cli.validating import Validation, summarize
from whvi.errors import ConfigError, DataError
from whvi.metrics import rmse
from whvi.tabular import WHVIRegressor, load_model
from whvi.tabular.reading import open_table

COLUMNS = ["size", "age", "town", "price", "kind", "day", "who"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    table = rows(60, 0)
    for k, row in enumerate(table):
        row["day"] = f"2020-{k % 20 // 10 + 1:02d}-{k % 10 + 1:02d}"  # three rows a day, mixed
        row["who"] = f"0{k % 7}"
    return write(tmp_path_factory.mktemp("data") / "t.csv", COLUMNS, table)


def fit(data, tmp_path, *words, target="price"):
    """Fit and return the exit code and the path of the model."""
    model = tmp_path / "m.whvi"
    other = "kind" if target == "price" else "price"
    likelihood = ["--likelihood", "gaussian"] if target == "price" else []
    call = ["fit", data, "-t", target, "--drop", other, "-o", str(model), *likelihood, *QUICK]
    return main([*call, *words]), model


OPTIONS = {"max_iter": 30, "n_members": 1, "hidden_layer_sizes": (8,), "random_state": 0}


def test_folds_are_a_loop_by_hand(data, tmp_path, capsys):
    words = ["--drop", "day", "--drop", "who"]
    code, path = fit(data, tmp_path, "--cv", "3", *words)
    assert code == 0
    out = capsys.readouterr().out
    table = pd.read_csv(data)
    x, y = table[["size", "age", "town"]], table["price"]
    found = []
    for train, held_out in KFold(3, shuffle=True, random_state=0).split(x):
        model = WHVIRegressor(**OPTIONS, likelihood="gaussian").fit(x.iloc[train], y.iloc[train])
        mean = torch.as_tensor(model.predict(x.iloc[held_out]))
        found.append(
            rmse(mean, torch.tensor(y.iloc[held_out].tolist(), dtype=torch.float64)).item()
        )
    kept = load_model(path)
    (row,) = [row for row in kept.validation_ if row["score"] == "rmse"]
    assert row["mean"] == pytest.approx(np.mean(found))
    assert row["standard_error"] == pytest.approx(np.std(found, ddof=1) / 3**0.5)
    assert out.startswith("3 folds: mean over folds ± standard error; the model is of all rows\n")
    assert re.search(rf"^RMSE +{np.mean(found):.5g} ± ", out, flags=re.MULTILINE)
    # the model is that of a fit without folds
    whole = WHVIRegressor(**OPTIONS, likelihood="gaussian").fit(x, y)
    np.testing.assert_array_equal(kept.predict(x), whole.predict(x))
    assert whole.validation_ == []


def test_after_a_holdout_the_model_is_the_one_that_was_scored(data, tmp_path, capsys):
    code, path = fit(data, tmp_path, "--holdout", ".25", "--drop", "day", "--drop", "who")
    assert code == 0
    assert "25 % held out: mean over rows ± standard error; the model is of the other rows" in (
        capsys.readouterr().out
    )
    model = load_model(path)
    assert model.training_summary_["num_rows"] == 45
    validation = Validation(share=0.25)
    table = pd.read_csv(data)
    ((_, held_out),) = validation.splits(open_table(data), table["price"].to_numpy(), False, 0)
    part = tmp_path / "part.csv"
    table.iloc[held_out].to_csv(part, index=False)
    assert main(["evaluate", str(path), str(part), "--json", "-q"]) == 0
    scores = json.loads(capsys.readouterr().out)
    found = {row["score"]: row for row in model.validation_}
    for name in ("rmse", "mae", "mnll", "crps", "r2"):
        assert found[name]["mean"] == pytest.approx(scores[name])
    assert found["mnll"]["standard_error"] > 0
    assert found["coverage of 90 % intervals"]["mean"] == pytest.approx(
        scores["intervals"][2]["coverage"]
    )


def test_scores_are_shown_by_info_and_report(data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    words = ["--cv", "3", "--group", "who", "--drop", "day"]
    code, path = fit(data, tmp_path, *words, target="kind")
    assert code == 0
    assert "3 folds, groups of 'who'" in capsys.readouterr().out
    assert main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert re.search("scores on rows not trained on +3 folds, groups of 'who'", out)
    assert re.search(r"^log loss \(nats\) +\d.* ± ", out, flags=re.MULTILINE)
    assert main(["info", str(path), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["training"]["validation"]
    assert {row["score"] for row in stored} >= {"accuracy", "log_loss", "brier"}
    page = tmp_path / "r.html"
    assert main(["report", str(path), data, "-o", str(page), "-q"]) == 0
    assert "scores on rows not trained on" in page.read_text()
    assert "who" not in [column.name for column in load_model(path).schema_.columns]


def test_the_column_of_the_split_is_an_input_if_asked(data, tmp_path):
    words = ["--holdout", ".2", "--time", "day", "--drop", "who"]
    for more, names in (([], ["size", "age", "town"]), (["--learn-split"], [..., "day"])):
        code, path = fit(data, tmp_path, *words, *more)
        assert code == 0
        assert load_model(path).schema_.columns[-1].name == names[-1]
        assert all(row["standard_error"] is None for row in load_model(path).validation_)


# Which rows ------------------------------------------------------------------------------------


def splits(text, y, classes=False, seed=0, **how):
    path_like = open_table(io.BytesIO(text.encode()))
    return Validation(**how).splits(path_like, np.asarray(y), classes, seed)


@pytest.mark.parametrize("how", [{"folds": 4}, {"share": 0.3}])
@pytest.mark.parametrize("kind", ["random", "labels", "group", "time"])
def test_no_row_is_trained_on_and_scored(how, kind):
    generator = np.random.default_rng(0)
    times, groups = generator.integers(0, 30, 90), generator.integers(0, 9, 90)
    labels = np.array(["ab"[k] for k in (generator.random(90) < 0.1).astype(int)], dtype=object)
    text = "t,g\n" + "".join(f"{t},g{g}\n" for t, g in zip(times, groups, strict=True))
    columns = {"group": {"group": "g"}, "time": {"time": "t"}}.get(kind, {})
    found = splits(text, labels, kind == "labels", **how, **columns)
    assert len(found) == how.get("folds", 1)
    scored = np.concatenate([held_out for _, held_out in found])
    assert len(np.unique(scored)) == len(scored)  # every row at most once
    for train, held_out in found:
        assert not set(train) & set(held_out)
        if kind == "time":
            assert times[train].max() < times[held_out].min()
        else:
            assert len(train) + len(held_out) == 90
        if kind == "group":
            assert not set(groups[train]) & set(groups[held_out])
        if kind == "labels":
            share = (labels[held_out] == "b").mean() - (labels == "b").mean()
            assert abs(share) < 0.05  # of every class its share
        if "share" in how:
            assert abs(len(held_out) - 27) < (15 if kind == "group" else 5)
    if "folds" in how and kind != "time":
        assert len(scored) == 90
    again = splits(text, labels, kind == "labels", **how, **columns)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a[1], b[1])


def test_later_rows_are_told_by_dates_too():
    text = "t\n2020-03-01\n2020-01-01\n2020-02-01 10:00\n2020-02-01 09:00\n"
    ((train, held_out),) = splits(text, np.zeros(4), share=0.5, time="t")
    assert (sorted(train), sorted(held_out)) == ([1, 3], [0, 2])


REFUSED = {
    "more folds than rows": ("g\n1\n2\n", {"folds": 3}, "more rows than the 2"),
    "one row": ("g\n1\n", {"share": 0.5}, "has none to hold out"),
    "nothing to train on": ("g\n1\n2\n", {"share": 0.9}, "leaves none"),
    "few groups": ("g\na\na\nb\n", {"folds": 3, "group": "g"}, "holds 2 groups, and .* at least 3"),
    "one group": ("g\na\na\n", {"share": 0.5, "group": "g"}, "holds 1 group, and"),
    "an absent column": ("g\na\na\nb\n", {"share": 0.5, "group": "h"}, "no column 'h'"),
    "groups missing": ("g\na\nNA\nb\n", {"folds": 2, "group": "g"}, "1 missing value .*line 3"),
    "times missing": ("g\n1\n\n3\nNA\n", {"folds": 2, "time": "g"}, "missing"),
    "texts for times": ("g\n1/2/20\n1/3/20\n1/4/20\n", {"share": 0.5, "time": "g"}, "'1/2/20'"),
    "one time": ("g\n1\n1\n1\n1\n", {"folds": 2, "time": "g"}, "1 different times in 4 rows"),
    "one time, held out": (
        "g\n1\n1\n1\n1\n",
        {"share": 0.5, "time": "g"},
        "1 different times in 4 rows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_split(case):
    text, how, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        splits(text, np.zeros(text.count("\n") - 1), **how)


def test_a_class_that_training_would_not_have():
    labels = ["a", "a", "a", "b", "a", "a"]
    with pytest.raises(DataError, match="classes that its training rows do not have: 'b'"):
        splits("x\n" + "1\n" * 6, labels, True, folds=3)
    labels[0] = "b"  # two rows, three folds
    assert len(splits("x\n" + "1\n" * 6, labels, True, folds=3)) == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"folds": 3, "share": 0.2}, "exclude each other"),
        ({"folds": 3, "group": "a", "time": "b"}, "exclude each other"),
        ({"group": "a"}, "--group says which rows .* pass --cv 5"),
        ({"time": "a"}, "--time says"),
        ({"folds": 3, "learn_split": True}, "--learn-split"),
        ({"share": 20.0}, "strictly between 0 and 1, got 20"),
        ({"share": float("nan")}, "strictly between 0 and 1"),
    ],
)
def test_options_that_contradict(how, message):
    with pytest.raises(ConfigError, match=message):
        Validation(**how)


@pytest.mark.parametrize("words", [["--cv", "1"], ["--holdout", "1"], ["--group", "who"]])
def test_wrong_calls_write_nothing(words, data, tmp_path, capsys):
    assert fit(data, tmp_path, *words)[0] == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_scores_that_some_folds_lack_are_left_out():
    found = [({"auroc": value, "accuracy": 0.5}, {}) for value in (0.7, None, 0.9)]
    assert [row["score"] for row in summarize(found, Validation(folds=3))] == ["accuracy"]


# Stopped and resumed ---------------------------------------------------------------------------


def test_folds_go_on_from_their_checkpoints(data, tmp_path, monkeypatch, capsys):
    words = ["--cv", "2", "--checkpoint", str(tmp_path / "c"), "--drop", "day", "--drop", "who"]
    fitted, original = [], WHVIRegressor.fit

    def stopped(self, x, y, **options):
        if len(fitted) == 2:
            raise SystemExit(143)
        fitted.append(len(x))
        return original(self, x, y, **options)

    monkeypatch.setattr(WHVIRegressor, "fit", stopped)
    with pytest.raises(SystemExit):
        fit(data, tmp_path, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["fold-1", "fold-2"]
    monkeypatch.undo()
    assert fit(data, tmp_path, *words)[0] == 0
    resumed = capsys.readouterr().out
    assert fit(data, tmp_path, "--cv", "2", "--drop", "day", "--drop", "who")[0] == 0
    assert capsys.readouterr().out == resumed


def test_sigterm_between_folds_leaves_nothing(data, tmp_path):
    model = str(tmp_path / "m")
    call = ["fit", data, "-t", "price", "--drop", "kind", "--drop", "day", "-o", model, "--cv", "3"]
    few = ["--steps", "2000000", "--members", "1", "--hidden", "8", "--likelihood", "gaussian"]
    with subprocess.Popen(
        [sys.executable, "-m", "whvi", *call, *few], stderr=subprocess.PIPE, text=True
    ) as process:
        assert "fold 1 of 3: 40 rows to train on, 20 to score" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(20) == 143
    assert not list(tmp_path.iterdir())
