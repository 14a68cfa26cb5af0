"""What the library does, in under a minute: `make demo`.

Writes demo_output/toy_regression.png and demo_output/results.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from torch import Tensor, nn
from toy_regression import draw_toy, fit_toy, fourier_model

import whvi
from whvi.data import Replicas, random_splits, stack_replicas, train_validation_split
from whvi.data.scaling import Standardizer
from whvi.doctor import describe_kernel, kernel_status
from whvi.likelihoods import Gaussian
from whvi.metrics import coverage, crps, mnll, rmse
from whvi.transforms.plain import fwht_plain

NUM_SPLITS = 5
LEVEL = 0.9
console = Console()


# ---- speed ---------------------------------------------------------------------------------------


def microseconds(call: Callable[[], Any], *, seconds: float) -> float:
    """The fastest of many calls, so that other work on the machine matters little."""
    for _ in range(3):
        call()
    best, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best


def compare_speed(sizes: tuple[int, ...], seconds: float) -> list[dict[str, float]]:
    rows = []
    for size in sizes:
        x = torch.randn(64, size)
        s1, g, s2 = (torch.randn(size, requires_grad=True) for _ in range(3))
        dense = nn.Linear(size, size, bias=False)
        upstream = torch.randn(64, size)
        calls: dict[str, Callable[[], Any]] = {
            "fwht": lambda x=x: whvi.fwht(x),
            "plain_torch": lambda x=x: fwht_plain(x, normalize=True),
            "product_with_gradients": lambda x=x, s1=s1, g=g, s2=s2, up=upstream: (
                whvi.structured_product(x, s1, g, s2).backward(up)
            ),
            "linear_with_gradients": lambda x=x, dense=dense, up=upstream: dense(x).backward(up),
        }
        times = {name: microseconds(call, seconds=seconds) for name, call in calls.items()}
        rows.append({"size": size, **times})
    return rows


def show_speed(rows: list[dict[str, float]]) -> None:
    table = Table(title="microseconds for 64 rows of D numbers, one thread")
    for name in (
        "D",
        "fwht",
        "in plain torch",
        "WHVI product + gradients",
        "nn.Linear + gradients",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.0f}" for value in row.values()))
    console.print(table)


# ---- regression ----------------------------------------------------------------------------------


def diabetes_splits() -> Replicas:
    """Five random splits, 20 % of the rows held out, inputs scaled by training rows only."""
    x, y = load_diabetes(return_X_y=True)
    splits = random_splits(len(y), NUM_SPLITS, seed=0, test_fraction=0.2)
    raw = stack_replicas(x, y, splits)
    scaler = Standardizer.fit(raw.x_train)
    return raw._replace(x_train=scaler.transform(raw.x_train), x_test=scaler.transform(raw.x_test))


def tensors(data: Replicas) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x_train, y_train, x_test, y_test = (torch.from_numpy(part).float() for part in data)
    return x_train, y_train, x_test, y_test


def fit_whvi(data: Replicas, num_steps: int, progress: bool) -> whvi.Predictive:
    """Train one Bayesian network per split, all five in one pass, by the ELBO."""
    x_train, y_train, x_test, _ = tensors(data)
    replicas = (NUM_SPLITS,)
    model = whvi.mlp(x_train.shape[-1], batch_shape=replicas)
    likelihood = Gaussian(batch_shape=replicas)
    likelihood.set_target_scaling(y_train)
    config = whvi.FitConfig(
        num_steps=num_steps, warmup_steps=num_steps // 10, noise_hold_steps=num_steps // 5
    )
    whvi.fit(model, likelihood, (x_train, y_train), config=config, progress=progress)
    generator = torch.Generator().manual_seed(0)
    f = whvi.draw_functions(model, x_test, num_samples=100, generator=generator)
    return likelihood.predictive(f)


def fit_plain(data: Replicas, num_steps: int) -> list[whvi.Predictive]:
    """Train the same network of nn.Linear by maximum likelihood, stopped early on held-out rows."""
    config = whvi.FitConfig(
        num_steps=num_steps,
        learning_rate=2e-3,
        warmup_steps=0,
        noise_hold_steps=0,
        schedule="constant",
        eval_every=10,
        record_every=num_steps,
        patience=8,
    )
    predictives = []
    for x, y, x_test, _ in zip(*tensors(data), strict=True):
        layers: list[nn.Module] = [nn.Linear(x.shape[-1], 128), nn.ReLU(), nn.Linear(128, 128)]
        model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(128, 1))
        train, held_out = train_validation_split(len(y), 0.2, seed=0)
        likelihood = Gaussian(log_noise_variance=-0.5)  # near its end: there is no time to learn it
        likelihood.set_target_scaling(y[train])
        held_out_rows = (x[held_out], y[held_out])
        whvi.fit(model, likelihood, (x[train], y[train]), config=config, validation=held_out_rows)
        with torch.no_grad():
            predictives.append(likelihood.predictive(model(x_test).unsqueeze(0)))
    return predictives


def fit_linear(data: Replicas) -> list[whvi.Predictive]:
    """Least squares with Gaussian noise of the residuals' variance."""
    predictives = []
    for x, y, x_test, _ in zip(*data, strict=True):
        model = LinearRegression().fit(x, y)
        noise = np.sqrt(np.square(y - model.predict(x)).sum() / (len(y) - x.shape[1] - 1))
        loc = torch.from_numpy(model.predict(x_test)).unsqueeze(0)
        predictives.append(whvi.Predictive.gaussian(loc, torch.full_like(loc, noise)))
    return predictives


def score(predictives: list[whvi.Predictive], y_test: np.ndarray) -> dict[str, float]:
    """Means over the splits."""
    rows = []
    for predictive, target in zip(predictives, torch.from_numpy(y_test), strict=True):
        lower, upper = predictive.interval(LEVEL)
        rows.append(
            {
                "rmse": rmse(predictive.mean, target).item(),
                "mnll": mnll(predictive.log_prob(target)).item(),
                "crps": crps(predictive, target).item(),
                "coverage": coverage(lower, upper, target).item(),
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def show_scores(scores: dict[str, dict[str, float]]) -> None:
    title = f"diabetes data, 88 held-out rows, mean of {NUM_SPLITS} splits"
    table = Table(title=title)
    for name in ("", "RMSE", "MNLL (nats)", "CRPS", f"{LEVEL:.0%} covers"):
        table.add_column(name, justify="right" if name else "left")
    for name, row in scores.items():
        table.add_row(
            name,
            f"{row['rmse']:.1f}",
            f"{row['mnll']:.3f}",
            f"{row['crps']:.1f}",
            f"{row['coverage']:.1%}",
        )
    console.print(table)


# ---- the demonstration ---------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    quick: bool = options.quick
    start = time.perf_counter()
    torch.set_num_threads(1)  # these networks are small
    torch.manual_seed(0)

    status = describe_kernel(kernel_status())
    console.print(f"[bold]kernel[/bold] {status}\n")

    speed = compare_speed((16,) if quick else (128, 512, 2048), seconds=0.02 if quick else 0.3)
    show_speed(speed)

    console.print("\n[bold]five networks in one pass[/bold]: whvi.mlp on five splits of the data")
    data = diabetes_splits()
    bayesian = fit_whvi(data, 20 if quick else 1000, not quick)
    scores = {
        "WHVI, ELBO": score(bayesian.unbind(), data.y_test),
        "nn.Linear, early stopping": score(fit_plain(data, 20 if quick else 600), data.y_test),
        "linear model": score(fit_linear(data), data.y_test),
    }
    show_scores(scores)

    console.print("\n[bold]a gap in the data[/bold]: one input, function draws and bands")
    model = fourier_model()
    likelihood, _ = fit_toy(
        model, num_steps=20 if quick else 800, learning_rate=0.05, progress=not quick
    )
    picture = options.output / "toy_regression.png"
    spread = draw_toy(model, likelihood, picture)
    at_data, in_gap = spread["at_the_data"], spread["in_the_gap"]
    console.print(f"epistemic deviation {at_data:.3f} at the data, {in_gap:.3f} in the gap")

    seconds = time.perf_counter() - start
    results = options.output / "results.json"
    record = {
        "version": whvi.__version__,
        "kernel": status,
        "speed_microseconds": speed,
        "diabetes": scores,
        "toy_regression_epistemic": spread,
        "seconds": seconds,
    }
    results.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"\n{seconds:.0f} s. Written: {picture} and {results}")


if __name__ == "__main__":
    main()
