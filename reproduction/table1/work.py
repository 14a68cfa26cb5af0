"""One unit of Table 1: choose on inner validation parts, fit, predict the test rows once, score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reproduction.data import CATALOGUE, UCIDataset, load_uci, random_splits
from reproduction.methods import DataSize, estimator
from reproduction.methods.estimator import evaluate_estimator
from reproduction.methods.evaluation import evaluate
from reproduction.methods.grids import METHODS
from reproduction.methods.selection import Choice, Known, Scores, choose, training_work
from reproduction.records import Record, Records
from reproduction.runner import Unit

OWN = ("whvi", "whvi-ensemble", "whvi-best", estimator.NAME)
ROWS = (*OWN, *(name for name in METHODS if name not in OWN))
"""Every method, in the order of the table: those with structured weights, then their rivals."""
PROTOCOLS = ("literature", "random")
_SPLITS_AT_ONCE = 20
_FEWER = {5_000: 10, 40_000: 3}  # from so many rows on, so that less is lost when killed


@dataclass(frozen=True)
class Table1Work:
    """Computes a unit of the table: choose, then evaluate; choices are kept for a restart.

    Attributes:
        choices: File of the choices.
        data_dir: Folder that holds ``UCI_Datasets``; ``None`` for the environment variable or the
            cache.
        quick: Few steps and one candidate: a test of the machinery, not of the methods.
        protocol: ``"literature"``, the splits that come with the sets, or ``"random"``, the
            paper's own: random 90/10 splits, as many, drawn from the seed of the unit.
        scores: Another file of choices, whose validation scores need not be computed again.
    """

    choices: Records
    data_dir: str | None = None
    quick: bool = False
    protocol: str = "literature"
    scores: Records | None = None

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the records of ``unit``."""
        dataset = self._dataset(unit)
        if unit.method == estimator.NAME:
            records = evaluate_estimator(unit, dataset, quick=self.quick)
        else:
            chosen = self._choose(unit, dataset)
            records = evaluate(METHODS[unit.method], dataset, unit.splits, chosen, seed=unit.seed)
        for record in records:
            yield {**record, "quick": self.quick, "protocol": self.protocol}

    def _choose(self, unit: Unit, dataset: UCIDataset) -> list[Choice]:
        """Return the choice of every split, from the file or made now."""
        choices = self._kept(unit)
        missing = [k for k in unit.splits if k not in choices]
        if missing:
            found = choose(
                METHODS[unit.method],
                dataset,
                missing,
                seed=unit.seed,
                quick=self.quick,
                known=self._scores_of_family(unit),
            )
            choices |= dict(zip(missing, found, strict=True))
            self._keep(unit, missing, found)
        return [choices[k] for k in unit.splits]

    def _dataset(self, unit: Unit) -> UCIDataset:
        dataset = load_uci(unit.dataset, self.data_dir)
        if self.protocol == "literature":
            return dataset
        splits = random_splits(len(dataset.y), len(dataset.splits), unit.seed)
        return replace(dataset, splits=splits)

    def _kept(self, unit: Unit) -> dict[int, Choice]:
        rows = self.choices.read()
        keys = {k: (unit.method, unit.dataset, k, unit.seed) for k in unit.splits}
        return {k: _choice_of(rows[key]) for k, key in keys.items() if key in rows}

    def _scores_of_family(self, unit: Unit) -> Known:
        """Return what methods with the same layers have found out about candidates."""
        family = METHODS[unit.method].family
        known: dict[int, dict[str, Scores]] = {}
        stores = [store for store in (self.scores, self.choices) if store is not None]
        for row in (row for store in stores for row in store.read().values()):
            method = METHODS.get(row["method"])  # an earlier grid may have had others
            same = (row["dataset"], row["seed"]) == (unit.dataset, unit.seed)
            if same and method and method.family == family:
                known.setdefault(row["split"], {}).update(row["scores"])
        return known

    def _keep(self, unit: Unit, splits: Sequence[int], choices: Sequence[Choice]) -> None:
        rows = [
            {**unit.key(k), **choice.as_dict(), "protocol": self.protocol}
            for k, choice in zip(splits, choices, strict=True)
        ]
        self.choices.append(rows)


def _choice_of(row: Record) -> Choice:
    return Choice(row["settings"], row["noise_factor"], row["scores"], row["seconds"])


def chunk_size(name: str) -> int:
    """Return how many splits of a data set train in one unit."""
    sizes = [size for rows, size in _FEWER.items() if CATALOGUE[name].num_rows >= rows]
    return min(sizes, default=_SPLITS_AT_ONCE)


def expected_cost(unit: Unit) -> float:
    """Return what the time of a unit goes with, to deal the longest first; 0 for trees."""
    entry = CATALOGUE[unit.dataset]
    if unit.method == estimator.NAME:
        return len(unit.splits) * float(entry.num_rows)
    size = DataSize(round(0.9 * entry.num_rows), entry.num_columns)
    return len(unit.splits) * training_work(METHODS[unit.method], size)
