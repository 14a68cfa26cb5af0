r"""A predictive as ``torch.distributions.MixtureSameFamily``, for code that takes those.

.. math:: p(y) = \sum_{s=1}^{S} w_s \, p(y \mid s)

torch wants the components last in the batch shape: ``(*batch_shape, N, S)``, and the outputs of a
row, which share the component, in the event shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, distributions
from torch.distributions import Distribution, MixtureSameFamily

from whvi.predictive.components import (
    Bernoulli,
    Categorical,
    Components,
    Gaussian,
    Poisson,
    StudentT,
)

_FAMILIES: dict[type[Components], Callable[..., Distribution]] = {
    Gaussian: lambda loc, scale, spread=None: distributions.Normal(loc, scale),
    StudentT: lambda loc, scale, df: distributions.StudentT(df, loc, scale),
    Poisson: distributions.Poisson,
    Bernoulli: lambda logits: distributions.Bernoulli(logits=logits),
    Categorical: lambda logits: distributions.Categorical(logits=logits),
}


def mixture(
    components: Components, weights: Tensor, axis: int, num_outputs_axes: int
) -> MixtureSameFamily:
    """Return the mixture over ``axis`` of parameters and ``weights``, which the rows follow."""
    own = num_outputs_axes + components.event_dims
    moved = [p.movedim(axis, p.dim() - 1 - own) for p in components.parameters]
    family: Any = _FAMILIES[type(components)](*moved)
    if num_outputs_axes:
        family = distributions.Independent(family, num_outputs_axes)
    shares = distributions.Categorical(probs=weights.movedim(axis, -1))
    return MixtureSameFamily(shares, family)
