"""What is drawn is what was computed; every picture is made once with warnings as errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from whvi.errors import ConfigError, ShapeError
from whvi.plots import (
    feature_effect,
    new_figure,
    plot_calibration,
    plot_confusion,
    plot_coverage,
    plot_effect,
    plot_elbo,
    plot_error_by_std,
    plot_kl,
    plot_noise,
    plot_pit,
    plot_predicted_against_true,
    plot_reliability,
    plot_risk_coverage,
    svg_text,
)
from whvi.predictive import Predictive
from whvi.training.history import History, StepRecord


@pytest.fixture
def ax():
    return new_figure().axes[0]


@pytest.fixture
def pit(generator):
    return torch.rand(200, generator=generator, dtype=torch.float64)


def line(ax, label):
    return next(each for each in ax.lines if each.get_label() == label)


def test_calibration_and_coverage_end_at_one(ax, pit):
    plot_calibration(ax, pit)
    plot_coverage(ax, pit)
    assert line(ax, "observed").get_ydata()[-1] == 1


def test_the_histogram_has_mean_one(ax, pit):
    plot_pit(ax, pit, num_bins=8)
    heights = [bar.get_height() for bar in ax.patches]
    assert len(heights) == 8
    assert sum(heights) / 8 == pytest.approx(1)


def test_intervals_that_miss_stand_out(ax):
    y = torch.tensor([0.0, 1.0, 2.0])
    plot_predicted_against_true(ax, y, y, y - 1, y + 1, level=0.9)
    assert ax.get_legend_handles_labels()[1] == ["inside its 90% interval"]
    other = new_figure().axes[0]
    plot_predicted_against_true(other, y, y + 5, y + 4, y + 6, level=0.9)
    assert other.get_legend_handles_labels()[1] == ["outside its 90% interval"]


@pytest.mark.parametrize("num_rows", [1, 3, 5000])
def test_errors_and_risk_of_any_number_of_rows(num_rows, generator):
    error = torch.randn(num_rows, generator=generator)
    std = torch.rand(num_rows, generator=generator)
    figure = new_figure(2)
    plot_error_by_std(figure.axes[0], error, std)
    plot_risk_coverage(figure.axes[1], error.square(), std)
    assert line(figure.axes[1], "surest rows").get_xdata()[-1] == 1
    assert svg_text(figure, name="x").startswith("<svg")


def test_equal_deviations_can_be_drawn(ax):
    other = new_figure().axes[0]
    plot_error_by_std(ax, torch.zeros(20), torch.ones(20))
    plot_risk_coverage(other, torch.zeros(20), torch.ones(20))
    for drawn in (ax, other):
        assert all(np.isfinite(line.get_ydata()).all() for line in drawn.lines)


def test_labels(generator):
    probs = torch.softmax(torch.randn(90, 3, generator=generator), -1)
    labels = torch.randint(3, (90,), generator=generator)
    figure = new_figure(2)
    plot_reliability(figure.axes[0], probs, labels)
    plot_confusion(figure.axes[1], probs.argmax(-1), labels, ["a", "b", "$c$"])
    numbers = [int(text.get_text()) for text in figure.axes[1].texts]
    assert sum(numbers) == 90
    assert numbers[1] == int(((labels == 0) & (probs.argmax(-1) == 1)).sum())


def test_a_label_without_a_name_is_refused(ax):
    with pytest.raises(ShapeError, match="beyond the 2 names"):
        plot_confusion(ax, torch.tensor([0]), torch.tensor([2]), ["a", "b"])


# Effects ------------------------------------------------------------


def gaussian(value):
    weights = torch.tensor([1.0, 3.0, 2.0])  # three draws of a slope
    loc = value * weights[:, None].expand(3, 4) + torch.arange(4.0)
    return Predictive.gaussian(loc, torch.ones_like(loc))


def test_the_effect_of_a_linear_function_is_its_slope():
    effect = feature_effect(gaussian, [0.0, 1.0, 2.0], level=0.999)
    assert effect.mean.tolist() == pytest.approx([1.5, 3.5, 5.5])  # mean over draws and rows
    width = effect.band.upper - effect.band.lower
    assert width.tolist() == pytest.approx([0, 2, 4], abs=0.01)  # slopes from 1 to 3


def test_other_families_have_a_normal_band():
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


# Training ------------------------------------------------------------


def history(replicas):
    record = History()
    for step in range(1, 21):
        spread = [-100.0 / step - r for r in range(2)]
        values = spread if replicas else spread[0]
        layers = {"0": values, "2": values}
        record.append(StepRecord(10 * step, 0.01, 1.0, values, values, layers, [values], None))
    return record


@pytest.mark.parametrize("replicas", [False, True])
def test_training_curves(replicas):
    figure = new_figure(3)
    record = history(replicas)
    plot_elbo(figure.axes[0], record)
    plot_kl(figure.axes[1], record)
    plot_noise(figure.axes[2], record)
    assert len(figure.axes[0].lines) == (3 if replicas else 1)
    assert figure.axes[0].lines[-1].get_ydata() == pytest.approx([0.0] * 20)  # lik = KL here
    assert figure.axes[1].get_legend_handles_labels()[1] == ["all layers", "0", "2"]


def test_what_cannot_be_drawn_is_refused(ax):
    with pytest.raises(ShapeError, match="no records"):
        plot_elbo(ax, History())
    with pytest.raises(ShapeError, match="no noise"):
        plot_noise(ax, History())


def test_graphics_in_one_page_share_no_ids(ax, pit):
    import re

    plot_pit(ax, pit)
    first, second = svg_text(ax.figure, name="a"), svg_text(ax.figure, name="b")
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', first))
    assert used <= ids[0]
