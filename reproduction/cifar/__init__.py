"""Adapting a pretrained ResNet-20 to JPEG images: batch norms, fine-tuning, Bayesian adapters.

Writes ``records.jsonl`` (one line per method and seed), ``choices.jsonl``, and from the records
``summary.json`` and ``README.md``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from reproduction.cifar.images import CORRUPTIONS
from reproduction.cifar.methods import METHODS
from reproduction.cifar.work import DATASET, CifarWork
from reproduction.records import Record, RecordStore
from reproduction.report import (
    heading,
    markdown_table,
    mean,
    number,
    seed_cells,
    summarise_seeds,
)
from reproduction.runner import Options, Unit, run_and_report

SEEDS = (0, 1, 2)
SCORES = ("accuracy", "nll", "ece", "corrupted_accuracy", "corrupted_nll", "corrupted_ece", "auroc")


def reproduce_cifar(options: Options, *, data_dir: str | None = None) -> Path:
    """Run what is missing and write the report; returns the folder."""
    seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    units = [
        Unit(name, DATASET, (0,), seed)
        for name in options.methods or METHODS
        for seed in (seeds[:1] if name == "as-given" else seeds)  # nothing in it is random
    ]
    choices = RecordStore(options.output / "choices.jsonl", ("method",))
    work = CifarWork(choices, data_dir, options.quick)
    return run_and_report(units, work, options, summarise, markdown)


summarise = partial(summarise_seeds, methods=METHODS, scores=SCORES)


def markdown(records: list[Record]) -> str:
    """Return the page."""
    lines = [
        ["method", "seeds", "accuracy", "NLL", "ECE", "corrupted: accuracy", "NLL", "ECE",
         "Fashion-MNIST AUROC", "trained parameters", "CPU seconds"]
    ]  # fmt: skip
    for row in summarise(records):
        sizes = [f"{row['num_parameters']:,.0f}", f"{row['cpu_seconds']:.0f}"]
        lines.append([*seed_cells(row, SCORES), *sizes])
    corrupted = ", ".join(sorted({f"{record['num_corrupted']:,}" for record in records}))
    return (
        heading("A pretrained ResNet-20 under shift: CIFAR-10 as JPEG", records)
        + "Made from `records.jsonl` by `python -m reproduction cifar`; protocol and methods: "
        "[cifar.md](../../cifar.md). Mean ± standard error over seeds. Corrupted: mean over five "
        f"corruptions and five strengths of the first {corrupted} test images.\n\n"
        + markdown_table(lines)
        + "\n## NLL of each corruption, mean over strengths\n\n"
        + markdown_table(_by_corruption(records))
    )


def _by_corruption(records: list[Record]) -> list[list[str]]:
    lines = [["method", *CORRUPTIONS]]
    for name in METHODS:
        found = [each for r in records if r["method"] == name for each in r["corruptions"]]
        if found:
            groups = [[each for each in found if each["corruption"] == c] for c in CORRUPTIONS]
            lines.append([name, *(number(mean(group, "nll"), ".3f") for group in groups)])
    return lines
