"""What every Bayesian layer is: a module with a KL and a batch of replicas."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class BayesianLayer(nn.Module, ABC):
    """A layer whose weights (some or all) have a posterior.

    ``forward(x)`` maps ``(*batch_shape, *inner, in)`` to ``(*batch_shape, *inner, out)`` with
    weights drawn as :func:`whvi.sampling.current_sampler` says, and leaves nothing on ``self``.
    """

    batch_shape: tuple[int, ...]

    @abstractmethod
    def kl(self) -> Tensor:
        """KL from prior to posterior in nats, summed over all weights, shape ``batch_shape``."""


def kl(model: nn.Module) -> Tensor:
    """Sum ``layer.kl()`` over every Bayesian layer of ``model``; a shared one counts once.

    Returns:
        Nats, shape ``batch_shape`` (a scalar unless the model has replicas). Never averaged,
        never divided by anything. Zero if there is no Bayesian layer.
    """
    terms = [module.kl() for module in model.modules() if isinstance(module, BayesianLayer)]
    total = next(model.parameters()).new_zeros(()) if not terms else terms[0]
    for term in terms[1:]:
        total = total + term
    return total
