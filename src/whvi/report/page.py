"""One self-contained HTML page: no script, no request, every text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from whvi.report.pictures import Picture


@dataclass(frozen=True)
class Table:
    """Rows of texts under a head; columns from ``first_number`` on are aligned as numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    first_number: int = 1


@dataclass(frozen=True)
class Page:
    """What stands on the page, in this order."""

    title: str
    source: str  # one line below the title
    tiles: tuple[tuple[str, str], ...]  # figure, what it is
    reading: tuple[str, ...]
    warnings: tuple[str, ...]
    scores: Table
    pictures: tuple[Picture, ...]
    effects: tuple[Picture, ...]
    columns: Table
    card: tuple[tuple[str, str], ...]
    training: tuple[Picture, ...]
    footer: str


def render(page: Page) -> str:
    """Return the page as HTML."""
    style = files("whvi.report").joinpath("page.css").read_text(encoding="utf-8")
    sections = [
        f"<h1>{_text(page.title)}</h1>",
        f'<p class="source">{_text(page.source)}</p>',
        _tiles(page.tiles),
        *(f'<p class="warning" role="note">{_text(each)}</p>' for each in page.warnings),
        "<h2>In plain words</h2>",
        _list(page.reading),
        "<h2>Pictures</h2>",
        _gallery(page.pictures),
        "<h2>Scores</h2>",
        _table(page.scores),
    ]
    if page.effects:
        sections += ["<h2>What the columns do</h2>", _gallery(page.effects)]
    sections += ["<h2>The data</h2>", _table(page.columns), "<h2>The model</h2>", _card(page.card)]
    sections += [_gallery(page.training)] if page.training else []
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # nothing may be loaded from anywhere, whatever the data hold
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(page.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + f"\n</main>\n<footer>{_text(page.footer)}</footer>\n</body>\n</html>\n"
    )


def _text(value: str) -> str:
    return html.escape(value, quote=True)


def _tiles(tiles: Iterable[tuple[str, str]]) -> str:
    items = (f"<li><b>{_text(figure)}</b><span>{_text(name)}</span></li>" for figure, name in tiles)
    return f'<ul class="tiles">{"".join(items)}</ul>'


def _list(sentences: Iterable[str]) -> str:
    items = "\n".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)
    return f'<ul class="reading">\n{items}\n</ul>'


def _gallery(pictures: Iterable[Picture]) -> str:
    return '<div class="pictures">\n' + "\n".join(map(_figure, pictures)) + "\n</div>"


def _figure(picture: Picture) -> str:
    alternative = _text(f"{picture.title}. {picture.caption}")
    svg = picture.svg.replace("<svg", f'<svg role="img" aria-label="{alternative}"', 1)
    caption = f"<figcaption>{_text(picture.caption)}</figcaption>"
    return f"<figure>\n<h3>{_text(picture.title)}</h3>\n{svg}\n{caption}\n</figure>"


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if k < table.first_number else ' class="number"' for k in range(len(cells))]
        parts = (
            f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "\n".join(row(cells, "td") for cells in table.rows)
    head = row(table.head, "th")
    return (
        f'<div class="wide"><table><thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table></div>'
    )


def _card(card: Iterable[tuple[str, str]]) -> str:
    rows = "\n".join(
        f"<tr><th scope='row'>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in card
    )
    return f'<div class="wide"><table class="card"><tbody>\n{rows}\n</tbody></table></div>'
