"""One input, a gap in the data: function draws, epistemic band, total band.

The default model is a Gaussian process by random Fourier features whose 256 weights are
``vec(W)`` of one structured 16 × 16 block. It is linear in ``g``, its covariance is not restricted,
so the exact posterior is in the family, and the band knows where there are no data. ``--model mlp``
trains the paper's kind of network with a factorized posterior instead: it follows the data too, but
is too sure of itself in the gap, as such networks are.

    python examples/toy_regression.py [--model fourier|mlp] [--output FILE] [--quick]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import whvi
from whvi.likelihoods import Gaussian
from whvi.plots import new_figure, plot_bands, save_figure

LENGTHSCALE = 0.8
NUM_FEATURES = 256


class FourierFeatures(nn.Module):
    """``[cos(xΩ), sin(xΩ)]`` with fixed ``Ω ~ N(0, 1/lengthscale²)``."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        frequencies = torch.randn(1, NUM_FEATURES // 2, generator=generator) / LENGTHSCALE
        self.register_buffer("frequencies", frequencies)

    def forward(self, x: Tensor) -> Tensor:
        phase = x @ self.frequencies
        return torch.cat([phase.cos(), phase.sin()], -1)


def toy_data(seed: int = 0) -> tuple[Tensor, Tensor]:
    """120 rows in two clusters, ``y = sin(2.5 x) + 0.3 x`` plus noise of deviation 0.1."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.8 + 1.2 * torch.rand(120, 1, generator=generator)
    x[::2] *= -1
    noise = 0.1 * torch.randn(120, generator=generator)
    return x, torch.sin(2.5 * x[:, 0]) + 0.3 * x[:, 0] + noise


def fourier_model() -> nn.Sequential:
    """Random features and one Bayesian layer, linear in ``g``."""
    layer = whvi.WHVILinear(NUM_FEATURES, 1, posterior="full")
    # s1 and s2 are optimised, not inferred: let them rest, or they fit the data without doubt
    layer.matrix.s1.requires_grad_(False)
    layer.matrix.s2.requires_grad_(False)
    return nn.Sequential(FourierFeatures(), layer)


def fit_toy(
    model: nn.Module, *, num_steps: int, learning_rate: float, progress: bool
) -> tuple[Gaussian, whvi.training.History]:
    """Maximise the ELBO (no tempering) on the toy data."""
    x, y = toy_data()
    likelihood = Gaussian()
    likelihood.set_target_scaling(y)
    config = whvi.FitConfig(
        num_steps=num_steps,
        batch_size=60,
        learning_rate=learning_rate,
        warmup_steps=num_steps // 10,
        noise_hold_steps=num_steps // 4,
    )
    return likelihood, whvi.fit(model, likelihood, (x, y), config=config, progress=progress)


def draw_toy(model: nn.Module, likelihood: Gaussian, path: Path) -> dict[str, float]:
    """Write the picture; return epistemic deviations at the data, in the gap and outside."""
    grid = torch.linspace(-3.2, 3.2, 201).unsqueeze(1)
    generator = torch.Generator().manual_seed(1)
    f = whvi.draw_functions(model, grid, num_draws=300, generator=generator)
    predictive = likelihood.predictive(f)
    lines = f[:12, :, 0] * likelihood.target_scale + likelihood.target_mean
    figure = new_figure(width=8, height=4)
    ax = figure.axes[0]
    plot_bands(ax, grid, predictive, lines, toy_data())
    ax.set(xlabel="x", ylabel="y", ylim=(-2.2, 2.6))
    ax.legend(loc="upper center", ncols=5, fontsize=8)
    save_figure(figure, path)
    distance = grid[:, 0].abs()
    epistemic = predictive.epistemic
    return {
        "at_the_data": epistemic[(distance > 0.9) & (distance < 1.9)].mean().item(),
        "in_the_gap": epistemic[distance < 0.4].mean().item(),
        "outside": epistemic[distance > 2.6].mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("fourier", "mlp"), default="fourier")
    parser.add_argument("--output", type=Path, default=Path("toy_regression.png"))
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    torch.manual_seed(0)
    fourier = options.model == "fourier"
    model = fourier_model() if fourier else whvi.mlp(1, (64, 64), activation=nn.Tanh)
    likelihood, history = fit_toy(
        model,
        num_steps=30 if options.quick else 1000 if fourier else 4000,
        learning_rate=0.05 if fourier else 0.01,
        progress=not options.quick,
    )
    spread = draw_toy(model, likelihood, options.output)
    print(f"ELBO {history.expected_log_lik[-1] - history.kl[-1]:.1f} nats")
    print(f"noise {likelihood.noise_scale.item():.3f} (true: 0.1)")
    for place, value in spread.items():
        print(f"epistemic standard deviation {place.replace('_', ' ')}: {value:.3f}")
    print(f"picture: {options.output}")


if __name__ == "__main__":
    main()
