"""``whvi compare``: differences are those of the predictions, and verdicts are seldom wrong."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.small_tables import QUICK
from whvi.cli import main
from whvi.cli.comparing import _differences

FEW = ["--steps", "3", *QUICK[2:]]


@pytest.fixture(scope="module")
def rivals(files, tmp_path_factory):
    """Models of fewer steps than ``house`` and ``label``."""
    folder = tmp_path_factory.mktemp("rivals")
    found = {name: str(folder / f"{name}.whvi") for name in ("price", "kind")}
    fit = ["fit", files["train"], *FEW]
    price = ["-t", "price", "--drop", "kind", "--likelihood", "gaussian"]
    assert main([*fit, *price, "-o", found["price"]]) == 0
    assert main([*fit, "-t", "kind", "--drop", "price", "-o", found["kind"]]) == 0
    return found


def predictions(capsys, model, table, target):
    capsys.readouterr()
    assert main(["predict", model, table, "--keep", target, "-q"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def compared(capsys, *words):
    capsys.readouterr()
    assert main(["compare", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_differences_of_numbers_are_paired(files, rivals, capsys):
    models = files["house"], rivals["price"]
    found = compared(capsys, *models, files["test"])
    errors = []
    for model in models:
        rows = predictions(capsys, model, files["test"], "price")
        errors.append(np.array([float(row["mean"]) - float(row["price"]) for row in rows]))
    assert found["best"] == files["house"]  # it was trained ten times as long
    (other,) = found["differences"]
    assert (other["model"], other["minus"]) == (rivals["price"], files["house"])
    d = np.abs(errors[1]) - np.abs(errors[0])
    assert other["scores"]["mae"]["difference"] == pytest.approx(d.mean())
    assert other["scores"]["mae"]["standard_error"] == pytest.approx(d.std(ddof=1) / len(d) ** 0.5)
    assert other["scores"]["mae"]["more_than_chance"]
    rmse = np.sqrt([np.mean(error**2) for error in errors])
    assert other["scores"]["rmse"]["difference"] == pytest.approx(rmse[1] - rmse[0])
    # the jackknife, which agrees to first order
    left = [np.sqrt(np.mean(np.delete(e, k) ** 2)) for e in errors for k in range(len(d))]
    without = np.subtract(*np.reshape(left, (2, -1))[::-1])
    jackknife = math.sqrt((len(d) - 1) * without.var())
    assert other["scores"]["rmse"]["standard_error"] == pytest.approx(jackknife, rel=0.1)
    for model in models:
        capsys.readouterr()
        assert main(["evaluate", model, files["test"], "--json", "-q"]) == 0
        assert found["models"][model] == json.loads(capsys.readouterr().out)


def test_differences_of_labels_are_paired(files, rivals, capsys):
    models = files["label"], rivals["kind"]
    found = compared(capsys, *models, files["test"])
    losses = []
    for model in models:
        rows = predictions(capsys, model, files["test"], "kind")
        losses.append([-math.log(float(row[f"p_{row['kind']}"])) for row in rows])
    k = models.index(found["best"])
    d = np.array(losses[1 - k]) - np.array(losses[k])
    score = found["differences"][0]["scores"]["log_loss"]
    assert score["difference"] == pytest.approx(d.mean())
    assert score["standard_error"] == pytest.approx(d.std(ddof=1) / len(d) ** 0.5)


def test_it_can_be_read(files, rivals, capsys):
    capsys.readouterr()
    assert main(["compare", files["house"], rivals["price"], files["test"]]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "house.whvi is better than price.whvi by MNLL (nats)." in captured.out
    assert "coverage of 90 % intervals" in captured.out


def test_a_model_does_not_differ_from_its_copy(files, tmp_path, capsys):
    copy = tmp_path / "copy.whvi"
    copy.write_bytes(Path(files["house"]).read_bytes())
    assert main(["compare", str(copy), files["house"], files["test"]]) == 0
    assert "may be chance." in capsys.readouterr().out
    one_row = tmp_path / "one.csv"
    one_row.write_text("size,age,town,price\n1,2,A,3\n")
    assert main(["compare", str(copy), files["house"], str(one_row)]) == 0


def test_counts_and_numbers_are_not_compared_by_density(tmp_path, capsys):
    data = tmp_path / "t.csv"
    data.write_text("x,y\n" + "".join(f"{k},{k % 4}\n" for k in range(40)))
    models = [str(tmp_path / name) for name in ("poisson", "gaussian")]
    for model in models:
        fit = ["fit", str(data), "-t", "y", "--likelihood", model.rpartition("/")[2], *FEW]
        assert main([*fit, "-o", model]) == 0
    assert main(["compare", *models, str(data), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "MNLL cannot be compared" in captured.err
    assert found["best_by"] == "crps"
    assert "mnll" not in found["differences"][0]["scores"]


def test_verdicts_are_seldom_wrong():
    """Of three equal models some pair is told apart in at most 5 % of tables."""
    generator = torch.Generator().manual_seed(0)
    wrong, tables = 0, 400
    for _ in range(tables):
        rows = {
            name: {"mnll": torch.randn(30, dtype=torch.float64, generator=generator)}
            for name in "abc"
        }
        best = min(rows, key=lambda name: rows[name]["mnll"].mean())
        found = _differences(rows, best)
        wrong += any(each["scores"]["mnll"]["more_than_chance"] for each in found)
    assert wrong / tables < 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)
    assert wrong > 0  # and can be wrong: the threshold is not out of reach


def test_models_of_other_targets_are_refused(files, rivals, tmp_path, capsys):
    data = tmp_path / "t.csv"
    data.write_text("size,price\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(40)))
    texts = str(tmp_path / "texts.whvi")
    assert main(["fit", str(data), "-t", "price", "-o", texts, *FEW]) == 0
    for other, message in (
        (rivals["kind"], "has the target 'price', .* has the target 'kind': only models of the"),
        (texts, "has a target that is numeric, .* categorical"),
        (files["house"], "is named twice"),
        (files["test"], "model file"),
    ):
        assert main(["compare", files["house"], other, files["test"]]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert re.search(message, error), error
    for words in ([files["house"]], [files["house"], files["test"]]):
        assert main(["compare", *words]) == 2
        assert "two models or more" in (error := capsys.readouterr().err) or "Missing" in error
