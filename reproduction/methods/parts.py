"""Parts of networks that only the experiments need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from reproduction.methods import Settings
from whvi.errors import NumericalError
from whvi.layers.protocol import BayesianLayer
from whvi.likelihoods import (
    BalancedGradients,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)
from whvi.predictive import Predictive

_Fitted = TypeVar("_Fitted")
_SMALLER = (1.0, 0.3)  # factors on the learning rate, before the last one
_SMALLEST = 0.1


def train_finite(train: Callable[[float], _Fitted]) -> _Fitted:
    """Call ``train(factor)`` with smaller factors on its learning rate until it stays finite.

    Raises:
        NumericalError: Not even a tenth of the rate is small enough.
    """
    for factor in _SMALLER:
        try:
            return train(factor)
        except NumericalError:
            continue
    return train(_SMALLEST)


def make_noise(
    settings: Settings, num_replicas: int, *, balance: float
) -> tuple[Likelihood, Likelihood]:
    """Return the likelihood of R networks, and the one whose gradients train them.

    They differ where the noise is a function of the input: the weights of
    :class:`whvi.likelihoods.BalancedGradients`.

    Args:
        settings: ``noise`` is ``"constant"`` or ``"heteroscedastic"``.
        num_replicas: R.
        balance: Of the gradients, if ``settings`` does not have it.
    """
    replicas = (num_replicas,)
    if settings["noise"] != "heteroscedastic":
        constant = Gaussian(batch_shape=replicas)
        return constant, constant
    varying = HeteroscedasticGaussian(batch_shape=replicas)
    return varying, BalancedGradients(varying, balance=float(settings.get("balance", balance)))


@final
class PointLinear(BayesianLayer):
    r"""A dense layer with plain weights, for R replicas: ``y = W x + b``.

    ``kl()`` is the negative log density of ``W`` under ``N(0, I)`` without its constant,
    ``½ ‖W‖²``: in the objective it is weight decay.

    Args:
        in_features, out_features: Shape of ``W``.
        batch_shape: Replicas.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.batch_shape = tuple(batch_shape)
        place: Any = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(*batch_shape, in_features, out_features, **place))
        self.bias = nn.Parameter(torch.empty(*batch_shape, out_features, **place))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw weights from ``N(0, 2 / in_features)`` (He); biases start at zero."""
        self.weight.normal_(0, math.sqrt(2 / self.weight.shape[-2]), generator=generator)
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*batch_shape, *inner, in)`` to ``(*batch_shape, *inner, out)``."""
        rows = x.flatten(len(self.batch_shape), -2)
        if self.batch_shape:
            y = torch.baddbmm(self.bias.unsqueeze(-2), rows, self.weight)
        else:
            y = torch.addmm(self.bias, rows, self.weight)
        return y.reshape(*x.shape[:-1], -1)

    def kl(self) -> Tensor:
        """Return ``½ ‖W‖²``, shape ``batch_shape``."""
        weight = self.weight.flatten(-2)
        # its gradient is W, as that of ½ ‖W‖²
        square: Tensor = torch.linalg.vecdot(weight, weight.detach())
        return square - 0.5 * square.detach()


@final
class NormalScores:
    r"""Inputs by their ranks: ``z = Φ⁻¹(share of training rows below x)``, a feature at a time.

    Every feature of the training rows becomes standard normal, however skewed or heavy-tailed it
    was. Equal values have the middle of their ranks; the outermost are half a row from 0 and 1.

    Args:
        x: Training rows of R replicas, shape ``(R, N, d)``.
    """

    def __init__(self, x: Tensor) -> None:
        self._sorted = x.mT.contiguous().sort(dim=-1).values  # (R, d, N)

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``(R, M, d)`` to the same shape."""
        num_rows, values = self._sorted.shape[-1], x.mT.contiguous()
        below = torch.searchsorted(self._sorted, values)
        upto = torch.searchsorted(self._sorted, values, right=True)
        share = (below + upto).double() / (2 * num_rows)
        edge = 0.5 / num_rows
        z: Tensor = torch.special.ndtri(share.clamp(edge, 1 - edge)).to(x.dtype)
        return z.mT.contiguous()


@final
class TemperedLikelihood(Likelihood):
    r"""``p(y | f)^{1/β}`` with a ``β`` per replica.

    ``(1/β) E[log p] − KL`` has the same maximiser as ``E[log p] − β KL``, and Adam does not see
    the factor between them: replicas with different weights of the KL train in one pass.

    Args:
        inner: The likelihood to temper; predictions are its own.
        beta: Weights of the KL, shape ``batch_shape``, all above zero.
    """

    beta: Tensor

    def __init__(self, inner: Likelihood, beta: Tensor) -> None:
        super().__init__(inner.num_outputs, inner.batch_shape)
        self.inner = inner
        self.register_buffer("beta", beta)

    @property
    def num_features(self) -> int:
        """As the inner likelihood."""
        return self.inner.num_features

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y | f) / β``."""
        return self.inner.log_prob(f, y) / self.beta[..., None, None]

    def predictive(self, f: Tensor) -> Predictive:
        """As the inner likelihood."""
        return self.inner.predictive(f)

    def noise_parameters(self) -> list[nn.Parameter]:
        """As the inner likelihood."""
        return self.inner.noise_parameters()
