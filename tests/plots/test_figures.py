"""Equal figures give equal files; several figures fit in one page."""

from __future__ import annotations

import re
import sys

import pytest
import torch

pytest.importorskip("matplotlib")

from whvi.errors import MissingDependencyError
from whvi.plots import new_figure, plot_bands, plot_covariance, plot_pit, save_figure, svg_text
from whvi.predictive import Predictive


def test_equal_figures_are_equal_files(tmp_path, generator):
    loc = torch.randn(400, 30, generator=generator)
    predictive = Predictive.gaussian(loc, torch.full_like(loc, 0.5))

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


def test_graphics_in_one_page_share_no_ids(generator):
    ax = new_figure().axes[0]
    plot_pit(ax, torch.rand(200, generator=generator))
    first, second = svg_text(ax.figure, name="a"), svg_text(ax.figure, name="b")
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', first))
    assert used <= ids[0]
