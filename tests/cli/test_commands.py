"""Every verb does its job, and what it says agrees with what the library says."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.cli.small_tables import QUICK, write
from whvi.cli import main
from whvi.cli.commands import TableOptions, model_columns
from whvi.metrics import rmse
from whvi.tabular import WHVIGPRegressor, load_model


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_are_those_of_the_library(files, capsys):
    assert main(["predict", files["house"], files["new"], "--level", "0.8"]) == 0
    out = table(capsys.readouterr().out)
    assert list(out[0]) == ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]
    model = load_model(files["house"])
    predictive = model.predict_dist(frame_of(files))
    lower, upper = predictive.interval(0.8)
    for name, values in [
        *(("mean", predictive.mean), ("std", predictive.std), ("epistemic", predictive.epistemic)),
        *(("aleatoric", predictive.aleatoric), ("lower", lower), ("upper", upper)),
    ]:
        assert [float(row[name]) for row in out] == values.tolist(), name


def test_classes_have_labels_and_probabilities(files, tmp_path):
    output = tmp_path / "out.tsv"
    assert main(["predict", files["label"], files["new"], "-o", str(output)]) == 0
    out = list(csv.DictReader(io.StringIO(output.read_text()), delimiter="\t"))
    assert list(out[0]) == ["label", "confidence", "entropy", "p_cheap", "p_dear"]
    for row in out:
        probs = [float(row["p_cheap"]), float(row["p_dear"])]
        assert sum(probs) == pytest.approx(1)
        assert row["label"] == ["cheap", "dear"][int(np.argmax(probs))]
        assert float(row["confidence"]) == max(probs)


def test_scores_agree_with_the_predictions(files, capsys):
    assert main(["evaluate", files["house"], files["test"], "--json", "-q"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert main(["predict", files["house"], files["test"], "--keep", "price", "-q"]) == 0
    out = table(capsys.readouterr().out)
    y = torch.tensor([float(row["price"]) for row in out], dtype=torch.float64)
    mean = torch.tensor([float(row["mean"]) for row in out], dtype=torch.float64)
    inside = [float(row["lower"]) <= float(row["price"]) <= float(row["upper"]) for row in out]
    assert scores["rmse"] == pytest.approx(rmse(mean, y).item())
    covered = {each["level"]: each["coverage"] for each in scores["intervals"]}
    assert covered[0.9] == pytest.approx(sum(inside) / len(inside))


def test_scores_can_be_read(files, capsys):
    assert main(["evaluate", files["house"], files["test"], "-q"]) == 0
    assert "coverage of 90 % intervals" in capsys.readouterr().out
    assert main(["evaluate", files["label"], files["test"], "-q"]) == 0
    assert "Brier score" in capsys.readouterr().out


def test_reports_are_pages(files, tmp_path):
    pytest.importorskip("matplotlib")
    output = tmp_path / "report.html"
    assert main(["report", files["label"], files["test"], "-o", str(output), "-q"]) == 0
    text = output.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "of 40 test rows" in text
    assert not list(tmp_path.glob(".*"))  # nothing half-written stays


def test_info(files, capsys):
    assert main(["info", files["house"]]) == 0
    out = capsys.readouterr().out
    assert "categorical: A, B" in out
    assert "WHVILinear" in out
    assert main(["info", files["label"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format_version"] >= 1


def test_a_fit_is_a_function_of_its_seed(files, tmp_path):
    models = [tmp_path / name for name in ("a", "b", "c")]
    fit = ["fit", files["train"], "-t", "price", *QUICK, "--likelihood", "gaussian"]
    for model, seed in zip(models, "001", strict=True):
        assert main([*fit, "--drop", "kind", "--seed", seed, "-o", str(model)]) == 0
    a, b, c = (load_model(model).predict(frame_of(files)) for model in models)
    assert (a == b).all()
    assert (a != c).any()


def frame_of(files):
    schema = load_model(files["house"]).schema_
    return model_columns(TableOptions().open(files["new"]), schema, TableOptions())


def test_a_checkpointed_fit_goes_on(files, tmp_path):
    fit = ["fit", files["train"], "-t", "price", *QUICK, "--drop", "kind", "--likelihood=gaussian"]
    folder = ["--checkpoint", str(tmp_path / "checkpoints")]
    for name in ("a", "b"):  # the second goes on from the end of the first
        assert main([*fit, *folder, "-o", str(tmp_path / name)]) == 0
    a, b = (load_model(tmp_path / name).predict(frame_of(files)) for name in ("a", "b"))
    assert (a == b).all()
    assert any((tmp_path / "checkpoints").iterdir())


def test_progress_and_summary_go_to_stderr(files, tmp_path, capsys):
    fit = ["fit", files["train"], "-t", "price", "--drop", "kind", "--likelihood", "gaussian"]
    assert main([*fit, *QUICK[:-1], "-o", str(tmp_path / "m")]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "regression of 'price' by 3 columns, 80 rows: 1 network" in captured.err


def test_whole_numbers_are_classes_if_asked(files, tmp_path, capsys):
    data = tmp_path / "t.csv"
    data.write_text("x,y\n" + "".join(f"{i / 7},{i % 2}\n" for i in range(40)))
    fit = ["fit", str(data), "-t", "y", *QUICK[:-1], "-o", str(tmp_path / "m")]
    assert main([*fit, "--likelihood", "gaussian"]) == 0
    assert "pass --task classification" in capsys.readouterr().err
    assert main([*fit, "--task", "classification"]) == 0
    assert load_model(tmp_path / "m").classes_.tolist() == [0, 1]
    assert main(["evaluate", str(tmp_path / "m"), str(data)]) == 0


def test_rows_far_from_training_are_named_by_their_line(files, tmp_path, capsys):
    table, page = tmp_path / "far.csv", tmp_path / "page.html"
    table.write_text("size,age,town,price\n0,4,A,1\n\n1000,4,A,1\n0,5,A,2\n")
    assert main(["predict", files["house"], str(table), "-o", str(tmp_path / "out.csv")]) == 0
    assert "1 of 3 rows are far from all training rows (first: line 4)" in capsys.readouterr().err
    assert main(["report", files["house"], str(table), "-o", str(page)]) == 0
    assert "(the farthest first): &#39;line 4&#39;." in page.read_text()


def test_identifiers_that_floats_round_are_told(tmp_path, capsys):
    table = [{"id": 2**53 + 2 * k + 1, "price": k / 7} for k in range(30)]
    data = write(tmp_path / "ids.csv", ["id", "price"], table)
    fit = ["fit", data, "-t", "price", *QUICK[:-1], "-o", str(tmp_path / "m")]
    assert main([*fit, "--likelihood", "gaussian"]) == 0
    notes = capsys.readouterr().err
    assert "note: column 'id' holds whole numbers up to 9007199254741052, which are" in notes
    assert load_model(tmp_path / "m").notes_[0] in notes


@pytest.mark.parametrize(("value", "task"), [("3.5", "regression"), ("yes", "classification")])
def test_a_target_without_differences_is_told(tmp_path, capsys, value, task):
    same = [{"size": k, "price": value} for k in range(30)]
    table = write(tmp_path / "same.csv", ["size", "price"], same)
    assert main(["fit", table, "-t", "price", *QUICK[:-1], "-o", str(tmp_path / "m")]) == 0
    notes = capsys.readouterr().err
    assert "the target 'price' is the same in all rows" in notes
    assert "--task" not in notes
    assert f"{task} of 'price'" in notes


def test_the_only_class_is_certain(tmp_path, capsys):
    same = [{"size": k, "age": -k, "kind": "dear"} for k in range(30)]
    data, model = write(tmp_path / "same.csv", [*same[0]], same), str(tmp_path / "m")
    assert main(["fit", data, "-t", "kind", *QUICK, "-o", model]) == 0
    assert main(["predict", model, data]) == 0
    found = table(capsys.readouterr().out)
    assert {tuple(row.values()) for row in found} == {("dear", "1.0", "0.0", "1.0")}
    assert main(["evaluate", model, data, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["accuracy"], scores["log_loss"], scores["mean_confidence"]) == (1, 0, 1)
    assert main(["explain", model, data, "--background", data]) == 0
    found = table(capsys.readouterr().out)
    assert {row["contribution"] for row in found} == {"0.0"}
    assert main(["report", model, data, "-o", str(tmp_path / "r.html")]) == 0


def test_standard_input_and_output(files):
    command = [sys.executable, "-W", "error", "-m", "whvi", "predict", files["house"], "-"]
    with open(files["new"]) as stream:
        result = subprocess.run(command, stdin=stream, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert len(table(result.stdout)) == 10


def test_parquet(files, tmp_path):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    source, output = tmp_path / "new.parquet", tmp_path / "out.parquet"
    pandas.read_csv(files["new"]).to_parquet(source)
    assert main(["predict", files["house"], str(source), "-o", str(output)]) == 0
    assert len(pandas.read_parquet(output)) == 10


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("whvi ")
    assert main([]) == 0
    assert "evaluate" in capsys.readouterr().out
    for verb in ("fit", "predict", "evaluate", "report", "export", "info", "doctor"):
        assert main([verb, "--help"]) == 0
        assert "Usage: whvi" in capsys.readouterr().out


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    assert "self-check" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_reader_that_goes_away_is_no_traceback(files):
    script = "import sys; from whvi.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "predict", files["house"], files["test"], "-q"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait() in (0, 1)


def test_an_interrupt_is_130(files, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("whvi.cli.commands.load_predictor", interrupted)
    assert main(["predict", files["house"], files["new"]]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_gaussian_process_is_no_model_of_the_command(files, tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(20, 2))
    model = WHVIGPRegressor(16, max_iter=2, random_state=0).fit(x, x[:, 0])
    path = str(tmp_path / "gp.whvi")
    model.save(path)
    np.testing.assert_array_equal(load_model(path).predict(x), model.predict(x))
    for call in (["predict", path, files["new"]], ["info", path], ["evaluate", path, files["new"]]):
        assert main(call) == 2
        assert "holds a 'WHVIGPRegressor'" in capsys.readouterr().err
