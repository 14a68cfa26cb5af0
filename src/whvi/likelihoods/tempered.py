"""A likelihood whose weight against the KL differs between replicas."""

from __future__ import annotations

from typing import final

from torch import Tensor

from whvi.likelihoods.base import Likelihood, LikelihoodWrapper


@final
class TemperedLikelihood(LikelihoodWrapper):
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
