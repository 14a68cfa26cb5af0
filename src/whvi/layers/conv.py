r"""Convolutions of any dimension with a random kernel: a linear map on unfolded patches.

The kernel ``(out_channels, in_channels / groups, *kernel_size)`` is, for each group, a matrix
``(out_channels / groups) × (in_channels / groups · Π kernel_size)`` that multiplies the patches of
the padded input: the same random matrix as in a linear layer (section 2 of the paper). Groups are
replicas of that matrix. Local reparameterization draws a matrix for every patch.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from whvi._checks import check_dtype, check_positive_int
from whvi.errors import ConfigError, ShapeError
from whvi.layers.linear import Device, RandomAffine
from whvi.layers.matrix import OutputMoments, WeightMoments
from whvi.layers.meanfield import DenseGaussianMatrix
from whvi.layers.structured import StructuredMatrix
from whvi.layers.window import Sizes, Window, make_window
from whvi.posteriors import Posterior, PosteriorFactory
from whvi.posteriors.base import sum_of_kls
from whvi.priors import Prior, PriorFactory
from whvi.sampling import Sampler, check_draws_axis, current_sampler, insert_inner_axes


class RandomConv(RandomAffine):
    """A convolution with a random kernel; final classes say how many axes and which matrix.

    Parameters of a grouped convolution have an axis of groups after ``batch_shape``.
    """

    num_axes: int

    def _set_sizes(
        self,
        in_channels: int,
        out_channels: int,
        groups: int,
        window: Window,
        batch_shape: tuple[int, ...],
    ) -> tuple[int, int, tuple[int, ...]]:
        """Check and keep the sizes; return inputs, outputs and replicas of the matrix."""
        for name, size in (
            ("in_channels", in_channels),
            ("out_channels", out_channels),
            ("groups", groups),
        ):
            check_positive_int(name, size)
        if in_channels % groups or out_channels % groups:
            raise ConfigError(
                f"groups must divide in_channels and out_channels, got groups {groups}, "
                f"in_channels {in_channels}, out_channels {out_channels}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.window, self.batch_shape = window, tuple(batch_shape)
        replicas = (*self.batch_shape, groups) if groups > 1 else self.batch_shape
        return (
            in_channels // groups * math.prod(window.kernel_size),
            out_channels // groups,
            replicas,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``(*batch_shape, *inner, in_channels, *spatial)``, any inner axes."""
        self._check(x)
        sampler = current_sampler()
        batch_ndim, row_ndim = len(self.batch_shape), 1 + self.num_axes
        check_draws_axis(x, sampler, batch_ndim, row_ndim)
        y = self._join_groups(self.matrix.multiply(self._patches(x), None, sampler))
        inner_shape = tuple(y.shape[batch_ndim:-1])
        if self.bias_posterior is not None:
            bias = sampler.value(self.bias_posterior, inner_shape)
            y = y + insert_inner_axes(bias, batch_ndim, len(inner_shape))
        elif self.bias is not None:
            y = y + insert_inner_axes(self.bias, batch_ndim, len(inner_shape))
        return y.movedim(-1, -row_ndim)

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return the exact mean and variance of the output, without sampling.

        Args:
            x: Shape ``(*batch_shape, *inner, in_channels, *spatial)``.

        Returns:
            Mean and variance, each of the shape of the output. They are marginals.
        """
        self._check(x)
        mean, variance = map(self._join_groups, self.matrix.output_moments(self._patches(x)))
        inner_ndim = mean.dim() - len(self.batch_shape) - 1
        moments = self._with_bias(OutputMoments(mean, variance), inner_ndim)
        return OutputMoments(*(m.movedim(-1, -1 - self.num_axes) for m in moments))

    def weight_moments(self) -> WeightMoments:
        """Return mean and covariance of the flat kernel, for small layers."""
        mean, covariance = self.matrix.moments()
        if self.groups == 1:
            return WeightMoments(mean, covariance)
        apart = torch.diag_embed(covariance.movedim(-3, -1))  # (..., n, n, G, G)
        whole = apart.movedim((-2, -1), (-4, -2)).flatten(-4, -3).flatten(-2)
        return WeightMoments(mean.flatten(-2), whole)

    def kl(self) -> Tensor:
        """Return the KL of kernel and (if random) bias in nats, shape ``batch_shape``."""
        if self.groups == 1:
            return super().kl()
        kernel, *bias = self._kl_pairs()
        kl = sum_of_kls([kernel]).sum(-1)
        return kl + sum_of_kls(bias) if bias else kl

    def kl_terms(self) -> list[tuple[Posterior, Prior]] | None:
        """Return posterior and prior of kernel and (if random) bias; ``None`` with groups."""
        return self._kl_pairs() if self.groups == 1 else None

    def extra_repr(self) -> str:
        """Show what torch shows."""
        w = self.window
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={w.kernel_size}, "
            f"stride={w.stride}, padding={w.padding}, dilation={w.dilation}, groups={self.groups}"
        )

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """``(out_channels, in_channels / groups, *kernel_size)``."""
        return (self.out_channels, self.in_channels // self.groups, *self.window.kernel_size)

    def _dense(self, sampler: Sampler) -> Tensor:
        matrices = super()._dense(sampler)
        if self.groups > 1:  # draws stand between groups and outputs
            matrices = matrices.movedim(len(self.batch_shape), -3)
        return matrices.reshape(*self.batch_shape, *sampler.sample_shape, *self.weight_shape)

    def _patches(self, x: Tensor) -> Tensor:
        """Unfold ``x`` to rows ``(*batch_shape, [groups,] *inner, *positions, patch)``."""
        n, batch_ndim = self.num_axes, len(self.batch_shape)
        patches = self.window.patches(x.reshape(-1, *x.shape[-1 - n :]))
        leading = (*x.shape[: -1 - n], *patches.shape[1 : 1 + n])
        if self.groups == 1:
            return patches.reshape(*leading, self.matrix.in_features)
        rows = patches.reshape(*leading, self.groups, self.matrix.in_features)
        return rows.movedim(-2, batch_ndim)

    def _join_groups(self, y: Tensor) -> Tensor:
        """Bring ``(*batch_shape, [groups,] ..., out)`` to ``(*batch_shape, ..., out_channels)``."""
        return y if self.groups == 1 else y.movedim(len(self.batch_shape), -2).flatten(-2)

    def _check(self, x: Tensor) -> None:
        check_dtype("input", x, self.matrix.posterior.loc)
        n, axes = self.num_axes, len(self.batch_shape)
        expected = "(*batch_shape, ..., in_channels" + ", size" * n + ")"
        fits = x.dim() >= axes + 1 + n and x.shape[-1 - n] == self.in_channels
        if not fits or tuple(x.shape[:axes]) != self.batch_shape:
            raise ShapeError(
                f"input must have shape {expected} with batch_shape {self.batch_shape} and "
                f"{self.in_channels} channels, got {tuple(x.shape)}"
            )
        padded = [s + sum(p) for s, p in zip(x.shape[-n:], self.window.padding, strict=True)]
        if any(size < reach for size, reach in zip(padded, self.window.reach, strict=True)):
            raise ShapeError(
                f"the kernel spans {self.window.reach} positions but the padded input has only "
                f"{tuple(padded)}"
            )


class WHVIConv(RandomConv):
    """A convolution whose kernel has a Walsh-Hadamard structured posterior.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode: As in ``torch.nn.Conv1d/2d/3d``.
        posterior, prior, bias_posterior, batch_shape: As in :class:`whvi.WHVILinear`.
    """

    matrix: StructuredMatrix

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        posterior: str | PosteriorFactory = "diagonal",
        prior: str | Prior | PriorFactory = "empirical_bayes",
        bias_posterior: str | PosteriorFactory | None = None,
        batch_shape: tuple[int, ...] = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        slide = (kernel_size, stride, padding, dilation, padding_mode)
        window = make_window(self.num_axes, *slide)
        *sizes, replicas = self._set_sizes(in_channels, out_channels, groups, window, batch_shape)
        place: Any = {"device": device, "dtype": dtype}
        self.matrix = StructuredMatrix(
            *sizes, posterior=posterior, prior=prior, batch_shape=replicas, **place
        )
        self._add_bias(out_channels, bias_posterior, bias, **place)


class MeanFieldConv(RandomConv):
    """A convolution with an independent Gaussian posterior for every weight.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode: As in ``torch.nn.Conv1d/2d/3d``.
        prior, bias_posterior, batch_shape: As in :class:`whvi.MeanFieldLinear`.
    """

    matrix: DenseGaussianMatrix

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        prior: str | Prior | PriorFactory = "empirical_bayes",
        bias_posterior: str | PosteriorFactory | None = None,
        batch_shape: tuple[int, ...] = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        slide = (kernel_size, stride, padding, dilation, padding_mode)
        window = make_window(self.num_axes, *slide)
        *sizes, replicas = self._set_sizes(in_channels, out_channels, groups, window, batch_shape)
        place: Any = {"device": device, "dtype": dtype}
        self.matrix = DenseGaussianMatrix(*sizes, prior=prior, batch_shape=replicas, **place)
        self._add_bias(out_channels, bias_posterior, bias, **place)


@final
class WHVIConv1d(WHVIConv):
    """``torch.nn.Conv1d`` whose kernel has a Walsh-Hadamard structured posterior."""

    num_axes = 1


@final
class WHVIConv2d(WHVIConv):
    """``torch.nn.Conv2d`` whose kernel has a Walsh-Hadamard structured posterior."""

    num_axes = 2


@final
class WHVIConv3d(WHVIConv):
    """``torch.nn.Conv3d`` whose kernel has a Walsh-Hadamard structured posterior."""

    num_axes = 3


@final
class MeanFieldConv1d(MeanFieldConv):
    """``torch.nn.Conv1d`` with an independent Gaussian posterior for every weight."""

    num_axes = 1


@final
class MeanFieldConv2d(MeanFieldConv):
    """``torch.nn.Conv2d`` with an independent Gaussian posterior for every weight."""

    num_axes = 2


@final
class MeanFieldConv3d(MeanFieldConv):
    """``torch.nn.Conv3d`` with an independent Gaussian posterior for every weight."""

    num_axes = 3
