r"""Labels: one of two (per output) by a logit, or one of C by C logits.

.. math:: \log p(y \mid f) = \log \operatorname{sigmoid}((2y - 1) f),
   \qquad \log p(y \mid f) = f_y - \log \textstyle\sum_c e^{f_c} .
"""

from __future__ import annotations

from typing import final

from torch import Tensor
from torch.nn import functional as F

from whvi._checks import check_finite
from whvi.errors import ConfigError
from whvi.likelihoods.base import Likelihood, check_support
from whvi.predictive import Predictive


@final
class Bernoulli(Likelihood):
    """Labels 0 and 1; the function values are logits. It has no parameters.

    Args:
        num_outputs: Number of independent labels per row.
        batch_shape: ``(R,)`` for R replicas.
    """

    def __init__(self, num_outputs: int = 1, *, batch_shape: tuple[int, ...] = ()) -> None:
        super().__init__(num_outputs, batch_shape)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """See :meth:`Likelihood.log_prob`."""
        sign = 2 * self._aligned(f, y).to(f.dtype) - 1
        return self._over_outputs(F.logsigmoid(sign * f))

    def predictive(self, f: Tensor) -> Predictive:
        """See :meth:`Likelihood.predictive`."""
        self._check_values(f)
        return Predictive.bernoulli(self._dropped_output(f), batch_dims=len(self.batch_shape))

    def check_targets(self, y: Tensor) -> None:
        """Refuse anything but 0 and 1."""
        check_finite("targets", y)
        check_support(y, (y == 0) | (y == 1), "labels 0 or 1")


@final
class Categorical(Likelihood):
    """Labels 0, …, C − 1, one per row; the function values are C logits. It has no parameters.

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
        """See :meth:`Likelihood.log_prob`; whole-number labels of any dtype."""
        labels = self._aligned(f, y).long()
        return f.log_softmax(-1).gather(-1, labels.expand(*f.shape[:-1], 1)).squeeze(-1)

    def predictive(self, f: Tensor) -> Predictive:
        """See :meth:`Likelihood.predictive`."""
        self._check_values(f)
        return Predictive.categorical(f, batch_dims=len(self.batch_shape))

    def check_targets(self, y: Tensor) -> None:
        """Refuse anything but the whole numbers 0, …, C − 1."""
        check_finite("targets", y)
        possible = (y >= 0) & (y < self.num_classes) & (y == y.long())
        check_support(y, possible, f"whole numbers from 0 to {self.num_classes - 1}")

    def extra_repr(self) -> str:
        """Show the sizes."""
        replicas = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        return f"num_classes={self.num_classes}{replicas}"
