from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.__main__ import main
from reproduction.data import data_folder
from reproduction.ood import SEEDS
from reproduction.ood.images import load_images
from reproduction.ood.methods import METHODS, missing_package
from reproduction.ood.networks import LAYERS, build, train
from reproduction.ood.work import scores
from whvi.errors import DataError
from whvi.predictive import Predictive

FOLDER = Path(__file__).parents[3] / "reproduction" / "results" / "ood"


@pytest.fixture
def image_root() -> str:
    try:
        return str(data_folder("images").parent)
    except DataError as error:
        pytest.skip(str(error))


def write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + values.tobytes()))


def test_idx_files_are_read_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "mnist"
    pixels = np.zeros((10_000, 28, 28), np.uint8)
    pixels[3, 2, 1] = 255
    write_idx(folder / "t10k-images-idx3-ubyte.gz", pixels)
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.full(10_000, 7, np.uint8))
    found = load_images("mnist", "test", tmp_path)
    assert (found.x.shape, found.x[3, 0, 2, 1], found.x.sum()) == ((10_000, 1, 28, 28), 1, 1)
    assert found.y.unique().tolist() == [7]
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.zeros(9_999, np.uint8))
    with pytest.raises(DataError, match=r"expected unsigned bytes of shape \(10000,\)"):
        load_images("mnist", "test", tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        load_images("mnist", "train", tmp_path)


@pytest.mark.parametrize("layers", LAYERS)
def test_all_networks_have_one_shape(layers: str) -> None:
    plain, other = build("plain"), build(layers)
    x = torch.zeros(2, 1, 28, 28)
    for ours, theirs in zip(other, plain, strict=True):
        assert ours(x).shape == theirs(x).shape
        x = theirs(x)
    assert x.shape == (2, 10)


@pytest.mark.filterwarnings("ignore")  # of laplace-torch and what it imports
@pytest.mark.parametrize("name", METHODS)
def test_every_method_predicts_classes_and_repeats_itself(name: str) -> None:
    if package := missing_package(name):
        pytest.skip(f"{package} is not installed")
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 1, 28, 28, generator=generator), torch.arange(40) % 10
    settings = {**METHODS[name].candidates[0], "epochs": 1, "batch": 20}
    both = [METHODS[name].fit(settings, x, y, seed=1) for _ in range(2)]
    first, second = (predict(x[:5]) for predict, _ in both)
    assert first.probs.shape == (5, 10)
    assert torch.equal(first.probs, second.probs)
    assert first.num_components == (5 if name == "deep-ensemble" else 64)
    assert bool((first.mutual_information() > 0).any())
    assert both[0][1] > 0


def test_seeds_differ() -> None:
    x, y = torch.zeros(20, 1, 28, 28), torch.arange(20) % 10
    settings = {"epochs": 1, "batch": 20, "lr": 1e-3}
    first, second = (train(settings, x, y, layers="plain", seed=k) for k in (0, 1))
    assert not torch.equal(first[0].weight, second[0].weight)


def test_scores_of_certain_insiders_and_undecided_outsiders() -> None:
    sure = torch.full((2, 4, 3), -30.0)
    sure[..., 0] = 30
    torn = torch.full((2, 5, 3), -30.0)
    torn[0, :, 1] = torn[1, :, 2] = 30
    inside, outside = Predictive.categorical(sure), Predictive.categorical(torn)
    found = scores(inside, torch.tensor([0, 0, 0, 1]), outside)
    assert (found["auroc"], found["accuracy"], found["ece"]) == (1.0, 0.75, 0.25)
    assert found["information_outside"] == pytest.approx(np.log(2))
    assert scores(outside, torch.ones(5).long(), inside)["auroc"] == 0.0


def test_a_quick_run(image_root: str, tmp_path: Path) -> None:
    words = "ood --quick --no-progress --methods mc-dropout --data-dir"
    options = [*words.split(), image_root, "-o", str(tmp_path)]
    assert main(options) == 0
    records = (tmp_path / "records.jsonl").read_bytes()
    assert main(options) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == records
    (row,) = json.loads((tmp_path / "summary.json").read_text())
    assert (row["method"], row["num_seeds"], row["num_train"]) == ("mc-dropout", 1, 600)
    assert "A quick run" in (tmp_path / "README.md").read_text()


def test_committed_records_are_of_the_candidates() -> None:
    if not (FOLDER / "records.jsonl").exists():
        pytest.skip("not run yet")
    records = [json.loads(line) for line in (FOLDER / "records.jsonl").read_text().splitlines()]
    for record in records:
        assert record["settings"] in [dict(c) for c in METHODS[record["method"]].candidates]
        assert record["seed"] in SEEDS
