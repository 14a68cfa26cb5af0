from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from reproduction.__main__ import main
from reproduction.data import data_folder
from reproduction.runner import Options
from reproduction.vae import markdown, plan, summarise
from reproduction.vae.data import load, shuffled
from reproduction.vae.methods import METHODS, Method, Trainer
from reproduction.vae.scores import (
    MAIN_SCORE,
    QUICK,
    bounds,
    detection,
    log_weight_draws,
    outsider_scores,
)
from whvi.errors import DataError
from whvi.models import vae


def images(num: int = 300) -> torch.Tensor:
    return torch.bernoulli(torch.full((num, 784), 0.2), generator=torch.manual_seed(0))


def test_the_grid_is_three_seeds_on_mnist_and_one_on_fashion() -> None:
    units = plan(Options(output=Path()))
    found = [(u.dataset, u.method, u.seed) for u in units]
    assert len(found) == len(set(found)) == 13
    assert sum(u[0] == "mnist" for u in found) == 9
    assert ("mnist", "ensemble", 0) not in found


def test_scores_are_their_formulas() -> None:
    values = torch.tensor([[-3.0, -10.0], [-5.0, -10.0], [-4.0, -10.0]])
    found = outsider_scores(values)
    mean = math.log((math.exp(-3) + math.exp(-5) + math.exp(-4)) / 3)
    assert found["likelihood"].tolist() == pytest.approx([-mean, 10])
    assert found["waic"].tolist() == pytest.approx([5, 10])
    assert found["disagreement"].tolist() == pytest.approx([1, 0])
    assert MAIN_SCORE in found


def test_larger_scores_are_outsiders() -> None:
    inside, outside = torch.zeros(3, 5), torch.tensor([[-9.0], [-10.0], [-11.0]]).expand(3, 4)
    assert set(detection(inside, outside).values()) == {1.0}
    assert set(detection(outside, inside).values()) == {0.0}


def test_shuffled_images_keep_their_pixels_in_one_order() -> None:
    x = images(5)
    assert torch.equal(shuffled(x).sum(1), x.sum(1))
    assert not torch.equal(shuffled(x), x)
    assert torch.equal(shuffled(x[:2]), shuffled(x)[:2])


def test_members_are_trained_once_and_an_ensemble_begins_with_the_single_model(
    tmp_path: Path,
) -> None:
    trainer, x = Trainer(str(tmp_path), 1), images()
    single = trainer.members(METHODS["dense"], "fashion-mnist", x, 0)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "models").iterdir()}
    pair = Method("dense", 1e-3, num_members=2)
    first, second = trainer.members(pair, "fashion-mnist", x, 0)
    assert torch.equal(first.decoder[0].weight, single[0].decoder[0].weight)
    assert not torch.equal(first.decoder[0].weight, second.decoder[0].weight)
    for name, time in before.items():
        assert (tmp_path / "models" / name).stat().st_mtime_ns == time
    assert trainer.training(pair, "fashion-mnist", 0)["epochs"] == 1


def test_every_method_gets_as_many_draws() -> None:
    torch.manual_seed(0)
    x, random = images(4), vae((784,), (8,), 2)
    assert log_weight_draws([random], x, 6, 0).shape == (6, 4)
    plain = [vae((784,), (8,), 2, layer="dense") for _ in range(2)]
    assert log_weight_draws(plain, x, 6, 0).shape == (6, 4)
    found = bounds(plain[0], x, QUICK.rows, 0)
    assert found["nll_5000"] < found["nll_1"]
    assert [found[f"nll_{k}_rows"] for k in (1, 500, 5000)] == [4, 4, 4]


def test_structured_weights_are_a_tenth_of_the_dense_ones() -> None:
    counts = {
        name: sum(p.numel() for p in vae((784,), layer=METHODS[name].layer).parameters())
        for name in ("dense", "whvi")
    }
    assert counts["whvi"] <= 0.1 * counts["dense"]


def test_a_quick_run_writes_a_page_and_pictures(tmp_path: Path) -> None:
    try:
        data_folder("images")
    except DataError as error:
        pytest.skip(str(error))
    call = ["vae", "--quick", "--methods", "whvi", "--data", "fashion-mnist", "--no-progress"]
    assert main([*call, "-o", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "summary.json").read_text())
    assert {f"auroc_mnist_{MAIN_SCORE}", "nll_500", "decoder_kl"} <= set(row)
    page = (tmp_path / "README.md").read_text()
    assert "quick run" in page
    for kind in ("samples", "reconstructions", "interpolation"):
        assert (tmp_path / f"{kind}-fashion-mnist.png").exists()
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert markdown(records) == page
    assert summarise(records) == [row]
    data = load("fashion-mnist", None, True)
    assert set(data.test.unique().tolist()) == {0, 1}
    assert set(data.outsiders) == {"mnist", "shuffled"}
