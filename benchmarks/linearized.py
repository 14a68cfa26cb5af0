"""A linearised posterior of 8 → 128 → 128 → 128 → 1 (1,665 parameters): its fit and predictions.

The rival is laplace-torch's full GGN of the same network (point estimates of ``g``, so that it has
the same parameters), by each of its backends that accepts the layers; training is ``whvi.fit`` with
its default steps. Seconds of the processor on one thread, to which other programs add nothing; what
takes more than a second is run once. laplace-torch needs ``pip install laplace-torch``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whvi
from benchmarks.records import Cell
from benchmarks.rivals import optional
from benchmarks.timing import Effort
from whvi.functions import draw_functions
from whvi.likelihoods import Gaussian
from whvi.tabular.networks import build_network
from whvi.training.process import keep_freed_memory

TITLE = "Linearised posterior, 1,665 parameters"
ROWS, FEW_ROWS, PREDICT_ROWS = 10_000, 500, 2_000
_INPUTS, _WIDTHS, _REPEATS = 8, (128, 128, 128), 3
_BATCH = 500  # rows per call of laplace-torch: larger ones take more memory, not less time
TORCH_FUNC = "laplace-torch, torch.func"
_BACKENDS = {
    TORCH_FUNC: "GGNInterface",
    "laplace-torch, curvlinops": "CurvlinopsGGN",
    "laplace-torch, backpack": "BackPackGGN",
    "laplace-torch, asdl": "AsdlGGN",
}


def cells(effort: Effort, quick: bool) -> Iterator[Cell]:
    """Posteriors with every backend on few rows, with the fastest on many; predictions."""
    keep_freed_memory()
    yield _posterior_cell(FEW_ROWS, tuple(_BACKENDS))
    if not quick:
        yield _posterior_cell(ROWS, (TORCH_FUNC,))
    yield _prediction_cell()


def simulate(rows: int) -> tuple[Tensor, Tensor]:
    """Return standard normal inputs and a smooth function of them with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, _INPUTS, generator=generator)
    return x, torch.sin(x.sum(-1, keepdim=True)) + 0.1 * torch.randn(rows, 1, generator=generator)


def point_network() -> nn.Sequential:
    """Build the network with structured layers that have nothing random."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for before, after in zip((_INPUTS, *_WIDTHS), _WIDTHS, strict=False):
        layer = whvi.WHVILinear(before, after, posterior="point", prior="standard_normal")
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(_WIDTHS[-1], 1))


def _posterior_cell(rows: int, backends: tuple[str, ...]) -> Cell:
    x, y = simulate(rows)
    likelihood = Gaussian(log_noise_variance=0.0)
    fit = partial(whvi.linearize, point_network(), likelihood, (x, y))
    rivals: dict[str, Callable[[], Any]] = {
        "whvi": partial(fit, prior_precision=1.0, noise="keep"),
        "whvi, with evidence": fit,
        "training": partial(_train, x, y),
    }
    laplace, left_out = optional("laplace"), {}
    for name in backends:
        found = laplace if isinstance(laplace, str) else _laplace(laplace, _BACKENDS[name], x, y)
        if isinstance(found, str):
            left_out[name] = found
        else:
            rivals[name] = found
    values = {name: _seconds(call) for name, call in rivals.items()}
    return Cell({"work": "posterior", "rows": rows}, values, left_out)


def _train(x: Tensor, y: Tensor) -> None:
    likelihood = Gaussian()
    likelihood.set_target_scaling(y)
    whvi.fit(build_network(_INPUTS, _WIDTHS), likelihood, (x, y), config=whvi.FitConfig())


def _laplace(laplace: ModuleType, backend: str, x: Tensor, y: Tensor) -> Callable[[], Any] | str:
    """Return a call of laplace-torch's fit, or say why the backend does not take the network."""
    curvature = getattr(laplace.curvature, backend, None)
    if curvature is None:
        return "not installed"

    def fit(x: Tensor, y: Tensor) -> None:
        options = {"subset_of_weights": "all", "hessian_structure": "full", "backend": curvature}
        posterior = laplace.Laplace(point_network(), "regression", **options)
        posterior.fit(DataLoader(TensorDataset(x, y), batch_size=_BATCH))

    try:
        fit(x[:2], y[:2])
    except (AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
        # what its backends raise for layers they do not know; the benchmark prints the reason
        return f"does not take the layers: {error}"
    return partial(fit, x, y)


def _prediction_cell() -> Cell:
    x, y = simulate(ROWS)
    torch.manual_seed(0)
    model, likelihood = build_network(_INPUTS, _WIDTHS), Gaussian()
    posterior = whvi.linearize(model, likelihood, (x[:FEW_ROWS], y[:FEW_ROWS]))
    rows = x[:PREDICT_ROWS]
    values = {
        "whvi": _seconds(lambda: posterior.predictive(rows)),
        "64 weight draws": _seconds(
            lambda: likelihood.predictive(draw_functions(model, rows, num_draws=64))
        ),
    }
    return Cell({"work": "prediction", "rows": PREDICT_ROWS}, values, {})


def _seconds(call: Callable[[], Any]) -> float:
    """Return the least of some runs; of a long one, that of one run."""
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
        if best > 1:
            break
    return best
