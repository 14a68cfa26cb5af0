r"""The cells of Figure 2: which model, with how many parameters.

A structured model of side ``√M`` sets the budget: ``4√M`` numbers with diagonal covariance,
``3√M + √M(√M+1)/2`` with full covariance. Every other method gets the smallest size that has at
least as many (the paper: "rounded up"). Lengthscales, variance and noise, which all have alike, do
not count; locations of inducing points count in one half of the sparse GP's cells and not in the
other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reproduction.figure2.models import InducingBasis, waves
from whvi.errors import ConfigError
from whvi.gp.basis import Basis, ColumnWeights, PlainWeights

METHODS = ("whvi", "fourier", "sparse-spectrum", "sparse-gp")
DATASETS = ("borehole", "robot_arm", "piston", "otl_circuit", "friedman")
SIDES = {"diagonal": (8, 16, 32, 64, 128), "full": (8, 16, 32, 64)}
QUICK_SIDES = {"diagonal": (8, 16), "full": (8, 16)}


@dataclass(frozen=True)
class Cell:
    """A curve of the figure: a method, the covariance of its ``q``, and what counts."""

    method: str
    covariance: str
    count_inducing: bool = True

    @property
    def name(self) -> str:
        """Such as ``sparse-gp/full/uncounted``."""
        return "/".join(
            [self.method, self.covariance, *([] if self.count_inducing else [UNCOUNTED])]
        )

    @classmethod
    def of_name(cls, name: str) -> Cell:
        """Read :attr:`name` back."""
        method, covariance, *rest = name.split("/")
        return cls(method, covariance, count_inducing=not rest)

    def build(self, num_inputs: int, side: int) -> Basis:
        """Return the model whose parameters match those of a structured one of this side."""
        structured = waves(num_inputs, ColumnWeights(side * side, gain=1.0))
        if self.method == "whvi":
            return structured
        budget = self.count(structured)
        size = 2
        while self.count(basis := self._of_size(num_inputs, size)) < budget:
            size += 2 if self.method != "sparse-gp" else 1
        return basis

    def count(self, basis: Basis) -> int:
        """Count the parameters of ``basis`` by the rule of this cell."""
        size = basis.num_coefficients
        posterior = 2 * size if self.covariance == "diagonal" else size + size * (size + 1) // 2
        ignored = (
            "log_lengthscale",
            "log_variance",
            *(() if self.count_inducing else ("locations",)),
        )
        trained = [(name, p) for name, p in basis.named_parameters() if p.requires_grad]
        return posterior + sum(p.numel() for name, p in trained if not name.endswith(ignored))

    def _of_size(self, num_inputs: int, size: int) -> Basis:
        if self.method in ("fourier", "sparse-spectrum"):
            learned = self.method == "sparse-spectrum"
            return waves(num_inputs, PlainWeights(size), learned=learned)
        if self.method == "sparse-gp":
            return InducingBasis(num_inputs, size)
        raise ConfigError(f"there is no method {self.method!r}; choose from {', '.join(METHODS)}")


UNCOUNTED = "uncounted"
CELLS = tuple(
    Cell(method, covariance, count_inducing)
    for covariance in SIDES
    for method in METHODS
    for count_inducing in ((True, False) if method == "sparse-gp" else (True,))
)
LABELS = {
    "whvi": "WHVI",
    "fourier": "Fourier features",
    "sparse-spectrum": "sparse spectrum",
    "sparse-gp": "sparse GP",
    "sparse-gp/uncounted": "sparse GP, locations not counted",
}


def label(row: Mapping[str, Any]) -> str:
    """Name the curve of a row of the summary for a reader."""
    return LABELS[row["method"] if row["count_inducing"] else f"{row['method']}/{UNCOUNTED}"]
