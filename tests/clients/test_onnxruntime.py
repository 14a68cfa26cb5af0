"""onnxruntime: estimators in a graph predict what the library predicts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: make clients")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: make clients")

import onnxruntime

from tests.tabular.conftest import mixed_table, quick_classifier, quick_regressor
from tests.tabular.test_export import feeds, odd_table, towns
from whvi.cli import main
from whvi.tabular.predictor import Predictor

LEVELS = (0.001, 0.05, 0.5, 0.95)
UNIT = 700.0  # about the standard deviation of the targets


def targets(num_rows: int = 80) -> np.ndarray:
    _, y = mixed_table(num_rows)
    return 1e4 + 200 * y.to_numpy()


def rows(num_rows: int) -> pd.DataFrame:
    """New rows: near the training rows, and every tenth far from all of them."""
    table = odd_table(num_rows, seed=1)
    table.loc[::10, "size"] = 8.0
    table.loc[::6, "note"] = "never seen"
    return table


def run(path: Any, table: pd.DataFrame) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    description = json.loads(session.get_modelmeta().custom_metadata_map["whvi"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds(description, table)), strict=True))


@torch.no_grad()
def smooth(predictor: Predictor, table: pd.DataFrame) -> np.ndarray:
    """Rows at which no linearised network is at the kink of a ReLU, to float32 rounding.

    Its derivative jumps there, so that the last bit of an activation decides on a prediction.
    """
    far = predictor.linearized
    assert far is not None
    num_members = far.functions.shape[0]
    x = predictor.embedding.of_members(predictor.schema.encode(table), "cpu", num_members).x
    h = x.expand(num_members, *x.shape[-2:]).unsqueeze(1)
    nearest = torch.full((len(table),), torch.inf)
    for k, layer in enumerate(far.layers[:-1]):
        a = layer(far.functions.before(k, h))
        if far.functions.is_sine(k):
            h = np.sqrt(2) * a.sin()
            continue
        nearest, h = torch.minimum(nearest, a.abs().amin((0, 1, 3))), a.relu()
    found = (nearest > 2e-5).numpy()
    assert found.mean() > 0.9
    return found


@pytest.mark.parametrize(
    ("options", "num_targets"),
    [({}, 1), ({"likelihood": "heteroscedastic", "hidden_layer_sizes": (16, 8)}, 2)],
)
def test_regressions(options, num_targets, tmp_path):
    y = np.stack([targets(), 1e4 - targets()], axis=1)[:, :num_targets]
    model = quick_regressor(**options).fit(odd_table(), y.squeeze())
    path = tmp_path / "m.onnx"
    model.to_onnx(path, quantiles=LEVELS)
    for num_rows in (1, 1000):
        table = rows(num_rows)
        found, sure = run(path, table), smooth(model._predictor, table)
        mean, std = model.predict(table, return_std=True)
        expected = {"mean": mean, "std": std, "quantiles": model.predict_quantiles(table, LEVELS)}
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name].shape == values.shape
            assert np.abs(found[name] - values)[sure].max() < 1e-5 * UNIT, name
    assert model.far_share(table).max() > 0.5  # far rows are among them
    assert std.max() < 10 * UNIT


@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_classes(num_classes, tmp_path):
    names = np.array(["low", "high", "middle"])
    labels = names[np.digitize(targets(), [1e4, 1.02e4][: num_classes - 1])]
    model = quick_classifier().fit(odd_table(), labels)
    path = tmp_path / "m.onnx"
    model.to_onnx(path)
    table = rows(1000)
    found, sure = run(path, table), smooth(model._predictor, table)
    probs = model.predict_proba(table)
    assert found["probabilities"].shape == probs.shape
    assert np.abs(found["probabilities"] - probs)[sure].max() < 1e-5
    assert (found["label"] == found["probabilities"].argmax(-1)).all()
    assert (model.classes_[found["label"]] == model.predict(table))[sure].mean() > 0.999


def test_effects_bins_tails_and_holes(tmp_path):
    train, columns = towns(300, 0), ["town", "size", "income", "count"]
    steps = np.sign(np.sin(3 * train["size"].fillna(0))) + train["town"].str.len()
    model = quick_regressor(max_iter=300).fit(train[columns], steps)
    embedding = model._predictor.embedding
    assert len(embedding.column) > 0
    assert embedding.heavy.any()
    model.to_onnx(tmp_path / "m.onnx")
    table = towns(1000, 1)[columns]
    table.loc[::7, "count"] = np.nan  # which was complete
    table.loc[::10, "income"] = 3 * train["income"].abs().max()
    found, sure = run(tmp_path / "m.onnx", table), smooth(model._predictor, table)
    mean, std = model.predict(table, return_std=True)
    expected = {"mean": mean, "std": std, "quantiles": model.predict_quantiles(table)}
    for name, values in expected.items():
        error = np.abs(found[name] - values).reshape(1000, -1) / std[:, None]
        assert error[sure].max() < 5e-6, name
    far = embedding(model._predictor.schema.encode(table), "cpu").stretch
    assert far.max() > 2
    assert far.min() == 1


def test_without_linearised_members(tmp_path):
    table, y = mixed_table()
    model = quick_regressor(linearize=False).fit(table[["size"]], y)
    model.to_onnx(tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", table)
    assert np.abs(found["mean"] - model.predict(table[["size"]])).max() < 1e-5
    assert np.abs(found["quantiles"] - model.predict_quantiles(table[["size"]])).max() < 1e-5


def test_the_command_writes_the_same_file(tmp_path, capsys):
    table, y = mixed_table()
    model = quick_regressor(linearize=False).fit(table[["colour"]], y)
    model.save(tmp_path / "m.whvi")
    output = tmp_path / "m.onnx"
    assert main(["export", str(tmp_path / "m.whvi"), "-o", str(output), "--quantile", "0.5"]) == 0
    found = run(output, table)
    assert (
        np.abs(found["quantiles"][:, 0] - model.predict_quantiles(table[["colour"]], [0.5]).T).max()
        < 1e-5
    )
    assert {path.name for path in tmp_path.iterdir()} == {"m.whvi", "m.onnx"}
    assert b"site-packages" not in output.read_bytes()
    assert main(["export", str(tmp_path / "m.whvi"), "-o", str(output), "--quantile", "2"]) == 2
    assert "strictly between 0 and 1" in capsys.readouterr().err
