"""Training curves and correlations of weights."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("matplotlib")

from whvi.errors import ShapeError
from whvi.plots import (
    correlation,
    new_figure,
    plot_covariance,
    plot_elbo,
    plot_kl,
    plot_noise,
)
from whvi.training.history import History, StepRecord


@pytest.fixture
def ax():
    return new_figure().axes[0]


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


def test_correlation_equals_corrcoef(generator):
    x = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(correlation(torch.cov(x)), torch.corrcoef(x))


def test_an_entry_without_variance_has_no_correlation():
    covariance = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
    expected = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(correlation(covariance), expected)


def test_a_covariance_is_square():
    with pytest.raises(ShapeError, match=r"\(n, n\), got \(2, 3\)"):
        correlation(torch.zeros(2, 3))


def test_a_covariance_becomes_an_image(ax):
    plot_covariance(ax, 4 * torch.eye(3), "eye")
    assert ax.images[0].get_array().tolist() == torch.eye(3).tolist()
    assert ax.get_title() == "eye"
