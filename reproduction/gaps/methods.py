"""The methods of the gap experiment and their candidates.

Networks have the paper's shape and the candidates of Table 1 (:mod:`reproduction.methods.grids`)
with fewer steps. A method with several candidates chooses on held-out training rows, which also fit
the factor of its noise; a method with one takes its hyper-parameters from the evidence.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from reproduction.gaps.catboost import CATBOOST
from reproduction.gaps.exact_gp import EXACT_GP
from reproduction.gaps.laplace import LAPLACE
from reproduction.gaps.linearized import LinearizedMethod
from reproduction.methods import DataSize, Method, Settings
from reproduction.methods.estimator import ESTIMATORS
from reproduction.methods.grids import METHODS as TABLE_1
from reproduction.methods.networks import NetworkMethod

NUM_STEPS = 3000
BEFORE = "WHVIRegressor-before"
"""``WHVIRegressor`` before the linearised posterior: a name that is not run again."""

_PACKAGES = {"catboost": "catboost", "laplace": "laplace", "exact-gp": "gpytorch"}


def _shorter(name: str) -> NetworkMethod:
    """Return a network of Table 1 with :data:`NUM_STEPS` steps."""
    method = TABLE_1[name]
    assert isinstance(method, NetworkMethod)

    def grid(size: DataSize) -> tuple[Settings, ...]:
        return tuple({**candidate, "steps": NUM_STEPS} for candidate in method.grid(size))

    return replace(method, grid=grid)


def _deep_ensemble() -> NetworkMethod:
    """Noise as a function of the input; decays beyond those of Table 1, which end at 10."""
    method = _shorter("deep-ensemble")

    def grid(size: DataSize) -> tuple[Settings, ...]:
        varying = next(c for c in method.grid(size) if c["noise"] == "heteroscedastic")
        return tuple({**varying, "beta": decay} for decay in (10.0, 30.0, 100.0, 300.0, 1.0, 0.1))

    return replace(method, grid=grid)


_WHVI = _shorter("whvi")
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _WHVI,
        LinearizedMethod("whvi-linearized", _WHVI),
        _shorter("mean-field"),
        _shorter("mc-dropout"),
        _deep_ensemble(),
        EXACT_GP,
        LAPLACE,
        CATBOOST,
    )
}
"""Those that fit replicas."""

_OURS = ("whvi", "whvi-linearized", BEFORE, *ESTIMATORS)
ROWS = (*_OURS, *(name for name in METHODS if name not in _OURS))
"""Every method, in the order of the table: ours, then their rivals."""
RUN = tuple(name for name in ROWS if name != BEFORE)
"""Those that can be run."""


def missing_package(method: str) -> str | None:
    """Return the package that a method needs and that is not installed."""
    package = _PACKAGES.get(method)
    return package if package and find_spec(package) is None else None
