r"""Discrete targets: two classes by a logit, C classes by C logits, counts by a log rate.

.. math::
   \text{Bernoulli:} \quad & \log p(y \mid f) = \log \operatorname{sigmoid}((2y - 1) f) \\
   \text{categorical:} \quad & \log p(y \mid f) = f_y - \log \textstyle\sum_c e^{f_c} \\
   \text{Poisson:} \quad & \log p(y \mid f) = y \log r - r - \log y!, \qquad r = r_0 e^f
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from whvi.errors import ConfigError
from whvi.likelihoods.base import Likelihood, check_support, target_rows
from whvi.predictive import Predictive


@final
class Bernoulli(Likelihood):
    """Labels 0 and 1, with ``P(y = 1) = sigmoid(f)``. It has no parameters.

    Args:
        num_outputs: Number of independent labels per row.
        batch_shape: ``(R,)`` for R replicas.
    """

    def __init__(self, num_outputs: int = 1, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__(num_outputs, batch_shape)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        sign = 2 * self._aligned(f, y).to(f.dtype) - 1
        return self._over_outputs(F.logsigmoid(sign * f))

    def predictive(self, f: Tensor) -> Predictive:
        self._check_values(f)
        return self._mixture(Predictive.bernoulli, f)

    def check_targets(self, y: Tensor) -> None:
        """Raise :class:`~whvi.errors.DataError` unless every target is 0 or 1."""
        check_support(y, (y == 0) | (y == 1), "labels 0 or 1")


@final
class Categorical(Likelihood):
    """One label 0, …, C − 1 per row, with ``P(y = c) = softmax(f)[c]``. It has no parameters.

    Args:
        num_classes: ``C``, at least 2.
        batch_shape: ``(R,)`` for R replicas.
    """

    def __init__(self, num_classes: int, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__(1, batch_shape)
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise ConfigError(f"num_classes must be an integer of at least 2, got {num_classes!r}")
        self.num_classes = num_classes

    @property
    def num_features(self) -> int:
        """One logit per class."""
        return self.num_classes

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        labels = self._aligned(f, y).long()
        return f.log_softmax(-1).gather(-1, labels.expand(*f.shape[:-1], 1)).squeeze(-1)

    def predictive(self, f: Tensor) -> Predictive:
        self._check_values(f)
        return Predictive.categorical(f, batch_dims=len(self.batch_shape))

    def check_targets(self, y: Tensor) -> None:
        """Raise :class:`~whvi.errors.DataError` unless every target is one of 0, …, C − 1."""
        possible = (y >= 0) & (y < self.num_classes) & (y == y.long())
        check_support(y, possible, f"integers from 0 to {self.num_classes - 1}")

    def extra_repr(self) -> str:
        """Show the sizes."""
        replicas = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        return f"num_classes={self.num_classes}{replicas}"


@final
class Poisson(Likelihood):
    """Counts 0, 1, 2, … with mean ``r₀ exp(f)``. It has no parameters.

    The base rate ``r₀`` is 1 until :meth:`set_target_scaling` sets it to the mean of the training
    counts, so that a network with outputs near zero predicts the mean.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas.
        device, dtype: Of the buffer ``target_log_mean``.
    """

    target_log_mean: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        *,
        batch_shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_outputs, batch_shape)
        shape = (*self.batch_shape, num_outputs)
        self.register_buffer("target_log_mean", torch.zeros(shape, device=device, dtype=dtype))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        counts = self._aligned(f, y).to(f.dtype)
        log_rate = f + self._per_row(self.target_log_mean)
        return self._over_outputs(counts * log_rate - log_rate.exp() - torch.lgamma(counts + 1))

    def predictive(self, f: Tensor) -> Predictive:
        self._check_values(f)
        rate = (f.double() + self._per_row(self.target_log_mean.double())).exp()
        return self._mixture(Predictive.poisson, rate)

    def set_target_scaling(self, y: Tensor) -> None:
        """Set the base rate to the mean of the training counts (1 if they are all zero)."""
        mean = target_rows(self, y).mean(-2)
        self.target_log_mean.copy_(torch.where(mean > 0, mean, 1.0).log())

    def check_targets(self, y: Tensor) -> None:
        """Raise :class:`~whvi.errors.DataError` for negative numbers and fractions."""
        check_support(y, (y >= 0) & (y == y.floor()), "counts 0, 1, 2, …")
