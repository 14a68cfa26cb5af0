"""``whvi info``: what a model file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def describe_model(model_file: str, *, as_json: bool) -> None:
    """Print the model's card, columns and layers; or the file's document as JSON."""
    from whvi.tabular.modelfile import load_model, read_model_file

    if as_json:
        print(json.dumps(read_model_file(model_file).document, indent=1))
        return
    from whvi.layers import summary
    from whvi.report import model_card

    model = load_model(model_file)
    size = Path(model_file).stat().st_size
    lines = [f"{name:<34}{value}" for name, value in model_card(model)]
    lines += [f"{'size of the file':<34}{size / 1000:,.0f} kB", "", "columns"]
    lines += [f"  {column.name:<32}{_describe(column)}" for column in model.schema_.columns]
    lines += ["", str(summary(model.model_))]
    print("\n".join(lines))


def _describe(column: Any) -> str:
    if column.categories is not None:
        shown = ", ".join(column.categories[:8])
        rest = len(column.categories) - 8
        return f"{column.kind}: {shown}{f' and {rest} more' if rest > 0 else ''}"
    if column.minimum is None:
        return str(column.kind)
    return f"{column.kind}, {column.minimum:g} to {column.maximum:g} in training"
