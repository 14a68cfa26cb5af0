"""The main job on simulated data, beside other models: ``make demo``.

A piston's cycle time is measured in the laboratory or in the field, where the instrument is worse.
The measurements are simulated (formula of Kenett and Zacks, 1998), so the noise is known: 0.01 s in
the laboratory, 0.04 s in the field. A model that knows its own errors finds that out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from torch import Tensor, nn

from reproduction.data import train_validation_split
from reproduction.data.simulators import SIMULATORS
from whvi.cli import main as whvi_command
from whvi.errors import ConfigError, WhviError
from whvi.functions import draw_functions
from whvi.layers import MCDropout
from whvi.likelihoods import Gaussian
from whvi.predictive import Predictive
from whvi.report import score_regression
from whvi.tabular import WHVIRegressor
from whvi.training import FitConfig, fit

TARGET = "cycle_time"
NOISE = {"laboratory": 0.01, "field": 0.04}  # seconds, standard deviation
_NUM_TRAIN, _NUM_TEST = 700, 300
_LEVEL = 0.9
_MEMBERS = 4  # half of the default: a demonstration should be short
Scores = dict[str, dict[str, float]]


def run_demo(folder: Path, *, quick: bool = False) -> Path:
    """Write data, fit, compare, predict, report; returns the folder."""
    start = time.perf_counter()
    torch.set_num_threads(1)  # these networks are small
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from error
    train, test = demo_tables(_NUM_TRAIN // 5 if quick else _NUM_TRAIN, _NUM_TEST)
    train.to_csv(folder / "train.csv", index=False)
    test.to_csv(folder / "test.csv", index=False)
    _say(f"a piston's cycle time: {len(train)} rows to learn from, {len(test)} to be judged by")
    model, judged = str(folder / "model.whvi"), str(folder / "test.csv")
    fitting = ["fit", str(folder / "train.csv"), "--target", TARGET, "--members", str(_MEMBERS)]
    _whvi(*fitting, "-o", model, *(["--steps", "60"] if quick else []))
    fitted = WHVIRegressor.load(model)
    scores = _compare(fitted, train, test, quick=quick)
    print(_table(scores))
    print(_by_place(fitted, test))
    level = ["--level", str(_LEVEL), "--quiet"]
    _whvi(
        "predict", model, judged, "-o", str(folder / "predictions.csv"), "--keep", "where", *level
    )
    _whvi("report", model, judged, "-o", str(folder / "report.html"), *level)
    seconds = time.perf_counter() - start
    results = {"scores": scores, "seconds": round(seconds, 1)}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"Written to {folder}: model.whvi, predictions.csv, report.html (open it in a browser),")
    print(f"train.csv, test.csv and results.json, in {seconds:.0f} s. By hand:")
    print("  whvi", *fitting, "-o model.whvi")
    print(f"  whvi evaluate model.whvi {judged}")
    return folder


def _whvi(*words: str) -> None:
    """Run the command ``whvi``; what is wrong it has said itself."""
    if whvi_command(words):
        raise WhviError(f"whvi {words[0]} did not succeed")


def demo_tables(num_train: int, num_test: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Simulate the measurements; the same every time."""
    piston = SIMULATORS["piston"]
    generator = np.random.default_rng(1998)
    count = num_train + num_test
    x = piston.from_unit_cube(generator.random((count, piston.num_inputs)))
    where = generator.choice(list(NOISE), size=count)
    noise = np.array([NOISE[place] for place in where]) * generator.standard_normal(count)
    frame = pd.DataFrame(x, columns=[each.name for each in piston.inputs])
    frame = frame.assign(where=where, **{TARGET: piston(x) + noise})
    return frame[:num_train], frame[num_train:]


def _compare(
    model: WHVIRegressor, train: pd.DataFrame, test: pd.DataFrame, *, quick: bool
) -> Scores:
    y = torch.tensor(test[TARGET].to_numpy())
    predictives = {f"WHVI ({model.likelihood_})": model.predict_dist(test.drop(columns=TARGET))}
    data = scaled_numbers(train, test)
    for name, predict in RIVALS.items():
        _say(f"{name} …")
        predictives[name] = predict(data, quick=quick)
    return {name: _scores(predictive, y) for name, predictive in predictives.items()}


def _scores(predictive: Predictive, y: Tensor) -> dict[str, float]:
    result: dict[str, Any] = score_regression(predictive, y, levels=[_LEVEL]).as_dict()
    coverage = result["intervals"][0]["coverage"]
    return {"rmse": result["rmse"], "mnll": result["mnll"], "coverage": coverage}


def _table(scores: Scores) -> str:
    width = max(map(len, scores)) + 2
    lines = [f"{'':<{width}}{'RMSE (s)':>10}{'MNLL (nats)':>13}{'90 % covers':>13}"]
    for name, row in scores.items():
        numbers = f"{row['rmse']:>10.4f}{row['mnll']:>13.3f}{100 * row['coverage']:>11.1f} %"
        lines.append(f"{name:<{width}}{numbers}")
    return "\n" + "\n".join(lines) + "\n"


def _by_place(model: WHVIRegressor, test: pd.DataFrame) -> str:
    """Tell the predicted noise of the two instruments beside the true one."""
    predicted = model.predict_dist(test.drop(columns=TARGET)).aleatoric.numpy()
    lines = []
    for place, noise in NOISE.items():
        mean = predicted[test["where"] == place].mean()
        lines.append(f"in the {place:<11}predicted noise {mean:.3f} s, true {noise:.3f} s")
    return "\n".join(lines) + "\n"


def _say(message: str) -> None:
    print(message, file=sys.stderr)


# The other models: each returns predictions with error bars of its own

_WIDTH = 128
_DROPOUT = 0.05
_NUM_DRAWS = 64


class Numbers(NamedTuple):
    """Inputs scaled by the training rows, float32, and the training targets."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor


def scaled_numbers(train: pd.DataFrame, test: pd.DataFrame) -> Numbers:
    """Turn the tables into numbers, the place into 0 and 1."""
    columns = [name for name in train.columns if name not in (TARGET, "where")]

    def inputs(frame: pd.DataFrame) -> np.ndarray:
        numbers = frame[columns].to_numpy(dtype=np.float64)
        return np.column_stack([numbers, frame["where"] == "field"]).astype(np.float64)

    x_train, x_test = inputs(train), inputs(test)
    mean, scale = x_train.mean(0), x_train.std(0)
    y = torch.tensor(train[TARGET].tolist())
    scaled = [torch.from_numpy((x - mean) / scale).float() for x in (x_train, x_test)]
    return Numbers(scaled[0], y, scaled[1])


def linear_model(data: Numbers, *, quick: bool) -> Predictive:
    """Fit least squares; the noise is what its residuals say."""
    x, y = data.x_train.numpy(), data.y_train.numpy()
    model = LinearRegression().fit(x, y)
    residuals = y - model.predict(x)
    noise = np.sqrt(np.square(residuals).sum() / (len(y) - x.shape[1] - 1))
    return _constant_noise(model.predict(data.x_test.numpy()), noise)


def random_forest(data: Numbers, *, quick: bool) -> Predictive:
    """Fit a forest; the noise is the error on rows that a tree has not seen."""
    x, y = data.x_train.numpy(), data.y_train.numpy()
    size = 60 if quick else 300
    model = RandomForestRegressor(size, min_samples_leaf=2, oob_score=True, random_state=0)
    model.fit(x, y)
    noise = np.sqrt(np.square(y - model.oob_prediction_).mean())
    return _constant_noise(model.predict(data.x_test.numpy()), noise)


def _constant_noise(mean: np.ndarray, noise: float) -> Predictive:
    loc = torch.from_numpy(np.asarray(mean, dtype=np.float64)).unsqueeze(0)
    return Predictive.gaussian(loc, torch.full_like(loc, float(noise)))


def _network(data: Numbers, *, dropout: float, quick: bool) -> Predictive:
    """Train a network, stopped early on held-out rows; dropout, if any, stays on in prediction."""
    num_inputs = data.x_train.shape[1]
    with torch.random.fork_rng():
        torch.manual_seed(0)  # torch.nn draws its starting point from the global generator
        layers: list[nn.Module] = []
        for width in (num_inputs, _WIDTH):
            layers += [nn.Linear(width, _WIDTH), nn.ReLU()]
            layers += [MCDropout(dropout)] if dropout else []
        model = nn.Sequential(*layers, nn.Linear(_WIDTH, 1))
    train, held_out = train_validation_split(len(data.y_train), 0.2, seed=0)
    likelihood = Gaussian()
    likelihood.set_target_scaling(data.y_train[train])
    config = FitConfig(
        num_steps=60 if quick else 2500, learning_rate=2e-3, eval_every=50, patience=10
    )
    rows = (data.x_train[train], data.y_train[train])
    validation = (data.x_train[held_out], data.y_train[held_out])
    fit(model, likelihood, rows, config=config, validation=validation)
    if not dropout:
        with torch.no_grad():
            return likelihood.predictive(model(data.x_test).unsqueeze(0))
    generator = torch.Generator().manual_seed(0)
    f = draw_functions(model, data.x_test, num_draws=_NUM_DRAWS, generator=generator)
    return likelihood.predictive(f)


RIVALS: dict[str, Callable[..., Predictive]] = {
    "plain network": partial(_network, dropout=0.0),
    "MC dropout": partial(_network, dropout=_DROPOUT),
    "random forest": random_forest,
    "linear model": linear_model,
}
