"""Bands and effects are drawn where the predictive says."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("matplotlib")

from whvi.errors import ConfigError, ShapeError
from whvi.plots import epistemic_band, feature_effect, new_figure, plot_bands, plot_effect
from whvi.predictive import Predictive


@pytest.fixture
def ax():
    return new_figure().axes[0]


@pytest.fixture
def predictive(generator):
    loc = torch.randn(400, 30, generator=generator)
    return Predictive.gaussian(loc, torch.full_like(loc, 0.5))


def test_bands_are_drawn_where_the_predictive_says(predictive):
    ax = new_figure().axes[0]
    x = torch.linspace(0, 1, 30)
    plot_bands(ax, x, predictive, level=0.9)
    total = ax.collections[0].get_paths()[0].vertices
    assert total[:, 1].min() == pytest.approx(predictive.interval(0.9).lower.min().item())
    assert total[:, 1].max() == pytest.approx(predictive.interval(0.9).upper.max().item())
    assert ax.lines[0].get_ydata() == pytest.approx(predictive.mean.numpy())


def test_the_epistemic_band_lies_inside_the_total_band(predictive):
    inner, outer = epistemic_band(predictive, 0.9), predictive.interval(0.9)
    assert (inner.lower > outer.lower).all()
    assert (inner.upper < outer.upper).all()


def test_the_epistemic_band_holds_its_share_of_draws(predictive):
    band = epistemic_band(predictive, 0.9)
    loc, _ = predictive.gaussian_components()
    inside = ((loc >= band.lower) & (loc <= band.upper)).double().mean(0)
    assert (inside - 0.9).abs().max() <= 1 / 200  # an order statistic at either end


def test_other_families_have_a_normal_band(generator):
    rate = torch.rand(50, 7, generator=generator) + 1
    predictive = Predictive.poisson(rate)
    band = epistemic_band(predictive, 0.95)
    torch.testing.assert_close(band.upper - band.lower, 2 * 1.959964 * predictive.epistemic)


def test_draws_and_data_are_optional_extras(predictive):
    ax = new_figure().axes[0]
    x = torch.linspace(0, 1, 30).unsqueeze(1)
    draws = torch.zeros(3, 30, 1)
    plot_bands(ax, x, predictive, draws, (torch.zeros(5, 1), torch.ones(5)))
    assert len(ax.lines) == 3 + 1 + 1
    assert ax.get_legend_handles_labels()[1] == ["total, 95%", "epistemic", "draws", "mean", "data"]


def test_a_wrong_number_of_inputs_is_refused(predictive):
    with pytest.raises(ShapeError, match="x must have one value for each of 30 rows, got 29"):
        plot_bands(new_figure().axes[0], torch.zeros(29), predictive)


def test_several_outputs_are_refused():
    loc = torch.zeros(4, 5, 2)
    predictive = Predictive.gaussian(loc, torch.ones_like(loc))
    with pytest.raises(ShapeError, match=r"one output without replicas.*\(5, 2\)"):
        plot_bands(new_figure().axes[0], torch.zeros(5), predictive)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 95])
def test_a_level_is_a_probability(predictive, level):
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        epistemic_band(predictive, level)


def gaussian(value):
    weights = torch.tensor([1.0, 3.0, 2.0])  # three draws of a slope
    loc = value * weights[:, None].expand(3, 4) + torch.arange(4.0)
    return Predictive.gaussian(loc, torch.ones_like(loc))


def test_the_effect_of_a_linear_function_is_its_slope():
    effect = feature_effect(gaussian, [0.0, 1.0, 2.0], level=0.999)
    assert effect.mean.tolist() == pytest.approx([1.5, 3.5, 5.5])  # mean over draws and rows
    width = effect.band.upper - effect.band.lower
    assert width.tolist() == pytest.approx([0, 2, 4], abs=0.01)  # slopes from 1 to 3


def test_effects_of_other_families_have_a_normal_band():
    effect = feature_effect(lambda v: Predictive.poisson(torch.tensor([[v], [v]])), [1.0, 2.0])
    assert torch.equal(effect.band.lower, effect.mean)  # the two draws agree


def test_classes_have_a_probability_without_band(ax):
    def predict(value):
        logits = torch.tensor([[[0.0, value]]]).expand(2, 5, 2)
        return Predictive.categorical(logits)

    effect = feature_effect(predict, [0.0, 100.0], label=1)
    assert effect.mean.tolist() == pytest.approx([0.5, 1])
    assert effect.band is None
    plot_effect(ax, effect, name="x")


def test_numbers_are_lines_and_categories_are_dots(ax):
    plot_effect(ax, feature_effect(gaussian, [0.0, 1.0]), name="x", data=torch.zeros(500))
    assert len(ax.lines[0].get_xdata()) == 2
    other = new_figure().axes[0]
    predict = {"low": gaussian(0.0), "a very high value": gaussian(1.0)}.__getitem__
    plot_effect(other, feature_effect(predict, ["low", "a very high value"]), name="x")
    assert [text.get_text() for text in other.get_xticklabels()] == ["low", "a very high…"]


@pytest.mark.parametrize(("values", "level"), [([], 0.9), ([1.0], 0.0), ([1.0], 90)])
def test_impossible_effects(values, level):
    with pytest.raises(ConfigError):
        feature_effect(gaussian, values, level=level)
