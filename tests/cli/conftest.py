"""Small models, made by the commands themselves."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("typer")
pytest.importorskip("sklearn")

from tests.cli.small_tables import QUICK, rows, write
from whvi.cli import main


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tables ``train``, ``test`` and ``new`` (without targets), models ``house`` and ``label``."""
    folder = tmp_path_factory.mktemp("tables")
    columns = ["size", "age", "town", "price", "kind"]
    found = {
        "train": write(folder / "train.csv", columns, rows(80, 0)),
        "test": write(folder / "test.csv", columns, rows(40, 1)),
        "new": write(folder / "new.csv", columns[:3], rows(10, 2)),
        "house": str(folder / "house.whvi"),
        "label": str(folder / "label.whvi"),
    }
    fit = ["fit", found["train"], *QUICK]
    regression = ["--target", "price", "--drop", "kind", "--likelihood", "gaussian"]
    assert main([*fit, *regression, "-o", found["house"]]) == 0
    assert main([*fit, "--target", "kind", "--drop", "price", "-o", found["label"]]) == 0
    return found
