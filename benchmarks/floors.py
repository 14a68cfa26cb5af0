"""The floors: what the library promises, one row each, for one thread unless it says otherwise.

A floor is a bound on the quotient of two values of a cell (or on one value), in every cell that
it covers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.records import Case, Cell, Section

Wanted = str | int | tuple[str | int, ...]


class Floor(NamedTuple):
    """One promise.

    Attributes:
        section: Where its cells are.
        where: Value, or values, that a cell's case must have.
        above, below: Names of the values to divide; no ``below`` means the value itself.
        at_least, at_most: The bound, one of them.
    """

    section: str
    where: dict[str, Wanted]
    above: str
    below: str = ""
    at_least: float | None = None
    at_most: float | None = None

    def covers(self, case: Case) -> bool:
        """Tell whether a cell with this case is meant."""
        return all(
            case.get(key) in (wanted if isinstance(wanted, tuple) else (wanted,))
            for key, wanted in self.where.items()
        )

    def figure(self, cell: Cell) -> float | None:
        """Return the number to compare, if the cell has it."""
        above, below = cell.values.get(self.above), cell.values.get(self.below)
        if above is None or (self.below and below is None):
            return None
        return above if not self.below or below is None else above / below

    def holds(self, figure: float) -> bool:
        """Compare a figure with the bound."""
        if self.at_least is not None:
            return figure >= self.at_least
        return self.at_most is not None and figure <= self.at_most

    def worse(self, figure: float) -> float:
        """Return a key that is larger for worse figures."""
        return -figure if self.at_least is not None else figure

    def __str__(self) -> str:
        quantity = f"{self.above} ÷ {self.below}" if self.below else self.above
        bound = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        return f"{quantity} {bound}"


class Verdict(NamedTuple):
    """A floor, the cell that came worst and its figure."""

    floor: Floor
    cell: Cell | None
    figure: float

    @property
    def word(self) -> str:
        """``PASS``, ``MISS`` or ``not run``."""
        if self.cell is None:
            return "not run"
        return "PASS" if self.floor.holds(self.figure) else "MISS"


def judge(floor: Floor, section: Section | None) -> Verdict:
    """Find the worst cell under a floor."""
    covered = [cell for cell in section.cells if floor.covers(cell.case)] if section else []
    found = [(floor.figure(cell), cell) for cell in covered]
    known = [(figure, cell) for figure, cell in found if figure is not None]
    if not known:
        return Verdict(floor, None, float("nan"))
    figure, cell = max(known, key=lambda pair: floor.worse(pair[0]))
    return Verdict(floor, cell, figure)


def floors_of(section: str, cell: Cell) -> Iterator[tuple[Floor, float]]:
    """Yield the floors that cover a cell, with its figures."""
    for floor in FLOORS:
        if floor.section == section and floor.covers(cell.case):
            figure = floor.figure(cell)
            if figure is not None:
                yield floor, figure


def _product(size: int, rival: str, bound: float) -> Floor:
    where: dict[str, Wanted] = {"run": "forward + backward", "batch": 64, "D": size}
    return Floor("product", where, "nn.Linear", rival, at_least=bound)


def _fit(rows: int, quantity: str = "processor") -> dict[str, Wanted]:
    return {"quantity": quantity, "work": "fit", "rows": rows}


_PREDICTION: dict[str, Wanted] = {"quantity": "processor", "work": "predict", "rows": 1_000_000}
_INTO_OUTPUT: dict[str, Wanted] = {
    "mode": "output",
    "dtype": "float32",
    "D": (128, 256, 512, 1024, 2048, 4096),
}
_POSTERIOR: dict[str, Wanted] = {"work": "posterior", "rows": 10_000}
_OF_12_OR_20 = (320, 384, 640, 768, 1536, 2560, 3072, 5120)
_PASSES = ("product", "product, noise per row")

FLOORS = [
    Floor("transform", {**_INTO_OUTPUT, "entries": "2^20"}, "whvi", "memcpy", at_most=2.2),
    Floor("transform", {**_INTO_OUTPUT, "entries": "2^24"}, "whvi", "memcpy", at_most=1.3),
    Floor("transform", _INTO_OUTPUT, "Kronecker matmul", "whvi", at_least=6),
    Floor("transform", _INTO_OUTPUT, "eager butterflies", "whvi", at_least=20),
    Floor("neighbours", {}, "whvi", "mean of D/2 and 2 D", at_most=1.15),
    _product(64, "whvi", 1),
    _product(128, "whvi", 2),
    _product(256, "whvi", 5),
    _product(1024, "whvi", 30),
    _product(2048, "whvi", 70),
    _product(128, "whvi, noise per row", 1.2),
    _product(1024, "whvi, noise per row", 20),
    Floor("orders", {"D": _OF_12_OR_20}, "whvi", "padded", at_most=1),
    Floor("orders", {}, "whvi", "next power of two", at_most=1),
    Floor(
        "noise", {"entries": ("2^13", "2^16", "2^20", "2^24")}, "torch.randn", "whvi", at_least=2.5
    ),
    Floor("threads", {"work": ("transform", *_PASSES)}, "1 thread", "2 threads", at_least=1.7),
    Floor("memory", {"quantity": "peak memory"}, "whvi", at_most=1024),
    *[
        Floor("memory", {"quantity": "time"}, f"2^{power + 1}", f"2^{power}", at_most=2.3)
        for power in range(16, 21)
    ],
    Floor("training", {"width": 128, "replicas": 1}, "whvi.fit", "nn.Linear", at_most=1.3),
    Floor("training", {"width": 1024, "replicas": 1}, "whvi.fit", "nn.Linear", at_most=0.1),
    Floor("training", {"width": 128, "replicas": 1}, "whvi.elbo", "nn.Linear", at_most=1.5),
    Floor("training", {"width": 128, "replicas": 20}, "one of 20", "one alone", at_most=0.2),
    *[
        Floor("conv", {"quantity": "time", "channels": width}, "whvi", "nn.Conv2d", at_most=bound)
        for width, bound in ((16, 2.5), (32, 2.0), (64, 1.7), (128, 1.5), (256, 1.4))
    ],
    Floor("conv", {"quantity": "peak memory"}, "whvi", "nn.Conv2d", at_most=1.4),
    Floor("compile", {"gradients": "False"}, "compiled", "eager", at_most=1),
    Floor("column", {}, "whvi", "nn.Linear", at_most=1),
    Floor("sharing", {"quantity": "99th percentile"}, "2 threads", "1 thread", at_most=2),
    Floor(
        "sharing", {"quantity": "seconds"}, "beside a program of two threads", "alone", at_most=3
    ),
    Floor("gp", {"work": "fit", "rows": 10_000}, "2 threads", at_most=15),
    Floor("gp", {"work": "fit", "rows": 200_000}, "2 threads", at_most=60),
    Floor("gp", {"work": "mean", "rows": 100_000}, "2 threads", at_most=1),
    Floor("linearized", _POSTERIOR, "laplace-torch, torch.func", "whvi", at_least=10),
    Floor("linearized", _POSTERIOR, "whvi, with evidence", "training", at_most=3),
    Floor("linearized", {"work": "prediction"}, "whvi", "64 weight draws", at_most=3),
    Floor("adapters", {"quantity": "convert"}, "whvi", at_most=1),
    Floor("adapters", {"quantity": "forward"}, "whvi", "frozen, plain", at_most=1.5),
    Floor("adapters", {"quantity": "step"}, "whvi", "LoRA (peft)", at_most=1),
    Floor("transforms", {"D": 1024}, "nn.Linear", "dct", at_least=8),
    Floor("transforms", {"D": 1024}, "nn.Linear", "hartley", at_least=8),
    Floor("transforms", {"D": (1024, 2048, 4096)}, "butterfly", "hadamard", at_most=3),
    Floor("vae", {"width": 512}, "whvi", "dense", at_most=1.3),
    Floor("vae", {"width": 2048}, "whvi", "dense", at_most=0.5),
    Floor("estimators", _fit(1_000), "whvi", "CatBoost", at_most=14),
    Floor("estimators", _fit(40_000), "whvi", "CatBoost", at_most=10),
    Floor("estimators", _fit(40_000), "whvi", at_most=60),
    Floor("estimators", _fit(1_000_000), "whvi", at_most=600),
    Floor("estimators", _fit(1_000_000, "peak memory"), "whvi", at_most=4096),
    Floor("estimators", _PREDICTION, "whvi", at_most=40),
]
