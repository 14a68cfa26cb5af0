"""The command line of the reproduction: ``python -m reproduction {table1,figure1,...} --help``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from reproduction.cifar import reproduce_cifar
from reproduction.cifar.methods import METHODS as CIFAR_METHODS
from reproduction.cifar.work import DATASET as CIFAR
from reproduction.clinc import RUN as CLINC_RUN
from reproduction.clinc import reproduce_clinc
from reproduction.clinc.queries import DATASET as CLINC
from reproduction.deep_gp import reproduce_deep_gp
from reproduction.demo import run_demo
from reproduction.engines import BACKENDS
from reproduction.figure1 import reproduce_figure1
from reproduction.figure2 import cells, reproduce_figure2
from reproduction.gaps import PARTS, reproduce_gaps
from reproduction.gaps.methods import RUN as GAP_METHODS
from reproduction.ood import reproduce_ood
from reproduction.ood.methods import METHODS as IMAGE_METHODS
from reproduction.ood.work import DATASET as IMAGES
from reproduction.runner import Options
from reproduction.table1 import reproduce_table1
from reproduction.table1.paper import DATASETS
from reproduction.table1.rerun import comparison_table, rerun
from reproduction.table1.work import PROTOCOLS, ROWS
from reproduction.tables import reproduce_tables
from reproduction.tables.data import NUM_FOLDS
from reproduction.tables.methods import METHODS as TABLE_METHODS
from reproduction.transforms import DATA as TRANSFORM_DATA
from reproduction.transforms import reproduce_transforms
from reproduction.transforms.variants import VARIANTS
from reproduction.vae import reproduce_vae
from reproduction.vae.data import DATASETS as VAE_DATA
from reproduction.vae.methods import METHODS as VAE_METHODS
from whvi.errors import WhviError

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an experiment and return the exit code.

    0: done. 1: ``table1 --check`` found a row that disagrees. 2: a wrong call or unusable data,
    told in one line on stderr.
    """
    options = _parser().parse_args(arguments)
    try:
        found = EXPERIMENTS[options.name].run(options)
    except (WhviError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if isinstance(found, int):
        return found
    print(*found, sep="\n")
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


Option = tuple[str, dict[str, Any]]


class Experiment(NamedTuple):
    """A word of the command line.

    Attributes:
        help: What is compared.
        quick: What ``--quick`` leaves.
        run: Gets the options; returns the files to name, or an exit code.
        methods, data: Of its grid; no methods: there is none. No data: any name.
        kind: Of the data that a folder has to hold, if it needs some.
        more: Options of its own.
    """

    help: str
    quick: str
    run: Callable[[argparse.Namespace], Sequence[Path] | int]
    methods: Collection[str] = ()
    data: Collection[str] | None = None
    kind: str = ""
    more: tuple[Option, ...] = ()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m reproduction", description="The paper's experiments.")
    experiments = parser.add_subparsers(required=True, metavar="experiment", dest="name")
    for name, experiment in EXPERIMENTS.items():
        own = experiments.add_parser(name, help=experiment.help)
        own.add_argument("--quick", action="store_true", help=experiment.quick)
        own.add_argument("-o", "--output", metavar="FOLDER", help="where the results go")
        if experiment.methods:
            _add_grid(own, methods=experiment.methods, data=experiment.data)
        if experiment.kind:
            _add_data_dir(own, experiment.kind)
        for option, about in experiment.more:
            own.add_argument(option, **about)
    return parser


# How experiments run


def _report(
    reproduce: Callable[..., Path], *passed: str
) -> Callable[[argparse.Namespace], Sequence[Path]]:
    """Run an experiment that writes a page; ``passed``: its options besides those of all."""

    def run(options: argparse.Namespace) -> Sequence[Path]:
        more = {name: getattr(options, name) for name in passed}
        return [reproduce(_options(options), **more) / "README.md"]

    return run


def _table1(options: argparse.Namespace) -> Sequence[Path] | int:
    if options.protocol != "literature":
        options.name += f"-{options.protocol}"
    if options.check:
        found = rerun(_options(options), data_dir=options.data_dir)
        print(comparison_table(found))
        return 0 if all(each.agrees for each in found) else 1
    passed = ("splits", "data_dir", "protocol", "scores")
    return _report(reproduce_table1, *passed)(options)


def _figure1(options: argparse.Namespace) -> Sequence[Path]:
    return reproduce_figure1(_folder(options), seed=options.seed, quick=options.quick).files


def _deep_gp(options: argparse.Namespace) -> Sequence[Path]:
    folder = _folder(options)
    return [
        reproduce_deep_gp(folder, data_dir=options.data_dir, quick=options.quick) / "summary.json"
    ]


def _demo(options: argparse.Namespace) -> int:
    run_demo(Path(options.output or "demo_output"), quick=options.quick)
    return 0


# Options that several experiments have


def _add_data_dir(parser: argparse.ArgumentParser, kind: str) -> None:
    otherwise = ", else a download" if kind == "UCI_Datasets" else ""
    named = f"holds {kind}; by default the variable WHVI_DATA names it{otherwise}"
    parser.add_argument("--data-dir", type=_absolute, metavar="FOLDER", help=named)


def _add_grid(
    parser: argparse.ArgumentParser, *, methods: Collection[str], data: Collection[str] | None
) -> None:
    add = parser.add_argument
    add("--methods", nargs="+", choices=methods, metavar="NAME", help=f"of {', '.join(methods)}")
    named = "by default all" if data is None else f"of {', '.join(data)}"
    add("--data", nargs="+", choices=data, metavar="NAME", help=named)
    add("--seeds", nargs="+", type=_natural, metavar="K", help="by default those of the full grid")
    add(
        "--jobs",
        type=_jobs,
        metavar="K",
        help="processes, -1 for all cores; by default 1, and all of a cluster",
    )
    add("--backend", choices=BACKENDS, default="local", help="who runs: %(choices)s")
    add("--scheduler", "--address", metavar="ADDRESS",
        help="of the cluster, such as tcp://host:8786; by default it is started here")  # fmt: skip
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help="do the I-th of N parts")
    add("--no-progress", action="store_true", help="no progress bar")
    add("--report-only", action="store_true", help="compute nothing, write the report")


def _options(options: argparse.Namespace) -> Options:
    return Options(
        output=_folder(options),
        quick=options.quick,
        methods=options.methods,
        data=options.data,
        seeds=options.seeds,
        jobs=options.jobs or (1 if options.backend == "local" else -1),
        backend=options.backend,
        scheduler=options.scheduler,
        shard=options.shard,
        progress=not options.no_progress,
        report_only=options.report_only,
    )


def _folder(options: argparse.Namespace) -> Path:
    if options.output:
        return Path(options.output).absolute()
    return RESULTS / (f"{options.name}-quick" if options.quick else options.name)


def _natural(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"a whole number that is not negative, got {text!r}")


def _jobs(text: str) -> int:
    if text == "-1" or (text.isdecimal() and int(text) > 0):
        return int(text)
    raise argparse.ArgumentTypeError(f"a whole number above 0, or -1 for all, got {text!r}")


def _absolute(text: str) -> str:
    """Name a folder so that other processes find it, too."""
    return str(Path(text).expanduser().absolute())


def _splits(text: str) -> list[int]:
    """Read ``"0-4,7"`` as 0, 1, 2, 3, 4, 7."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            numbers.extend(range(int(first), int(last or first) + 1))
        except ValueError:
            message = f"splits are written like 0-4,7, got {text!r}"
            raise argparse.ArgumentTypeError(message) from None
    return numbers


def _folds(text: str) -> list[int]:
    """Read ``"0-2"``, of the folds there are."""
    folds = _splits(text)
    if not all(0 <= fold < NUM_FOLDS for fold in folds):
        raise argparse.ArgumentTypeError(f"folds are 0 to {NUM_FOLDS - 1}, got {text!r}")
    return folds


def _shard(text: str) -> tuple[int, int]:
    """Read ``"i/n"``: the i-th of n shards, counted from 1."""
    with contextlib.suppress(ValueError):
        index, count = (int(part) for part in text.split("/"))
        if 1 <= index <= count:
            return index, count
    raise argparse.ArgumentTypeError(f"a shard is written i/n with 1 ≤ i ≤ n, got {text!r}")


def _splits_option(help: str) -> Option:
    return "--splits", {"type": _splits, "metavar": "LIST", "help": help}


EXPERIMENTS = {
    "table1": Experiment(
        "regression on the UCI sets", "two splits of the four small sets, few steps", _table1,
        ROWS, DATASETS, "UCI_Datasets",
        (
            _splits_option("such as 0-4,7; by default all"),
            ("--protocol", {"choices": PROTOCOLS, "default": "literature",
                            "help": "whose 90/10 splits"}),
            ("--scores", {"metavar": "FILE",
                          "help": "choices.jsonl of an earlier grid, to keep its scores"}),
            ("--check", {"action": "store_true",
                         "help": "rerun split 0 of the WHVI rows and compare"}),
        ),
    ),
    "figure1": Experiment(
        "covariances of g and of vec(W)", "a few steps", _figure1,
        more=(("--seed", {"type": _natural, "default": 0, "help": "of data and training"}),),
    ),
    "figure2": Experiment(
        "Gaussian processes against parameters", "two sizes, one seed, little training",
        _report(reproduce_figure2), cells.METHODS, cells.DATASETS,
    ),
    "deep_gp": Experiment(
        "deep against single-layer processes", "a few steps, simulator only", _deep_gp,
        kind="UCI_Datasets",
    ),
    "gaps": Experiment(
        "between and beyond the data, UCI gap splits", "two columns of energy and yacht, few steps",
        _report(reproduce_gaps, "parts", "splits", "data_dir"), GAP_METHODS, DATASETS,
        "UCI_Datasets",
        (
            _splits_option("columns or splits such as 0-4,7"),
            ("--parts", {"nargs": "+", "choices": PARTS, "default": PARTS, "metavar": "NAME",
                         "help": f"of {', '.join(PARTS)}"}),
        ),
    ),
    "ood": Experiment(
        "Fashion-MNIST against MNIST", "one seed, a few images, one epoch",
        _report(reproduce_ood, "data_dir"), IMAGE_METHODS, (IMAGES,), "images",
    ),
    "tables": Experiment(
        "mixed tables, beside trees and networks",
        "one fold of four tables, 300 rows, little training",
        _report(reproduce_tables, "folds", "data_dir"), TABLE_METHODS, None, "tables",
        (("--folds", {"type": _folds, "metavar": "LIST",
                      "help": f"such as 0 or 0-2; of {NUM_FOLDS}, all"}),),
    ),
    "clinc": Experiment(
        "adapters on a sentence encoder, CLINC150", "a few queries, one epoch",
        _report(reproduce_clinc, "data_dir"), CLINC_RUN, (CLINC,), "text",
    ),
    "cifar": Experiment(
        "adapters on a ResNet, CIFAR-10 as JPEG", "a few images, one epoch",
        _report(reproduce_cifar, "data_dir"), CIFAR_METHODS, (CIFAR,), "images",
    ),
    "transforms": Experiment(
        "which transform to choose",
        "one split of a table and of an image task, hardly any training",
        _report(reproduce_transforms, "splits", "data_dir"), VARIANTS, TRANSFORM_DATA,
        "UCI_Datasets and images", (_splits_option("by default 0-4, of images 0-1"),),
    ),
    "vae": Experiment(
        "autoencoders with random weights", "one seed, a few images, one epoch",
        _report(reproduce_vae, "data_dir"), VAE_METHODS, VAE_DATA, "images",
    ),
    "demo": Experiment("the main job on simulated data", "a few steps", _demo),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
