"""What is drawn is what was computed, also for few rows and for many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from whvi.errors import ShapeError
from whvi.plots import (
    new_figure,
    plot_calibration,
    plot_confusion,
    plot_coverage,
    plot_error_by_std,
    plot_pit,
    plot_predicted_against_true,
    plot_reliability,
    plot_risk_coverage,
    svg_text,
)


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
    assert line(figure.axes[1], "most certain rows").get_xdata()[-1] == 1
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


def test_long_names_leave_space_for_the_plot(ax):
    plot_confusion(ax, torch.tensor([0, 1]), torch.tensor([0, 1]), ["a" * 200, "b"])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a" * 19 + "…", "b"]
    svg_text(ax.figure, name="x")  # matplotlib warns if no space is left


def test_the_names_of_fifty_classes_do_not_overlap(ax):
    labels = torch.arange(50)
    plot_confusion(ax, labels, labels, [f"class {k}" for k in range(50)])
    height = ax.figure.get_size_inches()[1] * 72 * ax.get_position().height / 50  # points
    assert all(text.get_fontsize() <= 1.05 * height for text in ax.get_yticklabels())
    assert all(text.get_rotation() == 90 for text in ax.get_xticklabels())


def test_a_label_without_a_name_is_refused(ax):
    with pytest.raises(ShapeError, match="outside the range of the 2 names"):
        plot_confusion(ax, torch.tensor([0]), torch.tensor([2]), ["a", "b"])
