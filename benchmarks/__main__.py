"""Run the benchmarks: ``python -m benchmarks [--quick] [--only transform product ...]``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from types import ModuleType

import torch

from benchmarks import (
    adapters,
    column,
    compile,
    conv,
    estimators,
    gp,
    linearized,
    memory,
    neighbours,
    noise,
    orders,
    product,
    sharing,
    threads,
    training,
    transform,
    transforms,
    vae,
)
from benchmarks.compare import compare
from benchmarks.floors import FLOORS, judge
from benchmarks.machine import describe_machine
from benchmarks.records import Section, load, save
from benchmarks.report import write_report
from benchmarks.timing import Effort

SECTIONS: dict[str, ModuleType] = {
    "transform": transform,
    "neighbours": neighbours,
    "product": product,
    "orders": orders,
    "noise": noise,
    "threads": threads,
    "memory": memory,
    "training": training,
    "column": column,
    "conv": conv,
    "compile": compile,
    "sharing": sharing,
    "gp": gp,
    "linearized": linearized,
    "adapters": adapters,
    "transforms": transforms,
    "vae": vae,
    "estimators": estimators,
}
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run the chosen sections, write their results and print how the floors stand."""
    options = _options()
    folder = options.output or (_RESULTS / "quick" if options.quick else _RESULTS)
    if options.compare:
        compare(options.compare, folder)
        return
    torch.manual_seed(0)
    for name in options.only:
        torch.set_num_threads(options.threads)
        start = time.perf_counter()
        save(_run(name, options.quick, options.threads), folder)
        found = load(folder)
        sections = {name: found[name] for name in SECTIONS if name in found}
        write_report(sections, folder / "README.md")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    _print_floors(sections)
    print(f"tables: {folder / 'README.md'}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cells, under two minutes")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections to run"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads (1: what floors assume)")
    parser.add_argument("--output", type=Path, help="folder for JSON and Markdown")
    parser.add_argument(
        "--compare", type=Path, metavar="SRC", help="another tree to run beside this"
    )
    return parser.parse_args()


def _run(name: str, quick: bool, num_threads: int) -> Section:
    module = SECTIONS[name]
    machine = describe_machine(num_threads)
    skipped = module.missing() if hasattr(module, "missing") else ""
    effort = Effort.quick() if quick else Effort()
    cells = [] if skipped else list(module.cells(effort, quick))
    return Section(name, module.TITLE, machine, cells, skipped)


def _print_floors(sections: dict[str, Section]) -> None:
    for floor in FLOORS:
        verdict = judge(floor, sections.get(floor.section))
        case = "" if verdict.cell is None else f"{verdict.figure:8.3g}  {verdict.cell.case}"
        print(f"{verdict.word:8}{floor.section:10} {floor!s:45} {case}")


if __name__ == "__main__":
    main()
