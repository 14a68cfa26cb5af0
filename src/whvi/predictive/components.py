"""Mixture components: the distribution of the targets given one draw of the network.

Also here: checks of parameters and targets, and inverses of a cdf.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from typing import NoReturn, final

import torch
from torch import Tensor
from torch.compiler import is_exporting

from whvi.errors import ConfigError, DataError, NumericalError, ShapeError
from whvi.predictive.numerics import EPS, regularized_incomplete_beta, student_t_log_prob

_LOG_2PI = math.log(2 * math.pi)


class Components(ABC):
    """The S distributions of every row, elementwise over parameters of one shape.

    Parameters are ``(*batch_shape, S, N[, O])``; every method returns that shape.
    """

    name: str
    discrete = False
    event_dims = 0  # trailing axes of a parameter that describe one outcome (class logits)

    def __init__(self, *parameters: Tensor) -> None:
        self.parameters = parameters

    def map(self, change: Callable[[Tensor], Tensor]) -> Components:
        """Index or reshape every parameter in the same way."""
        return type(self)(*(change(p) for p in self.parameters))

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(f"a {self.name} predictive has no {what}")

    def mean(self) -> Tensor:
        """Mean of each component."""
        self._refuse("mean; use probs")

    def variance(self) -> Tensor:
        """Variance of each component."""
        self._refuse("variance; use entropy()")

    def function_variance(self) -> Tensor | None:
        """Part of the variance that is not noise, for components that are not single functions."""
        return None

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of at most ``y``."""
        self._refuse("cdf, quantiles or intervals; use probs")

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density or mass at ``y`` in nats."""
        self._refuse("log_prob")

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Draw one target from each component."""
        self._refuse("samples")

    def class_probs(self) -> Tensor:
        """Probabilities of the classes, on a new last axis."""
        self._refuse("classes: probs, mode, entropy and mutual_information are for labels")


@final
class Gaussian(Components):
    """Parameters loc, scale, and for components that are not single functions their spread."""

    name = "Gaussian"

    def mean(self) -> Tensor:
        return self.parameters[0]

    def variance(self) -> Tensor:
        return self.parameters[1].square()

    def function_variance(self) -> Tensor | None:
        return self.parameters[2].square() if len(self.parameters) == 3 else None

    def cdf(self, y: Tensor) -> Tensor:
        loc, scale = self.parameters[:2]
        value: Tensor = torch.special.ndtr((y - loc) / scale)
        return value

    def log_prob(self, y: Tensor) -> Tensor:
        loc, scale = self.parameters[:2]
        return -0.5 * (((y - loc) / scale).square() + _LOG_2PI) - scale.log()

    def sample(self, generator: torch.Generator | None) -> Tensor:
        loc, scale = self.parameters[:2]
        noise = torch.randn(loc.shape, generator=generator, dtype=loc.dtype, device=loc.device)
        return loc + scale * noise


@final
class StudentT(Components):
    """Parameters loc, scale (not the standard deviation) and df > 2."""

    name = "Student-t"

    def mean(self) -> Tensor:
        return self.parameters[0]

    def variance(self) -> Tensor:
        _, scale, df = self.parameters
        return scale.square() * df / (df - 2)

    def cdf(self, y: Tensor) -> Tensor:
        loc, scale, df = self.parameters
        t = (y - loc) / scale
        ratio = t.square() / df
        x, complement = 1 / (1 + ratio), 1 / (1 + 1 / ratio)
        half = torch.full_like(df, 0.5)
        tail = 0.5 * regularized_incomplete_beta(df / 2, half, x, complement)
        return torch.where(t > 0, 1 - tail, tail)

    def log_prob(self, y: Tensor) -> Tensor:
        loc, scale, df = self.parameters
        return student_t_log_prob((y - loc) / scale, df) - scale.log()

    def sample(self, generator: torch.Generator | None) -> Tensor:
        # Bailey (1994): exact for any real df, and needs uniforms only.
        loc, scale, df = self.parameters
        u, v = torch.rand((2, *loc.shape), generator=generator, dtype=loc.dtype, device=loc.device)
        radius = (df * torch.expm1(-2 / df * torch.log1p(-u))).sqrt()
        return loc + scale * radius * torch.cos(2 * math.pi * v)


def _keep_nan(y: Tensor, value: Tensor) -> Tensor:
    """Return ``value``, but NaN where the target is NaN, which comparisons would hide."""
    return torch.where(y.isnan(), y, value)


@final
class Poisson(Components):
    name = "Poisson"
    discrete = True

    def mean(self) -> Tensor:
        return self.parameters[0]

    def variance(self) -> Tensor:
        return self.parameters[0]

    def cdf(self, y: Tensor) -> Tensor:
        (rate,) = self.parameters
        count = y.floor()
        inside = torch.special.gammaincc(count.clamp_min(0) + 1, rate)
        return _keep_nan(y, torch.where(count < 0, 0.0, inside))

    def log_prob(self, y: Tensor) -> Tensor:
        (rate,) = self.parameters
        inside = torch.xlogy(y, rate) - rate - torch.lgamma(y + 1)
        possible = (y >= 0) & (y == y.floor()) & y.isfinite()
        return _keep_nan(y, torch.where(possible, inside, -math.inf))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return torch.poisson(self.parameters[0], generator=generator)


@final
class Bernoulli(Components):
    name = "Bernoulli"
    discrete = True

    def mean(self) -> Tensor:
        return self.parameters[0].sigmoid()

    def variance(self) -> Tensor:
        return self.parameters[0].sigmoid() * (-self.parameters[0]).sigmoid()

    def cdf(self, y: Tensor) -> Tensor:
        inside = torch.where(y >= 1, 1.0, (-self.parameters[0]).sigmoid())
        return _keep_nan(y, torch.where(y < 0, 0.0, inside))

    def log_prob(self, y: Tensor) -> Tensor:
        inside = torch.nn.functional.logsigmoid((2 * y - 1) * self.parameters[0])
        return _keep_nan(y, torch.where((y == 0) | (y == 1), inside, -math.inf))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return torch.bernoulli(self.mean(), generator=generator)

    def class_probs(self) -> Tensor:
        (logits,) = self.parameters
        return torch.stack([(-logits).sigmoid(), logits.sigmoid()], dim=-1)


@final
class Categorical(Components):
    name = "categorical"
    discrete = True
    event_dims = 1

    def log_prob(self, y: Tensor) -> Tensor:
        log_probs = self.parameters[0].log_softmax(-1)
        label = y.long().clamp(0, log_probs.shape[-1] - 1)
        label = label.expand(log_probs.shape[:-1]).unsqueeze(-1)
        inside = log_probs.gather(-1, label).squeeze(-1)
        return _keep_nan(y, torch.where(y == label.squeeze(-1), inside, -math.inf))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        probs = self.class_probs()
        flat = probs.reshape(-1, probs.shape[-1])
        return torch.multinomial(flat, 1, generator=generator).reshape(probs.shape[:-1]).double()

    def class_probs(self) -> Tensor:
        return self.parameters[0].softmax(-1)


def joined(parts: Sequence[Components]) -> Components:
    """Join components of one family along their first axis; Gaussians may lack a spread."""
    most = max(len(part.parameters) for part in parts)
    filled = [
        part.parameters
        if len(part.parameters) == most
        else (*part.parameters, torch.zeros_like(part.parameters[0]))
        for part in parts
    ]
    return type(parts[0])(*(side_by_side(column) for column in zip(*filled, strict=True)))


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors along their first axis, with its entries side by side in memory.

    Sums over the components of a row are then in the same order for any number of rows.
    """
    return torch.cat([part.movedim(0, -1) for part in parts], dim=-1).movedim(-1, 0)


# Checks --------------------------------------------------------------------------------------


def align_targets(
    y: Tensor, batch_shape: tuple[int, ...], num_rows: int, num_outputs: int
) -> Tensor:
    """View targets as ``(..., 1, N, O)``, broadcastable with function values ``(*batch, S, N, O)``.

    Accepts ``(*batch_shape, N, O)`` and ``(N, O)`` (shared by all replicas), and for one output
    also ``(*batch_shape, N)`` and ``(N,)``. Any other shape raises :class:`ShapeError`.
    """
    shape = tuple(y.shape)
    if shape == (*batch_shape, num_rows, num_outputs) or shape == (num_rows, num_outputs):
        return y.unsqueeze(-3)
    if num_outputs == 1 and (shape == (*batch_shape, num_rows) or shape == (num_rows,)):
        return y.unsqueeze(-1).unsqueeze(-3)
    expected = [(*batch_shape, num_rows, num_outputs), (num_rows, num_outputs)]
    if num_outputs == 1:
        expected += [(*batch_shape, num_rows), (num_rows,)]
    names = " or ".join(str(option) for option in dict.fromkeys(expected))
    raise ShapeError(
        f"targets have shape {shape}, but function values have {num_rows} rows, {num_outputs} "
        f"output(s) and batch_shape {tuple(batch_shape)}: reshape the targets to {names}"
    )


def holds(condition: Tensor) -> bool:
    """Tell whether a condition holds everywhere; assume it in torch.export, which has no values."""
    return is_exporting() or bool(condition.all())


def wide(**parameters: Tensor) -> list[Tensor]:
    """Expand parameters to the shape of the first, in float64; raise if any is not finite."""
    for name, p in parameters.items():
        finite = torch.isfinite(p.detach())
        if not holds(finite):
            bad = ~finite
            where = tuple(bad.nonzero()[0].tolist())
            raise NumericalError(
                f"predictive parameter {name} holds {int(bad.sum())} values that are not finite "
                f"(first: {p[where].item()} at index {where}); the network's outputs overflowed"
            )
    first, *others = parameters.values()
    try:
        return [first.double(), *(p.double().expand(first.shape) for p in others)]
    except RuntimeError as error:
        shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        raise ShapeError(f"all parameters must fit the shape of the first: {shapes}") from error


def check_range(name: str, p: Tensor, possible: Tensor, range_: str) -> None:
    """Refuse a parameter that is not ``possible`` everywhere."""
    if not holds(possible):
        raise DataError(f"{name} must be {range_}, got {p.min().item()}")


# Inverses of a cdf ----------------------------------------------------------------------------


def smallest_integer(
    cdf: Callable[[Tensor], Tensor], q: float, lower: Tensor, upper: Tensor
) -> Tensor:
    """Return the smallest integer ``k`` with ``cdf(k) >= q``.

    Bisection from integers with ``cdf(lower) < q <= cdf(upper)``.
    """
    lower = lower.clamp_min(-1)
    while bool((upper - lower > 1).any()):
        middle = ((lower + upper) / 2).floor()
        above = cdf(middle) >= q
        upper, lower = torch.where(above, middle, upper), torch.where(above, lower, middle)
    return upper


def root(
    cdf: Callable[[Tensor], Tensor],
    density: Callable[[Tensor], Tensor],
    q: float,
    lower: Tensor,
    upper: Tensor,
) -> Tensor:
    """Solve ``cdf(x) = q`` by Newton steps, replaced by bisection where they do not help.

    ``lower`` and ``upper`` are Cantelli's bounds, ``std / sqrt(q (1 - q))`` apart. An entry that
    has converged is not updated any more: its root does not depend on the other entries.
    """
    moving = torch.ones_like(lower, dtype=torch.bool)
    x, previous = (lower + upper) / 2, torch.full_like(lower, math.inf)
    std = (upper - lower) * math.sqrt(q * (1 - q))
    for _ in range(200):
        gap = cdf(x) - q
        upper, lower = torch.where(gap >= 0, x, upper), torch.where(gap < 0, x, lower)
        newton = x - gap / density(x)
        helps = (newton >= lower) & (newton <= upper) & (gap.abs() < previous / 2)
        step = torch.where(helps, newton, (lower + upper) / 2)
        step = torch.where(gap.abs() <= 8 * EPS * q, x, step)  # at the cdf's precision
        step = torch.where(moving, step, x)
        moved, x, previous = (step - x).abs(), step, gap.abs()
        moving &= moved > 2 * EPS * (x.abs() + std)
        if not bool(moving.any()):
            break
    return x
