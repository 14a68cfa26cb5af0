"""Likelihoods that change how another one is trained; its predictions stay the same."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from whvi.likelihoods.base import Likelihood, Vjp
from whvi.likelihoods.gaussian import HeteroscedasticGaussian
from whvi.predictive import Predictive


class _Wrapper(Likelihood):
    """Everything but ``log_prob`` as the inner likelihood."""

    inner: Likelihood

    def __init__(self, inner: Likelihood) -> None:
        super().__init__(inner.num_outputs, inner.batch_shape)
        self.inner = inner

    @property
    def num_features(self) -> int:
        return self.inner.num_features

    def predictive(self, f: Tensor) -> Predictive:
        return self.inner.predictive(f)

    def noise_parameters(self) -> list[nn.Parameter]:
        return self.inner.noise_parameters()

    def set_target_scaling(self, y: Tensor) -> None:
        self.inner.set_target_scaling(y)

    def check_targets(self, y: Tensor) -> None:
        self.inner.check_targets(y)


@final
class TemperedLikelihood(_Wrapper):
    r"""``p(y | f)^{1/β}`` with a ``β`` per replica.

    ``(1/β) E[log p] − KL`` has the same maximiser as ``E[log p] − β KL``, and Adam does not see
    the factor between them: replicas with different weights of the KL train in one pass.

    Args:
        inner: The likelihood to temper; predictions are its own.
        beta: Weights of the KL, shape ``batch_shape``, all above zero.
    """

    beta: Tensor

    def __init__(self, inner: Likelihood, beta: Tensor) -> None:
        super().__init__(inner)
        self.register_buffer("beta", beta)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y | f) / β``."""
        return self.inner.log_prob(f, y) / self.beta[..., None, None]


@final
class BalancedGradients(_Wrapper):
    r"""A heteroscedastic likelihood whose gradients are weighted by ``w ∝ σ^{2γ}`` of mean 1.

    The gradient of the likelihood with respect to a mean is ``(y − m) / σ²``: rows that the
    network has declared noisy get small gradients, so their mean is never learned and they stay
    noisy. ``γ = 1`` gives the mean the gradient of least squares, ``γ = 0`` is the likelihood
    itself (Seitzer et al., 2022). Only gradients are weighted; values are those of ``inner``.

    Args:
        inner: The likelihood; its parameters are trained, and predictions are its own.
        balance: ``γ``.
    """

    inner: HeteroscedasticGaussian

    def __init__(self, inner: HeteroscedasticGaussian, *, balance: float = 0.5) -> None:
        super().__init__(inner)
        self.balance = balance

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y | f)``, with weighted gradients."""
        value = self.inner.log_prob(f, y)
        weight = self._weight(self.inner.noise_variance(f.detach()))
        fixed = value.detach()
        return fixed + weight.detach() * (value - fixed)

    def vjp(self, f: Tensor, y: Tensor) -> tuple[Tensor, Vjp]:
        """See :meth:`Likelihood.vjp`; by hand."""
        value, variance, vjp = self.inner.vjp_and_variance(f, y)
        weight = self._weight(variance)
        return value, lambda grad: vjp(grad * weight)

    def _weight(self, variance: Tensor) -> Tensor:
        weight = self._over_outputs(variance) ** self.balance  # a mean would only scale it
        return weight / weight.mean((-2, -1), keepdim=True)
