"""One input: Gaussian processes by random features beside an exact one.

The same 40 noisy rows, three posteriors: an exact Gaussian process (dense linear algebra), random
features with the exact posterior of their weights (they should agree), and structured weights
``vec(W)``, 16 random coefficients for 256 weights (too sure of themselves on so few rows).

    python examples/gp_regression.py [--output FILE] [--quick]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from whvi.gp import RandomFeatureGP
from whvi.plots import new_figure, save_figure


def toy_data() -> tuple[Tensor, Tensor]:
    """40 rows with a gap in the middle, noise of deviation 0.15."""
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.rand(40, 1, generator=generator, dtype=torch.float64) + 1
    x[::2] *= -1
    noise = torch.randn(40, generator=generator, dtype=torch.float64)
    return x, torch.sin(1.8 * x[:, 0]) + 0.2 * x[:, 0] + 0.15 * noise


def exact_process(
    model: RandomFeatureGP, x: Tensor, y: Tensor, grid: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the exact process with the hyper-parameters of ``model``."""
    mean, unit = model.likelihood.target_mean, model.likelihood.target_scale
    features, noise = model.layer.features, model.noise_std / unit
    rows, points = model.scaling(x), model.scaling(grid)
    kernel = features.kernel_matrix(rows) + noise.square() * torch.eye(len(x), dtype=torch.float64)
    factor = torch.linalg.cholesky(kernel)
    half = torch.linalg.solve_triangular(factor, features.kernel_matrix(rows, points), upper=False)
    target = torch.linalg.solve_triangular(factor, ((y - mean) / unit).unsqueeze(-1), upper=False)
    prior = features.kernel_matrix(points).diagonal()
    variance = (prior - half.square().sum(0)).clamp_min(0)
    return (half.T @ target).squeeze(-1) * unit + mean, variance.sqrt() * unit


def draw(
    ax, grid: Tensor, mean: Tensor, deviation: Tensor, lines: Tensor | None, title: str
) -> None:
    x, y = toy_data()
    line = grid[:, 0]
    ax.fill_between(
        line,
        mean - 2 * deviation,
        mean + 2 * deviation,
        alpha=0.25,
        lw=0,
        label="± 2 deviations of f",
    )
    if lines is not None:
        ax.plot(line, lines.T, color="0.5", lw=0.6)
        ax.plot([], [], color="0.5", lw=0.6, label="function draws")
    ax.plot(line, mean, lw=1.8, label="mean")
    ax.plot(x[:, 0], y, "k.", ms=5, label="data")
    ax.set(title=title, xlabel="x", ylim=(-3, 3))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("gp_regression.png"))
    parser.add_argument("--quick", action="store_true", help="few features and iterations")
    options = parser.parse_args()
    x, y = toy_data()
    grid = torch.linspace(-7, 7, 401, dtype=torch.float64).unsqueeze(-1)
    iterations = 5 if options.quick else 100
    models = {
        "random features, exact posterior": RandomFeatureGP(
            1, 64 if options.quick else 512, weights="full", projection="quasi", dtype=torch.float64
        ),
        "structured weights vec(W)": RandomFeatureGP(
            1, 256, weights="whvi", covariance="full", dtype=torch.float64
        ),
    }
    figure = new_figure(3, width=13, height=4)
    for ax, (title, model) in zip(figure.axes[1:], models.items(), strict=True):
        with torch.enable_grad():
            model.fit(x, y, starts=1 if options.quick else 3, iterations=iterations)
        mean, variance = model.function_moments(grid)
        lines = model.draw_functions(8, generator=torch.Generator().manual_seed(1))(grid)
        draw(ax, grid, mean, variance.sqrt(), lines, title)
    reference = models["random features, exact posterior"]
    exact_mean, exact_deviation = exact_process(reference, x, y, grid)
    draw(figure.axes[0], grid, exact_mean, exact_deviation, None, "exact Gaussian process")
    figure.axes[2].legend(fontsize=8, loc="lower right")
    save_figure(figure, options.output)
    found = reference.function_moments(grid)
    print(f"lengthscale {reference.lengthscale.item():.2f}, noise {reference.noise_std.item():.3f}")
    worst = (found.mean - exact_mean).abs().max().item()
    spread = (found.variance.sqrt() - exact_deviation).abs().max().item()
    print(f"largest difference from the exact process: mean {worst:.3f}, deviation {spread:.3f}")
    slope = reference.gradient(torch.zeros(1, 1, dtype=torch.float64)).item()
    print(f"slope of the mean at 0: {slope:.2f} (of the function: {1.8 + 0.2:.2f})")
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
