"""Gradients that do not neglect noisy rows, for noise that is a function of the inputs."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from whvi.likelihoods.base import Likelihood
from whvi.likelihoods.gaussian import HeteroscedasticGaussian
from whvi.predictive import Predictive


@final
class BalancedGradients(Likelihood):
    r"""A heteroscedastic likelihood whose rows pull with weights ``w ∝ σ^{2γ}`` of mean 1.

    The gradient of the likelihood with respect to a mean is ``(y − m) / σ²``: rows that the
    network has declared noisy are neglected, so their mean is never learned, so they stay noisy.
    ``γ = 1`` gives the mean the gradient of least squares, ``γ = 0`` is the likelihood itself
    (Seitzer et al., 2022). Only gradients are weighted: values are those of the likelihood.

    Args:
        inner: The likelihood; its parameters are trained, and predictions are its own.
        balance: ``γ``.
    """

    def __init__(self, inner: HeteroscedasticGaussian, *, balance: float = 0.5) -> None:
        super().__init__(inner.num_outputs, inner.batch_shape)
        self.inner, self.balance = inner, balance

    @property
    def num_features(self) -> int:
        """As the inner likelihood."""
        return self.inner.num_features

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y | f)``, with weighted gradients."""
        value = self.inner.log_prob(f, y)
        weight = self.inner.noise_variance(f.detach()).mean(-1) ** self.balance
        weight = weight / weight.mean((-2, -1), keepdim=True)
        fixed = value.detach()
        return fixed + weight.detach() * (value - fixed)

    def predictive(self, f: Tensor) -> Predictive:
        """As the inner likelihood."""
        return self.inner.predictive(f)

    def noise_parameters(self) -> list[nn.Parameter]:
        """As the inner likelihood."""
        return self.inner.noise_parameters()

    def set_target_scaling(self, y: Tensor) -> None:
        """As the inner likelihood."""
        self.inner.set_target_scaling(y)

    def check_targets(self, y: Tensor) -> None:
        """As the inner likelihood."""
        self.inner.check_targets(y)
