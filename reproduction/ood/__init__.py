"""Out of distribution, images: trained on Fashion-MNIST, who notices MNIST?

Writes ``records.jsonl`` (one line per method and seed), ``choices.jsonl`` (settings chosen on
held-out training images), and from the records ``summary.json`` and ``README.md``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from reproduction.ood.methods import METHODS, missing_package
from reproduction.ood.work import DATASET, OodWork
from reproduction.records import Record, RecordStore
from reproduction.report import (
    heading,
    markdown_table,
    seed_cells,
    summarise_seeds,
)
from reproduction.runner import Options, Unit, installed, run_and_report

SEEDS = (0, 1, 2, 3, 4)
SCORES = ("auroc", "accuracy", "nll", "ece")


def reproduce_ood(options: Options, *, data_dir: str | None = None) -> Path:
    """Run what is missing and write the report; returns the folder."""
    seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    present = installed(options.methods or METHODS, missing_package, options)
    units = [Unit(name, DATASET, (0,), seed) for name in present for seed in seeds]
    choices = RecordStore(options.output / "choices.jsonl", ("candidates",))
    work = OodWork(choices, data_dir, options.quick)
    return run_and_report(units, work, options, summarise, markdown)


summarise = partial(summarise_seeds, methods=METHODS, scores=SCORES)


def markdown(records: list[Record]) -> str:
    """Return the page."""
    lines = [["method", "seeds", "AUROC", "accuracy", "NLL", "ECE", "parameters", "CPU seconds"]]
    for row in summarise(records):
        sizes = [f"{row['num_parameters']:,.0f}", f"{row['cpu_seconds']:.0f}"]
        lines.append([*seed_cells(row, SCORES), *sizes])
    return (
        heading("Out of distribution: Fashion-MNIST against MNIST", records)
        + "Made from `records.jsonl` by `python -m reproduction ood`; protocol, network and score: "
        "[ood.md](../../ood.md). Mean ± standard error over seeds. AUROC of the mutual information "
        "between 10,000 test images of each set; the other scores are those of Fashion-MNIST.\n\n"
        + markdown_table(lines)
    )
