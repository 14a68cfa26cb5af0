"""Settings chosen by the negative log-likelihood of held-out rows, kept in a file for a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from reproduction.methods import Settings
from reproduction.records import Record, Records

Score = Callable[[Settings], Tensor | float]


def least_nll(candidates: Sequence[Settings], score: Score) -> tuple[Settings, list[float]]:
    """Return the settings with the least score, and all scores."""
    found = [float(score(settings)) for settings in candidates]
    return candidates[found.index(min(found))], found


def chosen(
    choices: Records, key: Record, candidates: Sequence[Settings], score: Score, *, quick: bool
) -> Settings:
    """Return the candidate with the least score, from ``choices`` (by ``key``) or found now.

    There is no choice with one candidate, nor in a quick run: the first, for one epoch.
    """
    if len(candidates) == 1:
        return candidates[0]
    if quick:
        return {**candidates[0], "epochs": 1}
    kept = choices.read().get((*key.values(),))
    if kept is None:
        best, found = least_nll(candidates, score)
        kept = {**key, "settings": dict(best), "held_out_nll": found}
        choices.append([kept])
    return dict(kept["settings"])
