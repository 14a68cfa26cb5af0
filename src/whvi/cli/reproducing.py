"""``whvi reproduce``: tables and figures of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whvi.errors import ConfigError

_OF_TABLE1 = ("splits", "protocol", "shard", "data_dir", "scores")


@dataclass(frozen=True)
class ReproduceOptions:
    """What ``whvi reproduce`` was asked for; empty means the experiment's own default."""

    output: str | None = None
    quick: bool = False
    methods: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    splits: str | None = None
    protocol: str = "literature"
    seeds: tuple[str, ...] = ()
    jobs: int = 1
    shard: str = "1/1"
    data_dir: str | None = None
    scores: str | None = None
    quiet: bool = False

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds as numbers."""
        try:
            return tuple(int(seed) for seed in self.seeds)
        except ValueError:
            raise ConfigError(f"--seeds takes whole numbers, got {','.join(self.seeds)}") from None

    def refuse(self, what: str, *names: str) -> None:
        """Refuse options that ``what`` does not have, if they were given."""
        plain = ReproduceOptions()
        given = [name for name in names if getattr(self, name) != getattr(plain, name)]
        if given:
            raise ConfigError(f"{what} has no option --{given[0].replace('_', '-')}")


def reproduce_paper(what: str, options: ReproduceOptions) -> None:
    """Run one experiment and print what it wrote."""
    output = options.output or f"results/{what}{'-quick' if options.quick else ''}"
    {"table1": _table1, "figure1": _figure1, "figure2": _figure2}[what](output, options)


def _table1(output: str, options: ReproduceOptions) -> None:
    from whvi.experiments.runner import parse_shard
    from whvi.experiments.table1 import default_folder, parse_splits, reproduce_table1

    if options.output is None:
        output = default_folder(options.protocol, quick=options.quick)
    given: dict[str, Any] = {}
    if options.methods:
        given["methods"] = options.methods
    if options.data:
        given["datasets"] = options.data
    if options.splits is not None:
        given["splits"] = parse_splits(options.splits)
    if options.seeds:
        given["seeds"] = options.seed_numbers
    folder = reproduce_table1(
        output,
        quick=options.quick,
        protocol=options.protocol,
        jobs=options.jobs,
        shard=parse_shard(options.shard),
        data_dir=options.data_dir,
        scores=options.scores,
        progress=not options.quiet,
        **given,
    )
    print(folder / "README.md")


def _figure1(output: str, options: ReproduceOptions) -> None:
    options.refuse("figure1", "methods", "data", "jobs", *_OF_TABLE1)
    from whvi.experiments.figure1 import reproduce_figure1

    if len(options.seeds) > 1:
        raise ConfigError(f"figure1 has one seed, got {','.join(options.seeds)}")
    seed = options.seed_numbers[0] if options.seeds else 0
    for path in reproduce_figure1(output, seed=seed, quick=options.quick).files:
        print(path)


def _figure2(output: str, options: ReproduceOptions) -> None:
    options.refuse("figure2", *_OF_TABLE1)
    from whvi.experiments.figure2 import reproduce_figure2

    reproduce_figure2(
        output,
        quick=options.quick,
        methods=options.methods or None,
        data=options.data or None,
        seeds=options.seed_numbers or None,
        jobs=options.jobs,
        progress=not options.quiet,
    )
    print(output)
