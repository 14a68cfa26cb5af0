"""A likelihood whose replicas weigh the KL differently."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from whvi.likelihoods.base import Likelihood
from whvi.predictive import Predictive


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

    def set_target_scaling(self, y: Tensor) -> None:
        """As the inner likelihood."""
        self.inner.set_target_scaling(y)

    def check_targets(self, y: Tensor) -> None:
        """As the inner likelihood."""
        self.inner.check_targets(y)
