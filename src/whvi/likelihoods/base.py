"""The interface of all likelihoods, and the target scaling that the real-valued ones share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from whvi._checks import check_finite, check_float_dtype, check_positive_int
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.predictive import Predictive, align_targets

Gradient = Tensor | None
Vjp = Callable[[Tensor], list[Gradient]]
"""Turns the gradient of ``log_prob`` into those of ``f`` and of the parameters."""


class Likelihood(nn.Module, ABC):
    r"""A conditional density :math:`p(y \mid f)` of targets given function values.

    ==================  ==========================================  ===============================
    function values     ``f: (*batch_shape, S, N, num_features)``   replicas, draws, rows, features
    targets             ``y: (*batch_shape, N, num_outputs)``       or ``(N, num_outputs)``, shared
    parameters          ``(*batch_shape, num_outputs)``             one per output and replica
    ``log_prob(f, y)``  ``(*batch_shape, S, N)``                    nats, summed over outputs
    ==================  ==========================================  ===============================

    With one output the last axis of the targets may be left out. Other shapes raise
    :class:`~whvi.errors.ShapeError` instead of being broadcast.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas, ``()`` for one model.
    """

    # Buffers of RealLikelihood, shape (*batch_shape, num_outputs).
    target_mean: Tensor
    target_scale: Tensor

    def __init__(self, num_outputs: int, batch_shape: tuple[int, ...]) -> None:
        super().__init__()
        check_positive_int("num_outputs", num_outputs)
        for size in batch_shape:
            check_positive_int("every entry of batch_shape", size)
        self.num_outputs = num_outputs
        self.batch_shape = tuple(batch_shape)

    @property
    def num_features(self) -> int:
        """How many outputs the network must have."""
        return self.num_outputs

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y | f)`` in nats, for ``y`` in its own units, summed over outputs.

        Args:
            f: Function values, shape ``(*batch_shape, S, N, num_features)``.
            y: Targets. Their values are not checked here; see :meth:`check_targets`.

        Returns:
            Shape ``(*batch_shape, S, N)``.
        """

    def vjp(self, f: Tensor, y: Tensor) -> tuple[Tensor, Vjp]:
        """Return :meth:`log_prob` without a graph, and what turns its gradient into others.

        These are the gradients of ``f`` and, in order, of the parameters; ``None`` for one that
        does not require it or does not matter. As ``torch.func.vjp``, with less around it.
        """
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            wanted = [p for p in self.parameters() if p.requires_grad]
            log_prob = self.log_prob(f, y)

        def vjp(grad: Tensor) -> list[Gradient]:
            found = torch.autograd.grad(
                log_prob, [f, *wanted], grad, allow_unused=True, retain_graph=True
            )
            by_parameter = dict(zip(wanted, found[1:], strict=True))
            return [found[0], *(by_parameter.get(p) for p in self.parameters())]

        return log_prob.detach(), vjp

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """Return the mixture over the draws ``f: (*batch_shape, S, N, num_features)``.

        Each replica has its own mixture; ``.pool()`` merges them into one ensemble.
        """

    def noise_parameters(self) -> list[nn.Parameter]:
        """Return the noise parameters, which ``fit`` keeps fixed for the first steps."""
        return list(self.parameters())

    def set_target_scaling(self, y: Tensor) -> None:
        """Set the units of the targets from training targets; labels have none to set."""

    def check_targets(self, y: Tensor) -> None:
        """Raise :class:`~whvi.errors.DataError` if a target is outside the support."""
        check_finite("targets", y)

    def extra_repr(self) -> str:
        """Show the sizes, not the values."""
        replicas = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        return f"num_outputs={self.num_outputs}{replicas}"

    # Helpers of the subclasses --------------------------------------------------------------

    def _check_values(self, f: Tensor) -> None:
        """Raise unless ``f`` has shape ``(*batch_shape, S, N, num_features)``."""
        shape = f.shape
        if len(shape) >= 3 and shape[:-3] == self.batch_shape and shape[-1] == self.num_features:
            return
        expected = ", ".join([*map(str, self.batch_shape), f"S, N, {self.num_features}"])
        hint = ""
        if shape == (*self.batch_shape, *shape[-2:-1], self.num_features):
            hint = "; for a single draw pass f.unsqueeze(-3)"
        elif len(shape) > 3 and shape[:-3] != self.batch_shape:
            hint = f"; for replicas make the likelihood with batch_shape={tuple(shape[:-3])}"
        raise ShapeError(f"function values must have shape ({expected}), got {tuple(shape)}{hint}")

    def _aligned(self, f: Tensor, y: Tensor) -> Tensor:
        """Check both shapes and view targets as ``(..., 1, N, num_outputs)``."""
        self._check_values(f)
        return align_targets(y, self.batch_shape, f.shape[-2], self.num_outputs)

    def _per_row(self, value: Tensor) -> Tensor:
        """View ``(*batch_shape, O)`` so that it broadcasts with ``(*batch_shape, S, N, O)``."""
        return value.view(*self.batch_shape, 1, 1, -1) if self.batch_shape else value

    def _over_outputs(self, values: Tensor) -> Tensor:
        """Sum over the last axis; a view if it has length 1."""
        return values.squeeze(-1) if self.num_outputs == 1 else values.sum(-1)

    def _mixture(self, family: Callable[..., Predictive], *parameters: Tensor) -> Predictive:
        """Build a predictive; a single output loses its axis."""
        if self.num_outputs == 1:
            parameters = tuple(p.squeeze(-1) for p in parameters)
        return family(*parameters, batch_dims=len(self.batch_shape))


class RealLikelihood(Likelihood):
    """Real-valued targets, standardized: ``z = (y − target_mean) / target_scale``.

    The first ``num_outputs`` features are the means of ``z``.
    """

    def __init__(
        self,
        num_outputs: int,
        batch_shape: tuple[int, ...],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(num_outputs, batch_shape)
        check_float_dtype(dtype)
        shape = (*self.batch_shape, num_outputs)
        self.register_buffer("target_mean", torch.zeros(shape, device=device, dtype=dtype))
        self.register_buffer("target_scale", torch.ones(shape, device=device, dtype=dtype))

    def set_target_scaling(self, y: Tensor) -> None:
        """Set ``target_mean`` and ``target_scale`` (population std; 1 for a constant target)."""
        mean, scale = _target_moments(target_rows(self, y), self.target_mean.dtype)
        self.target_mean.copy_(mean)
        self.target_scale.copy_(scale)

    def _parameter(self, value: float) -> nn.Parameter:
        """Make a parameter with the same value for every replica and output."""
        return nn.Parameter(self.target_mean.new_full(self.target_mean.shape, value))

    def _standardized(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``z = (y − target_mean) / target_scale`` in the dtype of ``f``, and the scale."""
        target_scale = self._per_row(self.target_scale)
        z = (self._aligned(f, y) - self._per_row(self.target_mean)) / target_scale
        return z.to(f.dtype), target_scale

    def _in_units(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of ``y`` in its own units, in float64, and the scale."""
        self._check_values(f)
        target_scale = self._per_row(self.target_scale.double())
        mean = f[..., : self.num_outputs].double()
        return mean * target_scale + self._per_row(self.target_mean.double()), target_scale


def check_likelihood(likelihood: object) -> None:
    """Refuse anything but a likelihood."""
    if not isinstance(likelihood, Likelihood):
        given = f"the class {likelihood.__name__}" if isinstance(likelihood, type) else None
        raise ConfigError(
            "likelihood must be one of whvi.likelihoods, such as Gaussian(), got "
            f"{given or type(likelihood).__name__}"
        )


def target_rows(likelihood: Likelihood, y: Tensor) -> Tensor:
    """Check training targets and view them as float64 ``(..., N, num_outputs)``."""
    likelihood.check_targets(y)
    batch, num_outputs, shape = likelihood.batch_shape, likelihood.num_outputs, tuple(y.shape)
    # (N,) and (*batch, N) lack the output axis; (N, O) and (*batch, N, O) have it.
    per_replica = len(batch) > 0 and shape[:-1] == batch and shape[-1] != 1
    rows = y.unsqueeze(-1) if num_outputs == 1 and (y.dim() == 1 or per_replica) else y
    if rows.dim() < 2 or rows.shape[-1] != num_outputs or rows.shape[:-2] not in ((), batch):
        raise ShapeError(
            f"targets have shape {shape}; expected (N, {num_outputs}) or "
            f"(*batch_shape, N, {num_outputs}) with batch_shape {batch}"
        )
    if rows.shape[-2] == 0:
        raise DataError("targets have zero rows; at least one is needed to set their scaling")
    return rows.detach().double()


def _target_moments(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return mean and population standard deviation over rows; a constant target has scale 1."""
    mean = rows.mean(-2)
    scale = rows.std(-2, correction=0)
    constant = rows.amax(-2) == rows.amin(-2)
    mean = torch.where(constant, rows[..., 0, :], mean).to(dtype)
    scale = torch.where(constant, 1.0, scale).to(dtype)
    usable = mean.isfinite() & scale.isfinite() & (scale >= torch.finfo(dtype).tiny)
    if not bool(usable.all()):
        raise DataError(
            f"targets with mean {mean.tolist()} and standard deviation {scale.tolist()} "
            f"are outside the range of {dtype}; change their unit or use float64"
        )
    return mean, scale


def check_support(y: Tensor, possible: Tensor, support: str) -> None:
    """Raise if a target is not finite, or ``possible`` is false for it, naming the first one."""
    check_finite("targets", y)
    if bool(possible.all()):
        return
    bad = (~possible).nonzero()
    first = tuple(bad[0].tolist())
    raise DataError(
        f"targets must be {support}; {len(bad)} are not "
        f"(first: {y[first].item()} at index {first}); encode or drop them before fitting"
    )


class LikelihoodWrapper(Likelihood):
    """Changes how another likelihood is trained: all but ``log_prob`` is that of ``inner``."""

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
