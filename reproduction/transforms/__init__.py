"""Which transform is best with a posterior? The variants on tables and on images.

Writes ``records.jsonl`` (one line per variant, data set and split), and from the records
``summary.json``, ``README.md`` and the figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction.data import CATALOGUE
from reproduction.records import Record, RecordStore
from reproduction.runner import Options, Unit, plan_units, run_units
from reproduction.table1.paper import DATASETS
from reproduction.transforms.images import NUM_TRAIN, TASKS, image_records
from reproduction.transforms.report import write_page
from reproduction.transforms.tables import table_records
from reproduction.transforms.variants import VARIANTS

DATA = (*DATASETS, *TASKS)
TABLE_SPLITS, IMAGE_SPLITS = range(5), range(2)
QUICK_DATA = ("boston", "mnist-permuted")
_NUM_IMAGES = 60_000


@dataclass(frozen=True)
class TransformsWork:
    """Computes the records of a unit.

    Attributes:
        data_dir: Folder that holds ``UCI_Datasets`` and ``images``.
        quick: A test of the machinery.
    """

    data_dir: str | None = None
    quick: bool = False

    def __call__(self, unit: Unit) -> Iterator[Record]:
        """Yield the records of ``unit``."""
        run = image_records if unit.dataset in TASKS else table_records
        yield from run(unit, self.data_dir, quick=self.quick)


def reproduce_transforms(
    options: Options, *, splits: Sequence[int] | None = None, data_dir: str | None = None
) -> Path:
    """Run what is missing and write the report; returns the folder.

    Args:
        options: ``quick`` is one split of a table and of an image task with hardly any training.
        splits: Their numbers; by default five of every table and two of every image task.
        data_dir: Folder that holds ``UCI_Datasets`` and ``images``.
    """
    data = options.data or (QUICK_DATA if options.quick else DATA)
    numbers = {name: _split_numbers(name, splits, quick=options.quick) for name in data}
    units = plan_units(
        options.methods or tuple(VARIANTS),
        numbers,
        seeds=options.seeds or (0,),
        chunk=lambda name: 1 if name in TASKS else len(TABLE_SPLITS),
    )
    units.sort(key=lambda unit: data.index(unit.dataset))  # all variants of a set, then the next
    store = RecordStore(options.output / "records.jsonl")
    print(f"{sum(len(unit.splits) for unit in units)} records of {len(numbers)} data sets")
    run_units(units, TransformsWork(data_dir, options.quick), store, options)
    write_page(list(store.read().values()), options.output)
    return options.output


def _split_numbers(name: str, splits: Sequence[int] | None, *, quick: bool) -> list[int]:
    """Return the numbers that this data set has."""
    is_task = name in TASKS
    usual = IMAGE_SPLITS if is_task else TABLE_SPLITS
    if splits is None:
        return list(usual[:1] if quick else usual)
    available = range(_NUM_IMAGES // NUM_TRAIN if is_task else CATALOGUE[name].num_splits)
    return [k for k in splits if k in available]
