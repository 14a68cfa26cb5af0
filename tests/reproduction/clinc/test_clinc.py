from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.__main__ import main
from reproduction.clinc import SEEDS
from reproduction.clinc.methods import METHODS, TRAININGS, missing_package
from reproduction.clinc.queries import Queries
from reproduction.clinc.work import scores
from reproduction.data import data_folder
from whvi.errors import DataError

FOLDER = Path(__file__).parents[3] / "reproduction" / "results" / "clinc"


def queries(lengths: list[int]) -> Queries:
    return Queries([torch.arange(1, n + 1) for n in lengths], torch.arange(len(lengths)))


def test_a_batch_is_padded_and_masked() -> None:
    batch = queries([3, 1, 2]).batch(torch.tensor([0, 1]))
    assert batch["input_ids"].tolist() == [[1, 2, 3], [1, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_an_epoch_has_every_row_once_in_batches_of_like_lengths() -> None:
    data = queries([1 + (7 * k) % 40 for k in range(500)])
    rows = list(data.batches(20, torch.Generator().manual_seed(0)))
    assert sorted(torch.cat(rows).tolist()) == list(range(500))
    spread = [len({len(data.tokens[int(r)]) for r in batch}) for batch in rows]
    assert np.mean(spread) < 4


def test_scores_of_sure_insiders_and_undecided_outsiders() -> None:
    sure = torch.full((4, 3), -30.0)
    sure[:, 0] = 0.0
    torn = torch.full((5, 3), 1 / 3).log()
    found = scores(sure, torn, torch.tensor([0, 0, 0, 1]))
    assert (found["accuracy"], found["auroc"], found["aupr"]) == (0.75, 1.0, 1.0)
    assert found["nll"] == pytest.approx(30 / 4)
    assert found["ece"] == pytest.approx(0.25)
    assert scores(torn, sure, torch.zeros(5).long())["auroc"] == 0.0


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # of transformers, peft and laplace-torch
def test_a_quick_run_of_every_training(tmp_path: Path) -> None:
    if package := missing_package("lora"):
        pytest.skip(f"{package} is not installed")
    try:
        root = str(data_folder("text").parent)
    except DataError as error:
        pytest.skip(str(error))
    options = ["clinc", "--quick", "--no-progress", "--data-dir", root, "-o", str(tmp_path)]
    assert main([*options, "--seeds", "0", "1"]) == 0
    records = (tmp_path / "records.jsonl").read_bytes()
    assert main([*options, "--seeds", "0", "1"]) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == records
    rows = json.loads((tmp_path / "summary.json").read_text())
    assert [row["method"] for row in rows] == [m for m in METHODS if missing_package(m) is None]
    assert "A quick run" in (tmp_path / "README.md").read_text()
    by_name = {row["method"]: row for row in rows}
    assert by_name["whvi"]["num_parameters"] <= 251_000
    assert by_name["lora"]["num_parameters"] <= 251_000


def test_committed_records_are_of_the_candidates() -> None:
    if not (FOLDER / "records.jsonl").exists():
        pytest.skip("not run yet")
    records = [json.loads(line) for line in (FOLDER / "records.jsonl").read_text().splitlines()]
    for record in records:
        assert record["seed"] in SEEDS
        training = TRAININGS.get(record["method"])
        if training is not None:
            assert record["settings"] in [dict(each) for each in training.candidates]
