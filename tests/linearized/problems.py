"""Models and dense references that the tests of linearised posteriors share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whvi import MeanFieldLinear, WHVILinear
from whvi.layers.sines import Sine, Tile
from whvi.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from whvi.posteriors import PointMass
from whvi.sampling import MeanWeights, sampling

DOUBLE = {"dtype": torch.float64}
Shape = tuple[int, ...]


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw every parameter: at the usual starting points many derivatives vanish."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.8 * torch.randn(parameter.shape, generator=generator))
    return model


def network(batch_shape: Shape = (), out: int = 1, inputs: int = 3) -> nn.Sequential:
    """A small network of the usual kind."""
    place = {"batch_shape": batch_shape, **DOUBLE}
    model = nn.Sequential(
        WHVILinear(inputs, 8, **place),
        nn.Tanh(),
        WHVILinear(8, 6, **place),
        nn.ReLU(),
        MeanFieldLinear(6, out, **place),
    )
    return randomized(model)


def sine_network(batch_shape: Shape = (), out: int = 2, inputs: int = 3) -> nn.Sequential:
    """One with tiles, sines, stacked blocks, a random bias and trimmed outputs."""
    place = {"batch_shape": batch_shape, **DOUBLE}
    model = nn.Sequential(
        Tile(inputs, 8),
        WHVILinear(8, 8, posterior="full", bias_posterior="diagonal", **place),
        Sine(),
        nn.Sequential(WHVILinear(8, 21, bias=False, **place), nn.Identity()),
        nn.Tanh(),
        WHVILinear(21, out, posterior="low_rank", **place),
    )
    return randomized(model)


def column_network(batch_shape: Shape = (), out: int = 1, inputs: int = 1) -> nn.Sequential:
    """One whose first and last layers are single columns of weights."""
    place = {"batch_shape": batch_shape, **DOUBLE}
    model = nn.Sequential(WHVILinear(inputs, 5, **place), nn.Tanh(), WHVILinear(5, 1, **place))
    return randomized(model)


def linear_model(inputs: int = 6, outputs: int = 1, batch_shape: Shape = ()) -> WHVILinear:
    """``f(x) = A(x) g``: linear in the only parameter that is trained, the mean of ``g``."""
    model = WHVILinear(
        inputs, outputs, bias=False, posterior=PointMass, prior="standard_normal",
        batch_shape=batch_shape, **DOUBLE,
    )  # fmt: skip
    randomized(model)
    model.matrix.s1.requires_grad_(False)
    model.matrix.s2.requires_grad_(False)
    return model


def design_matrix(model: WHVILinear, x: Tensor) -> Tensor:
    """``A(x)``, ``(N · O, D)``, column by column: the outputs for unit vectors ``g``."""
    loc = model.matrix.posterior.loc
    before, columns = loc.detach().clone(), []
    with torch.no_grad(), sampling(MeanWeights()):
        for unit in torch.eye(len(loc), **DOUBLE):
            loc.copy_(unit)
            columns.append(model(x).flatten())
        loc.copy_(before)
    return torch.stack(columns, -1)


def rows(num: int, inputs: int = 3, seed: int = 1, batch_shape: Shape = ()) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch_shape, num, inputs, generator=generator, **DOUBLE)


def likelihoods(batch_shape: Shape = ()) -> dict[str, Likelihood]:
    place = {"batch_shape": batch_shape, **DOUBLE}
    return {
        "Gaussian": Gaussian(2, log_noise_variance=-1.0, **place),
        "HeteroscedasticGaussian": HeteroscedasticGaussian(bound=3.0, **place),
        "StudentT": StudentT(2, df=5.0, **place),
        "Poisson": Poisson(2, **place),
        "Bernoulli": Bernoulli(2, batch_shape=batch_shape),
        "Categorical": Categorical(3, batch_shape=batch_shape),
    }


def targets(likelihood: Likelihood, num: int, seed: int = 2, batch_shape: Shape = ()) -> Tensor:
    """Targets of the right kind."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch_shape, num, likelihood.num_outputs)
    if isinstance(likelihood, Categorical):
        return torch.randint(0, likelihood.num_classes, shape, generator=generator)
    y = torch.randn(shape, generator=generator, **DOUBLE)
    if isinstance(likelihood, Bernoulli):
        return (y > 0).double()
    return y.abs().mul(2).floor() if isinstance(likelihood, Poisson) else y
