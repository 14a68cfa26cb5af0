"""A deep Gaussian process where a single-layer one fails: a function with a jump.

A stationary process has one lengthscale for all inputs, too long for the jump or too short for the
rest. A hidden layer of functions bends the inputs first. Both have structured weights and are
trained by `whvi.fit` like any network.

    python examples/deep_gp.py [--quick]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import whvi
from whvi.gp import DeepGP
from whvi.likelihoods import Gaussian
from whvi.metrics import mnll, rmse

NOISE = 0.05


def rows(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two inputs in [-1, 1]; the target jumps along a diagonal and is smooth elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(num, 2, generator=generator) - 1
    function = torch.sign(x.sum(-1)) + 0.3 * torch.sin(3 * x[:, 0])
    return x, function + NOISE * torch.randn(num, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    quick = parser.parse_args().quick
    train, (x_test, y_test) = rows(1000, seed=0), rows(500, seed=1)
    config = whvi.FitConfig(num_steps=30 if quick else 3000, batch_size=128, learning_rate=2e-2)
    for name, hidden in (("one layer", ()), ("two layers", (4,))):
        torch.manual_seed(0)
        model = DeepGP(2, hidden, num_features=256)
        likelihood = Gaussian()
        likelihood.set_target_scaling(train[1])
        whvi.fit(model, likelihood, train, config=config)
        predictive = likelihood.predictive(whvi.draw_functions(model, x_test, num_draws=64))
        errors = rmse(predictive.mean, y_test.double())
        print(f"{name:10s}  RMSE {errors:.3f}  MNLL {mnll(predictive.log_prob(y_test)):.3f} nats")
    print(f"noise of the data: {NOISE}")


if __name__ == "__main__":
    main()
