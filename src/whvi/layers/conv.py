r"""Convolutions of any dimension with a random kernel: a linear map on unfolded patches.

The kernel ``(out_channels, in_channels / groups, *kernel_size)`` is, for each group, a matrix
``(out_channels / groups) × (in_channels / groups · Π kernel_size)`` that multiplies the patches of
the padded input: the same random matrix as in a linear layer (section 2 of the paper). Groups are
replicas of that matrix.

A kernel is small and used at every position, so a weight draw forms it and convolves. Local
reparameterization draws a matrix for every patch; with independent weights (Kingma et al., 2015)
that is ``y = M * x + (V * x²)^{1/2} ε``, two convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from whvi._checks import check_dtype, check_positive_int
from whvi.errors import ConfigError, ShapeError
from whvi.layers.grid import GridMatrix
from whvi.layers.linear import RandomAffine, structured_matrix
from whvi.layers.matrix import DenseGaussianMatrix, RandomMatrix
from whvi.layers.random_scales import RandomScalesMatrix
from whvi.layers.structured import StructuredMatrix
from whvi.layers.window import Sizes, Window, make_window
from whvi.posteriors import PosteriorFactory
from whvi.posteriors.base import Device
from whvi.priors import Prior, PriorFactory
from whvi.sampling import (
    LocalReparameterization,
    check_draws_axis,
    current_sampler,
    insert_inner_axes,
)
from whvi.transforms import TransformLike


class RandomConv(RandomAffine):
    """What convolutions share; final classes say how many axes they have."""

    def __init__(
        self,
        matrix: RandomMatrix,
        window: Window,
        groups: int,
        bias: bool,
        bias_posterior: str | PosteriorFactory | None,
    ) -> None:
        super().__init__(matrix, bias, bias_posterior, groups)
        self.window, self.out_channels = window, matrix.out_features * groups
        self.in_channels = matrix.in_features // math.prod(window.kernel_size) * groups

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

    def _map(self, x: Tensor) -> Tensor:
        """See :meth:`RandomAffine.forward`; a draw for all rows is a dense kernel."""
        sampler = current_sampler()
        if isinstance(sampler, LocalReparameterization):
            return self._local(x, sampler)
        self._check(x)
        check_draws_axis(x, sampler, len(self.batch_shape), 1 + self.num_axes)
        bias: Tensor | None = self._parameters["bias"]
        if self.bias_posterior is not None:
            bias = sampler.value(self.bias_posterior)
        return self._convolve(x, self._shaped(self.matrix.drawn(sampler)), bias)

    def _local(self, x: Tensor, sampler: LocalReparameterization) -> Tensor:
        """Draw a matrix for every patch."""
        return super()._map(x)

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with ``weight (*own, *weight_shape)``, ``own`` the first axes of ``x``."""
        axes, own = 1 + self.num_axes, weight.shape[: -2 - self.num_axes]
        inner, image = x.shape[len(own) : -axes], x.shape[-axes:]
        if math.prod(own) == 1:
            flat = None if bias is None else bias.reshape(-1)
            rows = x.reshape(math.prod(inner), *image)
            y = self._slide(rows, weight.reshape(self.weight_shape), flat)
        else:
            rows = x.reshape(math.prod(own), math.prod(inner), *image)
            biases: Sequence[Tensor | None] = [None] * len(rows)
            if bias is not None:
                batch_ndim = len(self.batch_shape)
                over = insert_inner_axes(bias, batch_ndim, len(own) - batch_ndim)
                biases = over.expand(*own, -1).reshape(len(rows), -1).unbind()
            weights = weight.reshape(len(rows), *self.weight_shape).unbind()
            y = torch.stack([*map(self._slide, rows.unbind(), weights, biases)])
        return y.reshape(*x.shape[:-axes], *y.shape[-axes:])

    def _slide(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.window.convolve(x, weight, bias, self.groups)

    def _rows(self, x: Tensor) -> Tensor:
        """Unfold ``x`` to patches ``(*batch_shape, [groups,] *inner, *positions, patch)``."""
        n = self.num_axes
        patches = self.window.patches(x.reshape(-1, *x.shape[-1 - n :]))
        leading = (*x.shape[: -1 - n], *patches.shape[1 : 1 + n])
        if self.groups == 1:
            return patches.reshape(*leading, self.matrix.in_features)
        rows = patches.reshape(*leading, self.groups, self.matrix.in_features)
        return rows.movedim(-2, len(self.batch_shape))

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


def _matrix_size(
    in_channels: int, out_channels: int, groups: int, window: Window
) -> tuple[int, int]:
    """Return inputs and outputs of the matrix of a group; refuse what cannot be divided."""
    check_positive_int("in_channels", in_channels)
    check_positive_int("out_channels", out_channels)
    check_positive_int("groups", groups)
    if in_channels % groups or out_channels % groups:
        raise ConfigError(
            f"groups must divide in_channels and out_channels, got groups {groups}, "
            f"in_channels {in_channels}, out_channels {out_channels}"
        )
    return in_channels // groups * math.prod(window.kernel_size), out_channels // groups


class WHVIConv(RandomConv):
    """A convolution whose kernel has a Walsh-Hadamard structured posterior.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode: As in ``torch.nn.Conv1d/2d/3d``.
        posterior, prior, scales, transform, num_blocks, bias_posterior, batch_shape: As in
            :class:`whvi.WHVILinear`.
    """

    matrix: StructuredMatrix | RandomScalesMatrix | GridMatrix

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
        scales: str = "optimised",
        transform: TransformLike = "hadamard",
        num_blocks: int = 1,
        bias_posterior: str | PosteriorFactory | None = None,
        batch_shape: tuple[int, ...] = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        window = make_window(self.num_axes, kernel_size, stride, padding, dilation, padding_mode)
        sizes = _matrix_size(in_channels, out_channels, groups, window)
        matrix = structured_matrix(
            scales, num_blocks, *sizes, posterior=posterior, prior=prior,
            transform=transform, batch_shape=(*batch_shape, groups) if groups > 1 else batch_shape,
            device=device, dtype=dtype,
        )  # fmt: skip
        super().__init__(matrix, window, groups, bias, bias_posterior)


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
        window = make_window(self.num_axes, kernel_size, stride, padding, dilation, padding_mode)
        sizes = _matrix_size(in_channels, out_channels, groups, window)
        replicas = (*batch_shape, groups) if groups > 1 else batch_shape
        matrix = DenseGaussianMatrix(
            *sizes, prior=prior, batch_shape=replicas, device=device, dtype=dtype
        )
        super().__init__(matrix, window, groups, bias, bias_posterior)

    def _local(self, x: Tensor, sampler: LocalReparameterization) -> Tensor:
        """Return ``M * x + b + (V * x²)^{1/2} ε`` with one normal per output."""
        self._check(x)
        posterior, bias = self.matrix.posterior, self._parameters["bias"]
        mean = self._convolve(x, self._shaped(self.matrix.dense(posterior.loc)), bias)
        variance = self._convolve(x * x, self._shaped(self.matrix.dense(posterior.variance)), None)
        inner = (
            *x.shape[len(self.batch_shape) : -1 - self.num_axes],
            *mean.shape[-self.num_axes :],
        )
        if self.bias_posterior is not None:
            mean = mean + self._over(x, sampler.value(self.bias_posterior, inner))
        shape = (*self.matrix.batch_shape, *inner, self.matrix.out_features)
        noise = sampler.noise(shape, x)
        tiny = math.sqrt(torch.finfo(x.dtype).tiny)  # so far from zero that its gradient is finite
        return torch.addcmul(mean, variance.clamp_min(tiny).sqrt(), self._output(noise))


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
