from __future__ import annotations

import sys

import pytest
import torch

pytest.importorskip("matplotlib")

from whvi.errors import ConfigError, MissingDependencyError, ShapeError
from whvi.plots import (
    epistemic_band,
    new_figure,
    normalised_covariance,
    plot_bands,
    plot_covariance,
    save_figure,
)
from whvi.predictive import Predictive


@pytest.fixture
def predictive(generator):
    loc = torch.randn(400, 30, generator=generator)
    return Predictive.gaussian(loc, torch.full_like(loc, 0.5))


def axes_of(figure):
    return figure.axes[0]


def test_bands_are_drawn_where_the_predictive_says(predictive):
    ax = axes_of(new_figure())
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
    ax = axes_of(new_figure())
    x = torch.linspace(0, 1, 30).unsqueeze(1)
    draws = torch.zeros(3, 30, 1)
    plot_bands(ax, x, predictive, draws, (torch.zeros(5, 1), torch.ones(5)))
    assert len(ax.lines) == 3 + 1 + 1
    assert ax.get_legend_handles_labels()[1] == ["total, 95%", "epistemic", "draws", "mean", "data"]


def test_a_wrong_number_of_inputs_is_refused(predictive):
    with pytest.raises(ShapeError, match="x must have one value for each of 30 rows, got 29"):
        plot_bands(axes_of(new_figure()), torch.zeros(29), predictive)


def test_several_outputs_are_refused():
    loc = torch.zeros(4, 5, 2)
    predictive = Predictive.gaussian(loc, torch.ones_like(loc))
    with pytest.raises(ShapeError, match=r"one output without replicas.*\(5, 2\)"):
        plot_bands(axes_of(new_figure()), torch.zeros(5), predictive)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 95])
def test_a_level_is_a_probability(predictive, level):
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        epistemic_band(predictive, level)


def test_normalised_covariance_is_the_correlation(generator):
    x = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(normalised_covariance(torch.cov(x)), torch.corrcoef(x))


def test_an_entry_without_variance_has_no_correlation():
    covariance = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
    expected = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(normalised_covariance(covariance), expected)


def test_a_covariance_is_square():
    with pytest.raises(ShapeError, match=r"\(n, n\), got \(2, 3\)"):
        normalised_covariance(torch.zeros(2, 3))


def test_a_covariance_becomes_an_image():
    ax = axes_of(new_figure())
    plot_covariance(ax, 4 * torch.eye(3), "eye")
    assert ax.images[0].get_array().tolist() == torch.eye(3).tolist()
    assert ax.get_title() == "eye"


def test_equal_figures_are_equal_files(tmp_path, predictive):
    def draw(folder):
        figure = new_figure(2)
        plot_covariance(figure.axes[0], torch.eye(3), "eye")
        plot_bands(figure.axes[1], torch.arange(30), predictive)
        return save_figure(figure, tmp_path / folder / "picture", formats=("png", "svg"))

    first, second = draw("a"), draw("b")
    assert [path.name for path in first] == ["picture.png", "picture.svg"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'whvi\[plots\]'"):
        new_figure()
