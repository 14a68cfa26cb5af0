"""``whvi demo``: the main job on an embedded data set, beside other models.

A piston's cycle time is measured in the laboratory or in the field, where the instrument is worse.
The measurements are simulated (formula of Kenett and Zacks, 1998), so the noise is known: 0.01 s in
the laboratory, 0.04 s in the field. A model that knows its own errors finds that out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reproduction.data.simulators import SIMULATORS
from reproduction.demo_rivals import RIVALS, Numbers
from whvi.cli.commands import (
    FitOptions,
    TableOptions,
    fit_table,
    open_output,
    predict_table,
)
from whvi.cli.judging import judged_rows, report_table, score
from whvi.errors import ConfigError
from whvi.report import score_regression

if TYPE_CHECKING:
    import pandas as pd

TARGET = "cycle_time"
NOISE = {"laboratory": 0.01, "field": 0.04}  # seconds, standard deviation
_NUM_TRAIN, _NUM_TEST = 700, 300
_LEVEL = 0.9
_MEMBERS = 4  # half of the default: a demonstration should be short


def run_demo(output: str, *, quick: bool = False) -> dict[str, dict[str, float]]:
    """Write data, fit, compare, predict, report; returns the scores of every model."""
    start = time.perf_counter()
    torch.set_num_threads(1)  # these networks are small
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {output!r}: {error.strerror}") from error
    train, test = demo_tables(_NUM_TRAIN // 5 if quick else _NUM_TRAIN, _NUM_TEST)
    names = {"train": train, "test": test}
    for name, frame in names.items():
        with open_output(str(folder / f"{name}.csv")) as stream:
            frame.to_csv(stream, index=False)
    files = {name: str(folder / name) for name in ("train.csv", "test.csv", "model.whvi")}
    _say(f"a piston's cycle time: {len(train)} rows to learn from, {len(test)} to be judged by")
    options = FitOptions(target=TARGET, steps=60 if quick else None, members=_MEMBERS)
    fit_table(files["train.csv"], files["model.whvi"], options, TableOptions())
    scores = _compare(files, quick=quick)
    print(_table(scores))
    print(_by_place(files, test))
    predictions, page = str(folder / "predictions.csv"), str(folder / "report.html")
    plain = TableOptions(quiet=True)
    predict_table(
        files["model.whvi"], files["test.csv"], predictions, plain, level=_LEVEL, keep=("where",)
    )
    report_table(files["model.whvi"], files["test.csv"], page, plain, level=_LEVEL)
    seconds = time.perf_counter() - start
    with open_output(str(folder / "results.json")) as stream:
        stream.write(json.dumps({"scores": scores, "seconds": round(seconds, 1)}, indent=1) + "\n")
    print(f"Written to {output}: model.whvi, predictions.csv, report.html (open it in a browser),")
    print(f"train.csv, test.csv and results.json, in {seconds:.0f} s. By hand:")
    print(f"  whvi fit {files['train.csv']} --target {TARGET} --members {_MEMBERS} -o model.whvi")
    print(f"  whvi evaluate model.whvi {files['test.csv']}")
    return scores


def demo_tables(num_train: int, num_test: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Simulate the measurements; the same every time."""
    import pandas

    piston = SIMULATORS["piston"]
    generator = np.random.default_rng(1998)
    count = num_train + num_test
    x = piston.from_unit_cube(generator.random((count, piston.num_inputs)))
    where = generator.choice(list(NOISE), size=count)
    noise = np.array([NOISE[place] for place in where]) * generator.standard_normal(count)
    frame = pandas.DataFrame(x, columns=[each.name for each in piston.inputs])
    frame = frame.assign(where=where, **{TARGET: piston(x) + noise})
    return frame[:num_train], frame[num_train:]


def _compare(files: dict[str, str], *, quick: bool) -> dict[str, dict[str, float]]:
    from whvi.tabular.modelfile import load_predictor

    options = TableOptions(quiet=True)
    train, test = (options.read(files[name]) for name in ("train.csv", "test.csv"))
    model = load_predictor(files["model.whvi"])
    x, y = judged_rows(model, files["test.csv"], options)
    scores = {f"WHVI ({model.architecture.likelihood})": _chosen(score(model, x, y, _LEVEL))}
    data = _numbers(train, test)
    for name, predict in RIVALS.items():
        _say(f"{name} …")
        predictive = predict(data, quick=quick)
        result = score_regression(predictive, torch.from_numpy(y), levels=[_LEVEL])
        scores[name] = _chosen(result.as_dict())
    return scores


def _numbers(train: pd.DataFrame, test: pd.DataFrame) -> Numbers:
    columns = [name for name in train.columns if name not in (TARGET, "where")]

    def inputs(frame: pd.DataFrame) -> np.ndarray:
        numbers = frame[columns].to_numpy(dtype=np.float64)
        return np.column_stack([numbers, frame["where"] == "field"]).astype(np.float64)

    x_train, x_test = inputs(train), inputs(test)
    mean, scale = x_train.mean(0), x_train.std(0)
    y = torch.tensor(train[TARGET].tolist())
    scaled = [torch.from_numpy((x - mean) / scale).float() for x in (x_train, x_test)]
    return Numbers(scaled[0], y, scaled[1])


def _chosen(scores: dict[str, Any]) -> dict[str, float]:
    covered = next(each for each in scores["intervals"] if each["level"] == _LEVEL)
    return {"rmse": scores["rmse"], "mnll": scores["mnll"], "coverage": covered["coverage"]}


def _table(scores: dict[str, dict[str, float]]) -> str:
    width = max(map(len, scores)) + 2
    lines = [f"{'':<{width}}{'RMSE (s)':>10}{'MNLL (nats)':>13}{'90 % covers':>13}"]
    for name, row in scores.items():
        numbers = f"{row['rmse']:>10.4f}{row['mnll']:>13.3f}{100 * row['coverage']:>11.1f} %"
        lines.append(f"{name:<{width}}{numbers}")
    return "\n" + "\n".join(lines) + "\n"


def _by_place(files: dict[str, str], test: pd.DataFrame) -> str:
    """Tell the predicted noise of the two instruments beside the true one."""
    from whvi.tabular.modelfile import load_predictor

    model = load_predictor(files["model.whvi"])
    x = test[[column.name for column in model.schema.columns]]
    predicted = model.predict(x).aleatoric.numpy()
    lines = []
    for place, noise in NOISE.items():
        mean = predicted[test["where"] == place].mean()
        lines.append(f"in the {place:<11}predicted noise {mean:.3f} s, true {noise:.3f} s")
    return "\n".join(lines) + "\n"


def _say(message: str) -> None:
    print(message, file=sys.stderr)
