"""Small stand-ins: a mean-field layer that follows the samplers, and data to train on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whvi.layers.protocol import BayesianLayer
from whvi.likelihoods import Gaussian
from whvi.sampling import LocalReparameterization, WeightDraws, current_sampler
from whvi.training import FitConfig


class TinyMeanField(BayesianLayer):
    """``W ~ N(mean, scale²)`` elementwise with prior N(0, 1); weights ``(*batch_shape, O, I)``."""

    def __init__(self, in_features, out_features, *, batch_shape=(), scale=0.1, seed=0, dtype=None):
        super().__init__()
        self.batch_shape = tuple(batch_shape)
        generator = torch.Generator().manual_seed(seed)
        shape = (*batch_shape, out_features, in_features)
        mean = torch.randn(shape, generator=generator, dtype=dtype) / in_features**0.5
        self.mean = nn.Parameter(mean)
        self.log_scale = nn.Parameter(torch.full_like(mean, scale).log())
        self.bias = nn.Parameter(mean.new_zeros(*batch_shape, out_features))

    def forward(self, x: Tensor) -> Tensor:
        sampler = current_sampler()
        inner = x.dim() - len(self.batch_shape) - 1
        gap = self.batch_shape + (1,) * inner + self.bias.shape[-1:]
        bias = self.bias.reshape(gap)
        if isinstance(sampler, WeightDraws):
            weight = sampler.draw_once(self, lambda _: self._draw(sampler))
            return x @ weight.mT + bias
        rows = x.reshape(*self.batch_shape, -1, x.shape[-1])
        out = (rows @ self.mean.mT).reshape(*x.shape[:-1], -1)
        if isinstance(sampler, LocalReparameterization):
            variance = rows.square() @ (2 * self.log_scale).exp().mT
            noise = torch.randn(out.shape, generator=sampler.generator, dtype=out.dtype)
            out = out + noise * variance.reshape(out.shape).sqrt()
        return out + bias

    def kl(self) -> Tensor:
        variance = (2 * self.log_scale).exp()
        terms = 0.5 * (self.mean.square() + variance - 1) - self.log_scale
        return terms.sum((-2, -1))

    def _draw(self, sampler: WeightDraws) -> Tensor:
        k = len(self.batch_shape)
        shape = (*self.batch_shape, *sampler.sample_shape, *self.mean.shape[k:])
        noise = torch.randn(shape, generator=sampler.generator, dtype=self.mean.dtype)
        mean, scale = self.mean, self.log_scale.exp()
        if sampler.sample_shape:
            mean, scale = mean.unsqueeze(k), scale.unsqueeze(k)
        return mean + scale * noise


def tiny_net(*, batch_shape=(), scale=0.1, seed=0, dtype=None) -> nn.Sequential:
    options = {"batch_shape": batch_shape, "scale": scale, "dtype": dtype}
    return nn.Sequential(
        TinyMeanField(3, 8, seed=seed, **options),
        nn.Tanh(),
        TinyMeanField(8, 1, seed=seed + 1, **options),
    )


def tiny_data(num_rows=40, *, seed=0, dtype=None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, 3, generator=generator, dtype=dtype)
    y = (x[:, 0] * x[:, 1]).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=dtype)
    return x, y


def tiny_config(**changes) -> FitConfig:
    options = {
        "num_steps": 30,
        "batch_size": 8,
        "warmup_steps": 5,
        "noise_hold_steps": 10,
        "record_every": 5,
        "eval_every": 10,
    }
    return FitConfig(**(options | changes))


def gaussian(*, batch_shape=(), dtype=None) -> Gaussian:
    return Gaussian(batch_shape=batch_shape, dtype=dtype)


def weights_of(*modules: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for m in modules for t in m.state_dict().values()]


def assert_bitwise(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)
