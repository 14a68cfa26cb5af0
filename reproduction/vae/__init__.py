"""Autoencoders with random weights: binarised MNIST, and who notices what is not Fashion-MNIST.

Writes ``models`` and ``trainings.jsonl`` (one line per trained model), ``records.jsonl`` (one per
method, set and seed), and from them ``summary.json``, ``README.md`` and pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reproduction.records import Record
from reproduction.report import (
    SummaryRow,
    grouped,
    heading,
    markdown_table,
    mean,
    number,
    std,
    with_error,
)
from reproduction.runner import Options, Unit, run_and_report
from reproduction.vae.data import DATASETS, load
from reproduction.vae.figure import draw_interpolation, draw_reconstructions, draw_samples
from reproduction.vae.methods import METHODS
from reproduction.vae.scores import MAIN_SCORE, QUICK, Sizes
from reproduction.vae.work import VaeWork
from whvi.models import Vae, load_vae

SEEDS = {"mnist": (0, 1, 2), "fashion-mnist": (0,)}
_SCORES = ("likelihood", "waic", "disagreement")
_PICTURES = ("samples", "reconstructions", "interpolation")


def reproduce_vae(options: Options, *, data_dir: str | None = None) -> Path:
    """Run what is missing and write the report; returns the folder."""
    folder = options.output
    sizes = QUICK if options.quick else Sizes()
    units = plan(options)
    if not options.report_only:
        print(f"{len(units)} cells of {sizes.epochs} epochs; models and records in {folder}")
    work = VaeWork(str(folder), sizes, data_dir, options.quick)
    run_and_report(units, work, options, summarise, markdown)
    draw_pictures(folder, data_dir, options.quick)
    return folder


def plan(options: Options) -> list[Unit]:
    """List the cells: three seeds on MNIST, one on Fashion-MNIST, where the ensemble is too."""
    return [
        Unit(name, dataset, (0,), seed)
        for dataset in options.data or DATASETS
        for name in options.methods or METHODS
        if dataset in METHODS[name].datasets
        for seed in options.seeds or (SEEDS[dataset][:1] if options.quick else SEEDS[dataset])
    ]


def draw_pictures(folder: Path, data_dir: str | None, quick: bool) -> None:
    """Draw those sets of which models are in the folder, with seed 0."""
    for dataset in DATASETS:
        models = trained(folder, dataset)
        if models:
            test = load(dataset, data_dir, quick).test
            draw_samples(models, folder / f"samples-{dataset}")
            draw_reconstructions(models, test, folder / f"reconstructions-{dataset}")
            draw_interpolation(models, test, folder / f"interpolation-{dataset}")


def trained(folder: Path, dataset: str) -> dict[str, Vae]:
    """Return the single models with seed 0, by method."""
    paths = {
        name: folder / "models" / f"{dataset}-{method.layer}-0.safetensors"
        for name, method in METHODS.items()
        if method.num_members == 1
    }
    return {name: load_vae(path) for name, path in paths.items() if path.exists()}


# The page ----------------------------------------------------------------------------------------


def summarise(records: Iterable[Record]) -> list[SummaryRow]:
    """Average the records of every set and method over seeds."""
    cells = grouped(records, "dataset", "method")
    ordered = [(d, m) for d in DATASETS for m in METHODS if (d, m) in cells]
    return [{"dataset": d, "method": m, **_row(cells[d, m])} for d, m in ordered]


def _row(records: list[Record]) -> SummaryRow:
    first = records[0]
    found: SummaryRow = {
        "num_seeds": len(records),
        "epochs": first["epochs"],
        "num_parameters": first["num_parameters"],
        "seconds_per_epoch": mean(records, "seconds_per_epoch"),
        "cpu_seconds": sum(r["cpu_seconds"] for r in records),
    }
    for name in ("nll_1", "nll_500", "nll_5000"):
        if name in first:
            found[f"{name}_rows"] = first[f"{name}_rows"]
            found[name], found[f"{name}_std"] = mean(records, name), std(records, name)
    for name in ("reconstruction", "latent_kl", "decoder_kl", "encoder_kl", "elbo_per_image"):
        found[name] = mean(records, name)
    for outsider in ("mnist", "shuffled"):
        aurocs = [r[f"auroc_{outsider}"] for r in records if f"auroc_{outsider}" in r]
        for score in aurocs[0] if aurocs else ():
            found[f"auroc_{outsider}_{score}"] = sum(a[score] for a in aurocs) / len(aurocs)
    return found


def markdown(records: list[Record]) -> str:
    """Return the page."""
    rows = summarise(records)
    pictures = "".join(
        f"![{kind}, {dataset}]({kind}-{dataset}.png)\n\n"
        for dataset in dict.fromkeys(row["dataset"] for row in rows)
        for kind in _PICTURES
    )
    return (
        heading("Variational autoencoders with random weights", records)
        + "Made from `records.jsonl` by `python -m reproduction vae`; protocol and scores: "
        "[vae.md](../../vae.md).\n\n## Negative log-likelihood (nats per test image)\n\n"
        + markdown_table(_likelihoods(rows))
        + "\n## Terms of the ELBO (nats; per training image, those of weights in all)\n\n"
        + markdown_table(_terms(rows))
        + "\n## Out of distribution: AUROC, trained on Fashion-MNIST\n\n"
        + f"The main score, declared beforehand, is the {MAIN_SCORE}, for all methods.\n\n"
        + markdown_table(_outsiders(rows))
        + "\n## Pictures\n\n"
        + pictures.rstrip("\n")
        + "\n"
    )


def _likelihoods(rows: list[SummaryRow]) -> list[list[str]]:
    names = ("nll_1", "nll_500", "nll_5000")
    lines = [
        ["set", "method", "seeds", "epochs", "1 sample", "500", "5,000", "parameters",
         "seconds per epoch"]
    ]  # fmt: skip
    for row in rows:
        if "nll_1" in row:
            cells = [_bound(row, n) for n in names]
            start = [row["dataset"], row["method"], str(row["num_seeds"]), str(row["epochs"])]
            end = [f"{row['num_parameters']:,}", f"{row['seconds_per_epoch']:.1f}"]
            lines.append([*start, *cells, *end])
    return lines


def _bound(row: SummaryRow, name: str) -> str:
    if name not in row:
        return "–"
    bound = with_error(row[name], row[f"{name}_std"], row["num_seeds"], ".2f")
    return f"{bound} ({row[f'{name}_rows']:,} images)"


def _terms(rows: list[SummaryRow]) -> list[list[str]]:
    names = ("reconstruction", "latent_kl", "decoder_kl", "encoder_kl", "elbo_per_image")
    lines = [["set", "method", "log p(x given z)", "KL of latents", "KL of decoder weights",
              "KL of encoder weights", "ELBO per image"]]  # fmt: skip
    for row in rows:
        if "nll_1" in row:
            cells = [number(row[n], ".1f") for n in names]
            lines.append([row["dataset"], row["method"], *cells])
    return lines


def _outsiders(rows: list[SummaryRow]) -> list[list[str]]:
    lines = [["outsiders", "method", *_SCORES]]
    for outsider in ("mnist", "shuffled"):
        for row in rows:
            if f"auroc_{outsider}_likelihood" in row:
                cells = [_cell(row.get(f"auroc_{outsider}_{score}")) for score in _SCORES]
                lines.append([outsider, row["method"], *cells])
    return lines


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.4f}"
