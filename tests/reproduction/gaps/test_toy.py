"""The network that NUTS samples is the library's, and the record is of the toy's data."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.gaps import toy
from reproduction.gaps.toy_fits import (
    NUTS,
    ToyFit,
    gap_ratio,
    read_toy,
    structured_network,
    toy_records,
    true_noise,
)
from whvi import WHVILinear
from whvi.sampling import MeanWeights, sampling

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "reproduction" / "results" / "gaps" / "toy_nuts.json"


def test_the_data_are_those_of_the_example() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "toy_regression.py"))["toy_data"]()
    for ours, theirs in zip(toy.toy_data(), example, strict=True):
        assert np.array_equal(ours, theirs.double().numpy())


@torch.no_grad()
def test_the_network_is_that_of_the_library() -> None:
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=size) for name, size in toy.parameter_sizes().items()}
    model = structured_network(dtype=torch.float64)
    layers = [layer for layer in model if isinstance(layer, WHVILinear)]
    assert len(layers) == len(toy.PLANS)
    for number, layer in enumerate(layers, start=1):
        targets = (layer.matrix.s1, layer.matrix.posterior.loc, layer.matrix.s2, layer.bias)
        for name, target in zip(("s1", "g", "s2", "b"), targets, strict=True):
            target.copy_(torch.tensor(values[f"{name}_{number}"]))
    with sampling(MeanWeights()):
        expected = model(torch.tensor(toy.GRID).unsqueeze(-1))[:, 0].numpy()
    found = toy.network(values, toy.GRID[:, None])
    assert np.abs(found - expected).max() < 64 * np.finfo(float).eps * np.abs(expected).max()


def test_the_prior_of_g_is_the_default_one_at_the_start() -> None:
    generator = torch.Generator().manual_seed(0)
    for plan in toy.PLANS:
        layer = WHVILinear(plan.in_features, plan.out_features, batch_shape=(4000,))
        layer.reset_parameters(generator=generator)
        start = layer.matrix.posterior.loc.square().mean().item()
        # 4000 · D squares of normals: relative standard error of their mean below 0.8 %
        assert start == pytest.approx(toy.prior_variance(plan), rel=0.04)


def test_true_noise() -> None:
    assert true_noise().noise_scale.item() == pytest.approx(toy.NOISE, rel=1e-5)


def test_the_gap_ratio_compares_the_middle() -> None:
    middle = np.where(np.abs(toy.GRID) < 0.5, 3.0, 0.1)
    fits = {NUTS: ToyFit(toy.GRID, middle), "mine": ToyFit(toy.GRID, middle / 2)}
    found = gap_ratio(fits["mine"], fits)
    assert found == pytest.approx({"middle": 1.5, "ratio": 0.5, "at_data": 0.05})
    assert gap_ratio(fits["mine"], {})["ratio"] is None


def test_a_quick_fit_is_recorded_as_it_is_and_linearised() -> None:
    records = toy_records(quick=True)
    assert toy_records(quick=True) == records  # whatever was drawn before
    assert [record["method"] for record in records] == ["whvi", "whvi-linearized"]
    for record in records:
        assert len(record["mean"]) == len(record["std"]) == len(toy.GRID)
        assert min(record["std"]) > 0
        assert record["quick"]


def test_the_committed_chains_are_of_this_toy() -> None:
    record = json.loads(RECORD.read_text())
    x, y = toy.toy_data()
    assert (record["x"], record["y"]) == (x[:, 0].tolist(), y.tolist())
    assert record["grid"] == toy.GRID.tolist()
    assert record["prior_variance_of_g"] == [toy.prior_variance(plan) for plan in toy.PLANS]
    assert (record["noise"], record["network"]) == (toy.NOISE, list(toy.WIDTHS))
    assert next(iter(read_toy(RECORD.parent))) == NUTS


def test_the_committed_chains_have_mixed() -> None:
    assert max(json.loads(RECORD.read_text())["rhat"]) <= 1.05
