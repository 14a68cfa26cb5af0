r"""The predictive distribution of every row: a mixture over network draws.

.. math:: p(y_n \mid x_n) = \sum_{s=1}^{S} w_{sn} \, p(y_n \mid f^{(s)}(x_n))

The weights are equal, ``w = 1/S``, unless mixtures were joined by :meth:`Predictive.mix`.
Component parameters have shape ``(*batch_shape, S, N)`` for one output and
``(*batch_shape, S, N, O)`` for several. Results drop the component axis ``S``: one output gives
``(*batch_shape, N)``. Everything is in the units of ``y`` and computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, ShapeError
from whvi.predictive.components import (
    Bernoulli,
    Categorical,
    Components,
    Gaussian,
    Poisson,
    StudentT,
    align_targets,
    check_range,
    holds,
    joined,
    root,
    side_by_side,
    smallest_integer,
    wide,
)
from whvi.predictive.view import mixture

_CHUNK_ELEMENTS = 1 << 19  # components × rows × outputs per chunk of quantiles: a few MB


class Interval(NamedTuple):
    """The ends of a central predictive interval, each ``(*batch_shape, N[, O])``."""

    lower: Tensor
    upper: Tensor


@final
class Predictive:
    """A mixture of S distributions in every row.

    Returned by ``likelihood.predictive(f)``, or built with :meth:`gaussian`, :meth:`student_t`,
    :meth:`poisson`, :meth:`bernoulli` or :meth:`categorical` from parameters of shape
    ``(*batch_shape, S, N[, O])``. The first ``batch_dims`` axes are replicas, each with a mixture
    of its own; :meth:`pool` merges them.

    Attributes:
        weights: Of the components, ``(*batch_shape, S, N)``; ``None`` if they are equal.
    """

    def __init__(
        self, components: Components, *, batch_dims: int = 0, weights: Tensor | None = None
    ) -> None:
        self._components = components
        self.weights = weights
        self._axis = batch_dims  # the component axis of parameters, the row axis of results
        shape = tuple(components.parameters[0].shape)
        layout = shape[: len(shape) - components.event_dims]
        allowed = (2,) if components.event_dims else (2, 3)
        if len(layout) - batch_dims not in allowed or 0 in shape[: batch_dims + 1]:
            raise ShapeError(
                f"{components.name} parameters have shape {shape} with batch_dims={batch_dims}; "
                "expected (*batch, S, N) or (*batch, S, N, outputs) with S of at least 1 "
                "(logits of a categorical: (*batch, S, N, classes))"
            )
        self.batch_shape: tuple[int, ...] = shape[:batch_dims]
        self.num_components: int = shape[batch_dims]
        self.num_rows: int = shape[batch_dims + 1]
        self._output_shape = layout[batch_dims + 2 :]

    @classmethod
    def gaussian(
        cls, loc: Tensor, scale: Tensor, spread: Tensor | None = None, *, batch_dims: int = 0
    ) -> Predictive:
        """Mix Gaussians with means ``loc`` and standard deviations ``scale``.

        ``spread``, if given, is the standard deviation of the function value within a component:
        the part of ``scale`` that is epistemic.
        """
        loc, scale = wide(loc=loc, scale=scale)
        check_range("scale", scale, scale > 0, "above 0")
        if spread is None:
            return cls(Gaussian(loc, scale), batch_dims=batch_dims)
        _, spread = wide(loc=loc, spread=spread)
        check_range("spread", spread, (spread >= 0) & (spread <= scale), "between 0 and scale")
        return cls(Gaussian(loc, scale, spread), batch_dims=batch_dims)

    @classmethod
    def student_t(
        cls, loc: Tensor, scale: Tensor, df: Tensor, *, batch_dims: int = 0
    ) -> Predictive:
        """Mix Student-t distributions with standard deviations ``scale·sqrt(df / (df − 2))``."""
        loc, scale, df = wide(loc=loc, scale=scale, df=df)
        check_range("scale", scale, scale > 0, "above 0")
        check_range("df", df, df > 2, "above 2")
        return cls(StudentT(loc, scale, df), batch_dims=batch_dims)

    @classmethod
    def poisson(cls, rate: Tensor, *, batch_dims: int = 0) -> Predictive:
        """Mix Poisson distributions with means ``rate``."""
        (rate,) = wide(rate=rate)
        check_range("rate", rate, rate >= 0, "at least 0")
        return cls(Poisson(rate), batch_dims=batch_dims)

    @classmethod
    def bernoulli(cls, logits: Tensor, *, batch_dims: int = 0) -> Predictive:
        """Mix Bernoulli distributions with ``P(y = 1) = sigmoid(logits)``."""
        return cls(Bernoulli(*wide(logits=logits)), batch_dims=batch_dims)

    @classmethod
    def categorical(cls, logits: Tensor, *, batch_dims: int = 0) -> Predictive:
        """Mix categorical distributions with ``P(y = c) = softmax(logits, -1)[..., c]``."""
        return cls(Categorical(*wide(logits=logits)), batch_dims=batch_dims)

    # Rows, replicas ------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        return (
            f"Predictive({self._components.name}, batch_shape={self.batch_shape}, "
            f"num_components={self.num_components}, num_rows={self.num_rows}, "
            f"num_outputs={math.prod(self._output_shape)})"
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Predictive:
        """Index parameters and weights, or change their memory layout."""
        weights = None if self.weights is None else change(self.weights)
        return Predictive(self._components.map(change), batch_dims=self._axis, weights=weights)

    def __getitem__(self, rows: int | slice | Sequence[int] | Tensor) -> Predictive:
        """Select rows; an integer selects a predictive of one row."""
        if isinstance(rows, int):
            if not -self.num_rows <= rows < self.num_rows:
                raise IndexError(f"row {rows} of a predictive with {self.num_rows} rows")
            rows = [rows]
        index = (*[slice(None)] * (self._axis + 1), rows)
        return self.map(lambda p: p[index])

    def unbind(self) -> list[Predictive]:
        """Split the first replica axis: one predictive per replica."""
        if not self.batch_shape:
            raise ShapeError("this predictive has no replicas to unbind: batch_shape is ()")
        family, axes = type(self._components), self._axis - 1
        replicas = zip(*(p.unbind() for p in self._components.parameters), strict=True)
        weights = [None] * self.batch_shape[0] if self.weights is None else self.weights.unbind()
        return [
            Predictive(family(*parameters), batch_dims=axes, weights=w)
            for parameters, w in zip(replicas, weights, strict=True)
        ]

    def pool(self) -> Predictive:
        """Merge replicas and draws into one mixture of R·S components: a deep ensemble."""
        weights = self.weights
        if weights is not None:
            weights = weights.flatten(0, self._axis) / math.prod(self.batch_shape)
        return Predictive(self._components.map(lambda p: p.flatten(0, self._axis)), weights=weights)

    @staticmethod
    def mix(parts: Sequence[Predictive], weights: Sequence[Tensor | float]) -> Predictive:
        """Mix predictives of the same rows and family: ``Σ_k weights[k] · p_k(y)``.

        Args:
            parts: Without replicas; :meth:`pool` merges them.
            weights: One per part, a number or one for every row ``(N,)``; they sum to 1.
        """
        kinds = [(type(p._components), p.num_rows, p._output_shape) for p in parts]
        if any(kind != kinds[0] for kind in kinds) or any(p.batch_shape for p in parts):
            raise ShapeError(f"cannot mix different predictives, or replicas: {list(parts)}")
        shares = [
            torch.as_tensor(w, dtype=torch.float64).to(p._weights()).expand(p.num_rows)
            for p, w in zip(parts, weights, strict=True)
        ]
        least, total = torch.stack(shares).amin(0), torch.stack(shares).sum(0)
        if not holds((least >= 0) & torch.isclose(total, torch.ones_like(total))):
            raise ConfigError("weights of a mixture must be positive and sum to 1 in every row")
        each = [share * p._weights() for share, p in zip(shares, parts, strict=True)]
        return Predictive(joined([p._components for p in parts]), weights=side_by_side(each))

    def _weights(self) -> Tensor:
        """Return the weights ``(*batch_shape, S, N)``, written out if they are equal."""
        if self.weights is not None:
            return self.weights
        shape = (*self.batch_shape, self.num_components, self.num_rows)
        like = self._components.parameters[0]
        return like.new_full((), 1 / self.num_components).expand(shape)

    @staticmethod
    def cat(parts: Sequence[Predictive]) -> Predictive:
        """Join predictives of the same family, replicas and draws along their rows."""
        if not parts:
            raise ShapeError("cannot join an empty list of predictives")
        kinds = {(p._components.name, p.batch_shape, p.num_components) for p in parts}
        tails = {p._components.parameters[0].shape[p._axis + 2 :] for p in parts}
        if len(kinds) > 1 or len(tails) > 1:
            raise ShapeError(f"cannot join different predictives along rows: {list(parts)}")
        axis = parts[0]._axis
        columns = zip(*(p._components.parameters for p in parts), strict=True)
        joined = [torch.cat(column, dim=axis + 1) for column in columns]
        weights = None
        if any(p.weights is not None for p in parts):
            weights = torch.cat([p._weights() for p in parts], dim=axis + 1)
        return Predictive(type(parts[0]._components)(*joined), batch_dims=axis, weights=weights)

    # Moments -------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """Mean, in the units of ``y`` (``P(y = 1)`` for Bernoulli)."""
        return self._average(self._components.mean())

    @property
    def variance(self) -> Tensor:
        """Total variance, noise included: ``epistemic**2 + aleatoric**2``."""
        return self._between() + self._average(self._components.variance())

    @property
    def std(self) -> Tensor:
        """Total standard deviation, noise included."""
        return self.variance.sqrt()

    @property
    def epistemic(self) -> Tensor:
        """Standard deviation of the function values, which more data would reduce."""
        between, within = self._between(), self._components.function_variance()
        return (between if within is None else between + self._average(within)).sqrt()

    @property
    def aleatoric(self) -> Tensor:
        """Standard deviation of the noise: the root of the components' mean variance."""
        noise, within = self._components.variance(), self._components.function_variance()
        return self._average(noise if within is None else noise - within).sqrt()

    # Distribution --------------------------------------------------------------------------

    def as_distribution(self) -> MixtureSameFamily:
        """Return it as one of torch: ``batch_shape`` ``(*batch_shape, N)``, a row is an event."""
        return mixture(self._components, self._weights(), self._axis, len(self._output_shape))

    def log_prob(self, y: Tensor) -> Tensor:
        """Return ``log p(y) = log Σ_s w_s p(y | s)`` in nats, shape ``(*batch_shape, N)``.

        The density is joint over the outputs of a row. Targets outside a discrete support have
        probability zero; NaN targets give NaN.
        """
        per_draw = self._components.log_prob(self._align(y))
        if self._output_shape:
            per_draw = per_draw.sum(-1)
        if self.weights is not None:
            return (per_draw + self.weights.log()).logsumexp(self._axis)
        return per_draw.logsumexp(self._axis) - math.log(self.num_components)

    def cdf(self, y: Tensor | float) -> Tensor:
        """Return ``P(Y <= y)`` per row and output, for targets or one number ``y``."""
        return self._average(self._components.cdf(self._align(y)))

    @torch.no_grad()
    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """Return the smallest ``y`` with ``cdf(y) >= q``, to float64 precision.

        Args:
            q: A level in (0, 1), or K of them.

        Returns:
            ``(*batch_shape, N[, O])`` for one level, with a leading axis K for several.
        """
        levels = torch.as_tensor(q, dtype=torch.float64)
        if levels.dim() > 1 or not bool(((levels > 0) & (levels < 1)).all()):
            raise ConfigError(f"quantile levels must lie strictly between 0 and 1, got {q}")
        if levels.dim() == 1:
            return torch.stack([self.quantile(float(level)) for level in levels])
        per_row = max(1, self._components.parameters[0].numel() // max(1, self.num_rows))
        size = max(1, _CHUNK_ELEMENTS // per_row)
        starts = range(0, self.num_rows, size)
        parts = [self[i : i + size]._quantile(float(levels)) for i in starts]
        return torch.cat(parts, dim=self._axis) if parts else self.mean

    def interval(self, level: float) -> Interval:
        """Return the central interval that holds probability ``level``, as (lower, upper)."""
        if not 0 < level < 1:
            raise ConfigError(f"interval level must lie strictly between 0 and 1, got {level!r}")
        return Interval(self.quantile((1 - level) / 2), self.quantile((1 + level) / 2))

    def sample(self, num_draws: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw targets, noise included; shape ``(num_draws, *batch_shape, N[, O])``.

        Each draw uses one component (one draw of the network) for all rows, with independent
        noise per row. Where weights differ between rows, a draw has the same place in all of them
        between the first component and the last.
        """
        check_positive_int("num_draws", num_draws)
        device = self._components.parameters[0].device
        if self.weights is not None:
            return self._weighted_sample(num_draws, generator)
        shape = (num_draws, *self.batch_shape)
        index = torch.randint(self.num_components, shape, generator=generator, device=device)
        replica = torch.arange(math.prod(self.batch_shape), device=device).reshape(self.batch_shape)
        index = index + self.num_components * replica
        return self._components.map(lambda p: p.flatten(0, self._axis)[index]).sample(generator)

    def _weighted_sample(self, num_draws: int, generator: torch.Generator | None) -> Tensor:
        if self.batch_shape:
            return torch.stack([p.sample(num_draws, generator=generator) for p in self.unbind()], 1)
        ends = self._weights().cumsum(0).T.contiguous()  # (N, S)
        place = torch.rand(num_draws, generator=generator, dtype=ends.dtype, device=ends.device)
        chosen = torch.searchsorted(ends, place.expand(self.num_rows, -1).contiguous()).T
        chosen = chosen.clamp_max(self.num_components - 1)  # (num_draws, N)
        row = torch.arange(self.num_rows, device=ends.device)
        return self._components.map(lambda p: p[chosen, row]).sample(generator)

    # Classes -------------------------------------------------------------------------------

    @property
    def probs(self) -> Tensor:
        """Class probabilities ``(*batch_shape, N[, O], C)``; Bernoulli has C = 2."""
        return self._average(self._components.class_probs())

    @property
    def mode(self) -> Tensor:
        """Most probable class, int64; the lowest label in case of ties."""
        return self.probs.argmax(-1)

    def entropy(self) -> Tensor:
        """Entropy of the class probabilities in nats: total uncertainty."""
        return _entropy(self.probs)

    def mutual_information(self) -> Tensor:
        """Entropy minus the components' mean entropy, in nats: epistemic uncertainty, >= 0."""
        within = self._average(_entropy(self._components.class_probs()))
        return (self.entropy() - within).clamp_min(0)

    def gaussian_components(self) -> tuple[Tensor, Tensor] | None:
        """Return ``(loc, scale)`` if the components are Gaussian, else ``None``."""
        if not isinstance(self._components, Gaussian):
            return None
        loc, scale = self._components.parameters[:2]
        return loc, scale

    def component_means(self) -> Tensor:
        """Return the mean of every component, ``(*batch_shape, S, N[, O])``; of labels, probs."""
        parts = self._components
        return parts.class_probs() if isinstance(parts, Bernoulli | Categorical) else parts.mean()

    @property
    def discrete(self) -> bool:
        """Whether outcomes are integers."""
        return self._components.discrete

    # Private helpers -----------------------------------------------------------------------

    def _align(self, y: Tensor | float) -> Tensor:
        """View targets in the layout of the components, as float64."""
        like = self._components.parameters[0]
        y = torch.as_tensor(y, dtype=like.dtype, device=like.device)
        if y.dim() == 0:
            return y
        outputs = self._output_shape[0] if self._output_shape else 1
        aligned = align_targets(y, self.batch_shape, self.num_rows, outputs)
        return aligned if self._output_shape else aligned.squeeze(-1)

    def _average(self, values: Tensor) -> Tensor:
        """Return ``Σ_s w_s values_s`` of values ``(*batch_shape, S, N, ...)``."""
        if self.weights is None:
            return values.mean(self._axis)
        weights = self.weights[(..., *[None] * (values.dim() - self.weights.dim()))]
        return (weights * values).sum(self._axis)

    def _between(self) -> Tensor:
        return self._average((self._components.mean() - self.mean.unsqueeze(self._axis)).square())

    def _density_at(self, x: Tensor) -> Tensor:
        return self._average(self._components.log_prob(x.unsqueeze(self._axis)).exp())

    def _quantile(self, q: float) -> Tensor:
        # Cantelli's inequality bounds the distance of any quantile from the mean.
        mean, std = self.mean, self.std
        lower = mean - std * math.sqrt((1 - q) / q)
        upper = mean + std * math.sqrt(q / (1 - q))
        if self._components.discrete:
            return smallest_integer(self.cdf, q, lower.floor() - 1, upper.ceil())
        return root(self.cdf, self._density_at, q, lower, upper)


def _entropy(probs: Tensor) -> Tensor:
    terms: Tensor = torch.special.entr(probs)
    return terms.sum(-1)
