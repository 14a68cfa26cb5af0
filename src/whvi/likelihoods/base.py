"""What every likelihood is, and the target scaling that the real-valued ones share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from whvi._checks import check_finite, check_positive_int
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.predictive import Predictive, align_targets


class Likelihood(nn.Module, ABC):
    """A conditional density of targets given function values, for R replicas and S draws.

    Function values are ``f: (*batch_shape, S, N, num_features)``. Targets are
    ``(*batch_shape, N, num_outputs)`` or, shared by all replicas, ``(N, num_outputs)``; for one
    output the last axis may be left out. Parameters and buffers of a likelihood have shape
    ``(*batch_shape, num_outputs)``: every output of every replica has its own.

    Args:
        num_outputs: Number of target columns.
        batch_shape: ``(R,)`` for R replicas, ``()`` for one model.
    """

    def __init__(self, num_outputs: int, batch_shape: tuple[int, ...]) -> None:
        super().__init__()
        check_positive_int("num_outputs", num_outputs)
        for size in batch_shape:
            check_positive_int("every entry of batch_shape", size)
        self.num_outputs = num_outputs
        self.batch_shape = tuple(batch_shape)

    @property
    def num_features(self) -> int:
        """How many function outputs the network must produce."""
        return self.num_outputs

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return ``log p(y | f)`` in nats per unit of ``y``, summed over outputs.

        Args:
            f: Function values, shape ``(*batch_shape, S, N, num_features)``.
            y: Targets in the user's units; values are not checked here, see
                :meth:`check_targets`.

        Returns:
            Shape ``(*batch_shape, S, N)``.
        """

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """Return the mixture over draws of ``f: (*batch_shape, S, N, num_features)``.

        Replicas stay apart, each with its mixture; ``.pool()`` makes them one ensemble.
        """

    def noise_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the noise, which a trainer may hold fixed at first."""
        return []

    def set_target_scaling(self, y: Tensor) -> None:
        """Fit the units of the targets on training targets; label likelihoods have none."""

    def check_targets(self, y: Tensor) -> None:
        """Refuse targets outside the support, naming the first; call it once, at the door."""
        check_finite("targets", y)

    def extra_repr(self) -> str:
        """Show the sizes, not the values."""
        replicas = f", batch_shape={self.batch_shape}" if self.batch_shape else ""
        return f"num_outputs={self.num_outputs}{replicas}"

    def _parameter(
        self, value: float, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> nn.Parameter:
        """Make a parameter of one value for every replica and output."""
        shape = (*self.batch_shape, self.num_outputs)
        return nn.Parameter(torch.full(shape, float(value), device=device, dtype=dtype))

    def _check_values(self, f: Tensor) -> None:
        """Refuse function values of a shape other than ``(*batch_shape, S, N, num_features)``."""
        shape = f.shape
        if (
            len(shape) != len(self.batch_shape) + 3
            or shape[:-3] != self.batch_shape
            or shape[-1] != self.num_features
        ):
            replicas = "".join(f"{size}, " for size in self.batch_shape)
            raise ShapeError(
                f"function values must have shape ({replicas}S, N, {self.num_features}), "
                f"got {tuple(shape)}"
            )

    def _aligned(self, f: Tensor, y: Tensor) -> Tensor:
        """Check both shapes and view targets as ``(..., 1, N, num_outputs)``."""
        self._check_values(f)
        return align_targets(y, self.batch_shape, f.shape[-2], self.num_outputs)

    def _per_row(self, value: Tensor) -> Tensor:
        """View ``(*batch_shape, O)`` so that it meets ``(*batch_shape, S, N, O)``."""
        return value[..., None, None, :] if self.batch_shape else value

    def _over_outputs(self, values: Tensor) -> Tensor:
        """Sum the last axis; for one output that is a view."""
        return values.squeeze(-1) if self.num_outputs == 1 else values.sum(-1)

    def _dropped_output(self, values: Tensor) -> Tensor:
        """Leave out the output axis of a single output, as :class:`Predictive` wants it."""
        return values.squeeze(-1) if self.num_outputs == 1 else values


def add_target_scaling(
    likelihood: Likelihood, device: torch.device | str | None, dtype: torch.dtype | None
) -> None:
    """Register ``target_mean`` = 0 and ``target_scale`` = 1 of shape (*batch_shape, outputs)."""
    shape = (*likelihood.batch_shape, likelihood.num_outputs)
    likelihood.register_buffer("target_mean", torch.zeros(shape, device=device, dtype=dtype))
    likelihood.register_buffer("target_scale", torch.ones(shape, device=device, dtype=dtype))


def rows_of_targets(likelihood: Likelihood, y: Tensor) -> Tensor:
    """View training targets as float64 ``(..., N, num_outputs)`` and refuse unusable ones."""
    likelihood.check_targets(y)
    batch = likelihood.batch_shape
    shape = tuple(y.shape)
    # (N,) and (*batch, N) miss the output axis; (N, O) and (*batch, N, O) have it.
    missing = likelihood.num_outputs == 1 and (
        len(shape) == 1 or (shape[:-1] == batch and shape[-1] != 1 and len(batch) > 0)
    )
    rows = y.unsqueeze(-1) if missing else y
    if (
        rows.dim() < 2
        or rows.shape[-1] != likelihood.num_outputs
        or rows.shape[:-2]
        not in (
            (),
            batch,
        )
    ):
        raise ShapeError(
            f"targets have shape {shape}; expected (N, {likelihood.num_outputs}) or "
            f"(*batch_shape, N, {likelihood.num_outputs}) with batch_shape {batch}"
        )
    if rows.shape[-2] == 0:
        raise DataError("cannot fit the units of the targets on zero rows")
    return rows.detach().double()


def target_moments(likelihood: Likelihood, y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return mean and population standard deviation over rows; a constant target has scale 1."""
    rows = rows_of_targets(likelihood, y)
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
    """Refuse targets where ``possible`` is false, naming the first and what was expected."""
    if bool(possible.all()):
        return
    bad = (~possible).nonzero()
    first = tuple(bad[0].tolist())
    raise DataError(
        f"targets must be {support}; {len(bad)} are not "
        f"(first: {y[first].item()} at index {first}); encode or drop them before fitting"
    )


def check_df(df: float, least: float) -> None:
    """Refuse degrees of freedom at which the variance of a Student-t is not finite."""
    if not (isinstance(df, int | float) and least < df < float("inf")):
        raise ConfigError(f"df must be a finite number above {least}, got {df!r}")
