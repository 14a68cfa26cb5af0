"""What the records depend on: a few steps of every candidate of the WHVI rows.

The limit is twice what the rounding of another instruction set changes (0.09 % after twenty steps
between AVX-512 and the baseline); another order of draws or starting point changes the first
digit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduction.data import load_uci
from reproduction.methods import DataSize, Settings
from reproduction.methods.evaluation import evaluate
from reproduction.methods.grids import METHODS
from reproduction.methods.selection import Choice, key

PINNED = json.loads(Path(__file__).with_name("pinned_fits.json").read_text())


def short_candidates() -> dict[str, Settings]:
    """Every candidate of ``whvi`` and ``whvi-best`` for tables of all sizes, with 20 steps."""
    found = {}
    for num_rows in (277, 8000, 40_000):
        for name in ("whvi", "whvi-best"):
            for settings in METHODS[name].grid(DataSize(num_rows, 6)):
                short = {**settings, "steps": 20, "batch": 32}
                found[key(short)] = short
    return found


CANDIDATES = short_candidates()


def test_every_candidate_is_pinned() -> None:
    assert CANDIDATES.keys() == PINNED.keys()


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_short_fit_gives_the_pinned_scores(name: str, uci_root: str) -> None:
    choice = Choice(CANDIDATES[name], 1.0, {}, 0.0)
    (record,) = evaluate(METHODS["whvi"], load_uci("yacht", uci_root), [0], [choice], seed=0)
    assert [record["rmse"], record["mnll"]] == pytest.approx(PINNED[name], rel=2e-3)
