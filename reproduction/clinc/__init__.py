"""Bayesian adapters on a sentence encoder: CLINC150 and queries that belong to no intent.

Writes ``records.jsonl`` (one line per method and seed), ``choices.jsonl`` (settings chosen on the
validation queries), and from the records ``summary.json`` and ``README.md``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from reproduction.clinc.methods import ENSEMBLES, METHODS, TRAININGS, missing_package
from reproduction.clinc.queries import DATASET
from reproduction.clinc.work import ClincWork
from reproduction.records import Record, RecordStore
from reproduction.report import (
    heading,
    markdown_table,
    seed_cells,
    summarise_seeds,
)
from reproduction.runner import Options, Unit, installed, run_and_report, run_units

SEEDS = (0, 1, 2, 3, 4)
SCORES = ("accuracy", "nll", "ece", "brier", "auroc", "aupr")
_OTHERS = ("num_parameters", "num_bytes", "cpu_seconds")
RUN = (*TRAININGS, *ENSEMBLES)
"""What can be asked for; a training makes the records of all its methods."""
_PUBLISHED = (
    ("BERT-base, one network", 0.965, 0.186, 0.0218, 0.942),
    ("BERT-base, MC dropout", 0.965, 0.171, 0.0170, 0.951),
    ("BERT-base, SNGP", 0.969, 0.139, 0.0104, 0.969),
    ("BERT-base, ensemble of ten", 0.975, 0.169, 0.0128, 0.958),
)


def reproduce_clinc(options: Options, *, data_dir: str | None = None) -> Path:
    """Run what is missing and write the report; returns the folder."""
    seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    possible = installed(METHODS, missing_package, options)
    present = [name for name in RUN if name in possible and name in (options.methods or RUN)]
    work = ClincWork(str(options.output), data_dir, options.quick)
    alone = [Unit(name, DATASET, (0,), k) for name in present if name in TRAININGS for k in seeds]
    run_units(alone, work, RecordStore(options.output / "records.jsonl"), options)
    together = [Unit(name, DATASET, (0,), 0) for name in present if name in ENSEMBLES]
    return run_and_report(together if len(seeds) > 1 else (), work, options, summarise, markdown)


summarise = partial(summarise_seeds, methods=METHODS, scores=SCORES, others=_OTHERS)


def markdown(records: list[Record]) -> str:
    """Return the page."""
    head = ["method", "seeds", "accuracy", "NLL", "ECE", "Brier", "out-of-scope AUROC", "AUPR",
            "trained parameters", "MB beside the encoder", "CPU seconds"]  # fmt: skip
    lines = [head]
    for row in summarise(records):
        sizes = [f"{row['num_parameters']:,.0f}", f"{row['num_bytes'] / 1e6:.2f}"]
        lines.append([*seed_cells(row, SCORES), *sizes, f"{row['cpu_seconds']:.0f}"])
    published = [["published, BERT-base (110 M)", "accuracy", "NLL", "ECE", "out-of-scope AUROC"]]
    published += [[name, *(f"{value:.4g}" for value in values)] for name, *values in _PUBLISHED]
    return (
        heading("Bayesian adapters on a sentence encoder: CLINC150", records)
        + "Made from `records.jsonl` by `python -m reproduction clinc`; protocol and methods: "
        "[clinc.md](../../clinc.md). Mean ± standard error over seeds. AUROC and AUPR of the "
        "entropy of the predictive: 1,000 out-of-scope queries against the 4,500 test queries.\n\n"
        + markdown_table(lines)
        + "\nFrom the repository google/uncertainty-baselines, for comparison:\n\n"
        + markdown_table(published)
    )
