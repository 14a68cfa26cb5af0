"""The command line of the reproduction: ``python -m reproduction {table1,figure1,...} --help``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

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
        code: int = options.run(options)
    except (WhviError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m reproduction", description="The paper's experiments.")
    experiments = parser.add_subparsers(required=True, metavar="experiment")
    _add_table1(experiments.add_parser("table1", help="regression on the UCI sets"))
    _add_figure1(experiments.add_parser("figure1", help="covariances of g and of vec(W)"))
    _add_figure2(experiments.add_parser("figure2", help="Gaussian processes against parameters"))
    _add_deep_gp(experiments.add_parser("deep_gp", help="deep against single-layer processes"))
    _add_gaps(experiments.add_parser("gaps", help="between and beyond the data, UCI gap splits"))
    _add_ood(experiments.add_parser("ood", help="Fashion-MNIST against MNIST"))
    _add_tables(experiments.add_parser("tables", help="mixed tables, beside trees and networks"))
    _add_clinc(experiments.add_parser("clinc", help="adapters on a sentence encoder, CLINC150"))
    _add_cifar(experiments.add_parser("cifar", help="adapters on a ResNet, CIFAR-10 as JPEG"))
    _add_transforms(experiments.add_parser("transforms", help="which transform to choose"))
    _add_vae(experiments.add_parser("vae", help="autoencoders with random weights"))
    _add_demo(experiments.add_parser("demo", help="the main job on simulated data"))
    return parser


# One function per experiment: its options, and how it runs


def _add_table1(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="two splits of the four small sets, few steps")
    _add_grid(parser, methods=ROWS, data=DATASETS)
    _add_data_dir(parser)
    add = parser.add_argument
    add("--splits", type=_splits, metavar="LIST", help="such as 0-4,7; by default all")
    add("--protocol", choices=PROTOCOLS, default="literature", help="whose 90/10 splits")
    add("--scores", metavar="FILE", help="choices.jsonl of an earlier grid, to keep its scores")
    add("--check", action="store_true", help="rerun split 0 of the WHVI rows and compare")

    def run(options: argparse.Namespace) -> int:
        name = "table1" if options.protocol == "literature" else f"table1-{options.protocol}"
        if options.check:
            found = rerun(_options(options, name), data_dir=options.data_dir)
            print(comparison_table(found))
            return 0 if all(each.agrees for each in found) else 1
        folder = reproduce_table1(
            _options(options, name),
            splits=options.splits,
            data_dir=options.data_dir,
            protocol=options.protocol,
            scores=options.scores,
        )
        return _done(folder / "README.md")

    parser.set_defaults(run=run)


def _add_figure1(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="a few steps")
    parser.add_argument("--seed", type=_natural, default=0, help="of data and training")

    def run(options: argparse.Namespace) -> int:
        folder = _folder(options, "figure1")
        return _done(*reproduce_figure1(folder, seed=options.seed, quick=options.quick).files)

    parser.set_defaults(run=run)


def _add_figure2(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="two sizes, one seed, little training")
    _add_grid(parser, methods=cells.METHODS, data=cells.DATASETS)

    def run(options: argparse.Namespace) -> int:
        return _done(reproduce_figure2(_options(options, "figure2")) / "README.md")

    parser.set_defaults(run=run)


def _add_deep_gp(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="a few steps, simulator only")
    _add_data_dir(parser)

    def run(options: argparse.Namespace) -> int:
        folder = _folder(options, "deep_gp")
        reproduce_deep_gp(folder, data_dir=options.data_dir, quick=options.quick)
        return _done(folder / "summary.json")

    parser.set_defaults(run=run)


def _add_gaps(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="two columns of energy and yacht, few steps")
    _add_grid(parser, methods=GAP_METHODS, data=DATASETS)
    _add_data_dir(parser)
    add = parser.add_argument
    add("--splits", type=_splits, metavar="LIST", help="columns or splits such as 0-4,7")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="NAME",
        help=f"of {', '.join(PARTS)}")  # fmt: skip

    def run(options: argparse.Namespace) -> int:
        folder = reproduce_gaps(
            _options(options, "gaps"),
            parts=options.parts,
            splits=options.splits,
            data_dir=options.data_dir,
        )
        return _done(folder / "README.md")

    parser.set_defaults(run=run)


def _add_plain(
    parser: argparse.ArgumentParser,
    name: str,
    reproduce: Callable[..., Path],
    *,
    quick: str,
    grid: tuple[Collection[str], Collection[str]],
    kind: str,
) -> None:
    """Add an experiment without options of its own; ``grid`` has its methods and data."""
    _add_common(parser, quick=quick)
    _add_grid(parser, methods=grid[0], data=grid[1])
    _add_data_dir(parser, kind=kind)

    def run(options: argparse.Namespace) -> int:
        folder = reproduce(_options(options, name), data_dir=options.data_dir)
        return _done(folder / "README.md")

    parser.set_defaults(run=run)


def _add_ood(parser: argparse.ArgumentParser) -> None:
    grid, quick = (IMAGE_METHODS, (IMAGES,)), "one seed, a few images, one epoch"
    _add_plain(parser, "ood", reproduce_ood, quick=quick, grid=grid, kind="images")


def _add_clinc(parser: argparse.ArgumentParser) -> None:
    grid, quick = (CLINC_RUN, (CLINC,)), "a few queries, one epoch"
    _add_plain(parser, "clinc", reproduce_clinc, quick=quick, grid=grid, kind="text")


def _add_cifar(parser: argparse.ArgumentParser) -> None:
    grid, quick = (CIFAR_METHODS, (CIFAR,)), "a few images, one epoch"
    _add_plain(parser, "cifar", reproduce_cifar, quick=quick, grid=grid, kind="images")


def _add_vae(parser: argparse.ArgumentParser) -> None:
    grid, quick = (VAE_METHODS, VAE_DATA), "one seed, a few images, one epoch"
    _add_plain(parser, "vae", reproduce_vae, quick=quick, grid=grid, kind="images")


def _add_tables(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="one fold of four tables, 300 rows, little training")
    _add_grid(parser, methods=TABLE_METHODS, data=None)
    _add_data_dir(parser, kind="tables")
    parser.add_argument(
        "--folds", type=_folds, metavar="LIST", help=f"such as 0 or 0-2; of {NUM_FOLDS}, all"
    )

    def run(options: argparse.Namespace) -> int:
        folder = reproduce_tables(
            _options(options, "tables"), folds=options.folds, data_dir=options.data_dir
        )
        return _done(folder / "README.md")

    parser.set_defaults(run=run)


def _add_transforms(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="one split of a table and of an image task, hardly any training")
    _add_grid(parser, methods=VARIANTS, data=TRANSFORM_DATA)
    _add_data_dir(parser, kind="UCI_Datasets and images")
    add = parser.add_argument
    add("--splits", type=_splits, metavar="LIST", help="by default 0-4, of images 0-1")

    def run(options: argparse.Namespace) -> int:
        folder = reproduce_transforms(
            _options(options, "transforms"), splits=options.splits, data_dir=options.data_dir
        )
        return _done(folder / "README.md")

    parser.set_defaults(run=run)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, quick="a few steps")

    def run(options: argparse.Namespace) -> int:
        run_demo(Path(options.output or "demo_output"), quick=options.quick)
        return 0

    parser.set_defaults(run=run)


# Options that several experiments have


def _add_common(parser: argparse.ArgumentParser, *, quick: str) -> None:
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where the results go")


def _add_data_dir(parser: argparse.ArgumentParser, *, kind: str = "UCI_Datasets") -> None:
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


def _options(options: argparse.Namespace, name: str) -> Options:
    return Options(
        output=_folder(options, name),
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


def _folder(options: argparse.Namespace, name: str) -> Path:
    if options.output:
        return Path(options.output).absolute()
    return RESULTS / (f"{name}-quick" if options.quick else name)


def _done(*files: Path) -> int:
    print(*files, sep="\n")
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
