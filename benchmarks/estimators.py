"""``WHVIRegressor`` with its defaults beside boosted trees with theirs, on rows of numbers.

Every figure is of one fresh process and one thread, run once: seconds of the processor, to which
other programs add little, and the peak of its memory. Data are simulated, with the noise on a
tenth of the scale of the signal.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.memory import peak_memory
from benchmarks.records import Case, Cell
from benchmarks.timing import Effort

TITLE = "Estimators for tables"
_FITS = ((1_000, 8), (40_000, 8), (1_000_000, 20))
_PREDICTED, _PREDICTED_COLUMNS, _TRAINED = 1_000_000, 8, 1_000
_QUICK_FITS, _QUICK_PREDICTED = _FITS[:1], 10_000
_WHVI, _BOOSTING, _CATBOOST = "whvi", "HistGradientBoosting", "CatBoost"
_METHODS = (_WHVI, _BOOSTING, _CATBOOST)
Array = NDArray[np.float64]


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Fits on more and more rows, then predictions."""
    for rows, columns in _QUICK_FITS if quick else _FITS:
        yield from _cells("fit", rows, columns)
    yield from _cells("predict", _QUICK_PREDICTED if quick else _PREDICTED, _PREDICTED_COLUMNS)


def simulate(rows: int, columns: int, seed: int) -> tuple[Array, Array]:
    """Return normal inputs and a smooth function of the first three, with noise of 0.1."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, columns))
    noise = 0.1 * random.normal(size=rows)
    return x, np.sin(x[:, 0]) * x[:, 1] + 0.5 * x[:, 2] ** 2 + noise


def _cells(work: str, rows: int, columns: int) -> Iterator[Cell]:
    """Yield the times of all methods on one task, and their memory."""
    absent = {} if importlib.util.find_spec("catboost") else {_CATBOOST: "not installed"}
    seconds, memory = {}, {}
    for method in _METHODS:
        if method not in absent:
            command = [sys.executable, "-m", "benchmarks.estimators", method, work]
            command += [str(rows), str(columns)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds[method], memory[method] = json.loads(output.splitlines()[-1])
    case: Case = {"work": work, "rows": rows, "columns": columns}
    yield Cell({"quantity": "processor", **case}, seconds, absent)
    yield Cell({"quantity": "peak memory", **case}, memory, absent, "MiB")


def _model(method: str) -> Any:
    if method == _WHVI:
        from whvi.tabular import WHVIRegressor

        return WHVIRegressor(random_state=0)
    if method == _BOOSTING:
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(random_state=0)
    from catboost import CatBoostRegressor

    return CatBoostRegressor(
        random_seed=0, thread_count=1, verbose=False, allow_writing_files=False
    )


def _child(method: str, work: str, rows: int, columns: int) -> tuple[float, float]:
    """Return processor seconds and the peak of memory in MiB; imports are not counted."""
    torch.set_num_threads(1)
    model = _model(method)
    if work == "predict":
        model.fit(*simulate(_TRAINED, columns, 0))
        x, _ = simulate(rows, columns, 1)
        return _timed(lambda: model.predict(x)), peak_memory()
    x, y = simulate(rows, columns, 0)
    return _timed(lambda: model.fit(x, y)), peak_memory()


def _timed(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    print(json.dumps(_child(*sys.argv[1:3], *map(int, sys.argv[3:]))))
