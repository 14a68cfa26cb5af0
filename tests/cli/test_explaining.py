"""``whvi importance`` and ``whvi explain``: what they print is what the library says."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from tests.cli.small_tables import rows, write
from whvi.cli import main
from whvi.tabular import load_model
from whvi.tabular.explaining import contributions, importances
from whvi.tabular.reading import read_table


@pytest.mark.parametrize("name", ["house", "label"])
def test_importance_is_that_of_the_library(files, capsys, name):
    assert main(["importance", files[name], files["test"], "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    table, model = read_table(files["test"]), load_model(files[name])
    x, y = table[["size", "age", "town"]], table["price" if name == "house" else "kind"]
    assert found == importances(model, x, y).to_dict("records")
    assert main(["importance", files[name], files["test"], "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["column", "nats", "per", "row", "standard", "error"]
    assert [line.split()[0] for line in lines[1:]] == [entry["column"] for entry in found]


def explained(files, name, table, tmp_path, *options):
    output = tmp_path / "why.csv"
    line = ["explain", files[name], table, "--background", files["train"], "-q", "-o", str(output)]
    assert main([*line, *options]) == 0
    return pd.read_csv(output, dtype={"value": str})


def test_contributions_are_those_of_the_library(files, tmp_path):
    found = explained(files, "house", files["new"], tmp_path)
    model = load_model(files["house"])
    new, train = (read_table(files[each])[["size", "age", "town"]] for each in ("new", "train"))
    exact = contributions(model, new, train)
    assert found["line"].unique().tolist() == list(range(2, 12))
    first = found[found["line"] == 2].set_index("column")
    assert first["contribution"].abs().is_monotonic_decreasing
    np.testing.assert_allclose(first["contribution"][["size", "age", "town"]], exact.mean[0])
    np.testing.assert_allclose(first["std"][["size", "age", "town"]], exact.std[0])
    sums = found.groupby("line")["contribution"].sum() + exact.base
    np.testing.assert_allclose(sums, model.predict(new), rtol=1e-9)
    np.testing.assert_allclose(sums, found.groupby("line")["prediction"].first(), rtol=1e-9)


def test_of_a_label_the_probability_is_explained(files, tmp_path):
    found = explained(files, "label", files["new"], tmp_path)
    model = load_model(files["label"])
    new = read_table(files["new"])[["size", "age", "town"]]
    each = found.groupby("line")
    assert each["label"].first().tolist() == model.predict(new).tolist()
    np.testing.assert_allclose(each["prediction"].first(), model.predict_proba(new).max(1))
    total = each["contribution"].sum() + each["base"].first()
    np.testing.assert_allclose(total, model.predict_proba(new).max(1))


def test_a_row_is_explained_alike_whatever_stands_beside_it(files, tmp_path):
    all_rows = rows(10, 2)  # those of ``new``
    alone = write(tmp_path / "one.csv", ["size", "age", "town"], all_rows[4:5])
    found = explained(files, "house", files["new"], tmp_path)
    one = explained(files, "house", alone, tmp_path)
    there = found[found["line"] == 6].reset_index(drop=True)
    pd.testing.assert_frame_equal(one.drop(columns="line"), there.drop(columns="line"))


def test_what_is_odd_in_both_tables_is_told_once(files, capsys):
    call = ["explain", files["house"], files["test"], "--background", files["train"]]
    assert main(call) == 0
    assert capsys.readouterr().err.count("are ignored: 'kind'") == 1


def test_wrong_calls(files, capsys):
    assert main(["explain", files["house"], "-", "--background", "-"]) == 2
    assert "only one of the two" in capsys.readouterr().err
    assert main(["explain", files["house"], files["new"]]) == 2
    assert "--background" in capsys.readouterr().err
    assert main(["importance", files["house"], files["new"]]) == 2
    assert "price" in capsys.readouterr().err
    clobber = ["--background", files["train"], "-o", files["train"]]
    assert main(["explain", files["house"], files["new"], *clobber]) == 2
    assert "would be lost" in capsys.readouterr().err
