"""The embedded data, and the models it is compared with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.data.simulators import SIMULATORS
from reproduction.demo import NOISE, RIVALS, TARGET, demo_tables, run_demo, scaled_numbers


def test_the_data_are_what_they_are_said_to_be():
    train, test = demo_tables(4000, 4000)
    assert train.equals(demo_tables(4000, 4000)[0])
    piston = SIMULATORS["piston"]
    names = [each.name for each in piston.inputs]
    assert list(train.columns) == [*names, "where", TARGET]
    for place, noise in NOISE.items():
        rows = test[test["where"] == place]
        error = rows[TARGET] - piston(rows[names].to_numpy())
        # the standard error of a deviation is noise / √(2n), with n near 2000
        assert error.std() == pytest.approx(noise, abs=5 * noise / np.sqrt(2 * len(rows)))


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_predicts_with_error_bars(name):
    train, test = demo_tables(100, 20)
    data = scaled_numbers(train, test)
    assert data.x_train.mean(0).abs().max() < 1e-5  # scaled by the training rows
    predictive = RIVALS[name](data, quick=True)
    assert predictive.mean.shape == (20,)
    assert (predictive.std > 0).all()
    again = RIVALS[name](data, quick=True)
    assert torch.equal(predictive.mean, again.mean)


def test_the_demonstration_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run_demo(tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert "predicted noise" in printed
    assert f"Written to {tmp_path}: model.whvi, predictions.csv, report.html" in printed
    assert len(json.loads((tmp_path / "results.json").read_text())["scores"]) == 5
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert (tmp_path / "predictions.csv").read_text().startswith("where,")
