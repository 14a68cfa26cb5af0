"""Figures outside of pyplot, and files that are equal for equal figures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whvi.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 120


def new_figure(columns: int = 1, *, width: float = 7.0, height: float = 4.0) -> Figure:
    """Make a figure of ``columns`` axes side by side, outside of pyplot; sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("plots need matplotlib: pip install 'whvi[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(1, columns)
    return figure


def save_figure(figure: Figure, path: Path, *, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write ``figure`` as ``path`` with each ending in turn; the same figure gives the same files.

    Returns:
        The files written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for ending in formats:
        target = path.with_suffix(f".{ending}")
        _save(figure, target, ending, salt="whvi")
        written.append(target)
    return written


def svg_text(figure: Figure, *, name: str, transparent: bool = True) -> str:
    """Return ``figure`` as SVG, to stand within a page.

    Args:
        figure: What to draw.
        name: Begins every id, so that several graphics can share one page.
        transparent: Leave the background to the page.
    """
    stream = io.StringIO()
    _save(figure, stream, "svg", salt=name, transparent=transparent)
    text = stream.getvalue()
    text = text[text.index("<svg") :]  # a page has a declaration of its own
    for before in (' id="', "url(#", 'href="#'):
        text = text.replace(before, f"{before}{name}-")
    return text


def _save(figure: Figure, target: Any, ending: str, *, salt: str, **options: Any) -> None:
    import matplotlib as mpl

    metadata = {"Date": None} if ending == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(target, format=ending, dpi=_DOTS_PER_INCH, metadata=metadata, **options)
