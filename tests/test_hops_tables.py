"""How many files of the library a table passes on its way to a model file and to a prediction."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("sklearn")

import whvi
from tests.cli.small_tables import rows, write
from whvi.cli import main
from whvi.tabular.extrapolation import linearized
from whvi.tabular.networks import reset_network
from whvi.tabular.predictor import Architecture

ROOT = Path(whvi.__file__).parent
COLUMNS = ["size", "age", "town", "price"]


def files_entered(call: Callable[[], int], apart: set[CodeType] = frozenset()) -> list[str]:
    """Files of the library in which a function is entered, but for the inside of ``apart``."""
    entered: dict[str, None] = {}
    depth = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        if frame.f_code in apart:
            depth += (event == "call") - (event == "return")
        path = Path(frame.f_code.co_filename)
        if event == "call" and not depth and path.is_relative_to(ROOT):
            entered[str(path.relative_to(ROOT))] = None

    sys.setprofile(profile)
    try:
        assert call() == 0
    finally:
        sys.setprofile(None)
    return list(entered)


def code(function: Any) -> CodeType:
    return inspect.unwrap(function).__code__


@pytest.fixture
def fit(tmp_path: Path) -> Callable[[int], int]:
    """``whvi fit`` of so many rows, with its defaults; modules are imported before."""

    def call(num_rows: int) -> int:
        table = write(tmp_path / "train.csv", COLUMNS, rows(num_rows, 0))
        return main(
            ["fit", table, "-t", "price", "-o", str(tmp_path / "model"), "--steps", "5", "-q"]
        )

    assert call(41) == 0
    return call


def test_fit(fit: Callable[[int], int]) -> None:
    """To ``whvi.fit`` and on to the file, without its inside, the layers' making, linearising."""
    work = {code(whvi.fit), code(linearized)}
    making = {code(Architecture.build), code(reset_network)}
    assert len(files := files_entered(lambda: fit(67), work | making)) <= 22, files
    assert len(files := files_entered(lambda: fit(73), work)) <= 31, files


def test_predict(fit: Callable[[int], int], tmp_path: Path) -> None:
    """All of it, from the command to the numbers in a file."""
    for num_rows in (5, 130):  # the second time with another number of rows, planned anew
        table = write(tmp_path / "new.csv", COLUMNS, rows(num_rows, 1))
        call = ["predict", str(tmp_path / "model"), table, "-o", str(tmp_path / "out.csv"), "-q"]
        files = files_entered(lambda call=call: main(call))
    assert len(files) <= 15, files
