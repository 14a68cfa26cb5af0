"""Linear layers with ``torch.nn.Linear``'s signature: ``y = W x + b`` with a random ``W``."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch._C import _is_any_autocast_enabled
from torch.fx import Proxy

from whvi._checks import check_dtype, check_last_dim
from whvi._kernel.backend import autocast_dtype, without_autocast
from whvi.errors import ConfigError, ShapeError
from whvi.layers.deferred import deferred
from whvi.layers.grid import GridMatrix
from whvi.layers.matrix import DenseGaussianMatrix, OutputMoments, RandomMatrix, WeightMoments
from whvi.layers.protocol import BayesianLayer, as_fx_leaf
from whvi.layers.random_scales import RandomScalesMatrix
from whvi.layers.structured import StructuredMatrix
from whvi.posteriors import Posterior, PosteriorFactory, make_posterior
from whvi.posteriors.base import Device, sum_of_kls
from whvi.priors import EmpiricalBayesPrior, Prior, PriorFactory
from whvi.sampling import check_draws_axis, current_sampler, insert_inner_axes
from whvi.transforms import TransformLike


class _Parameters(dict[str, nn.Parameter | None]):
    """Parameters of a layer, among which ``torch.nn.utils.weight_norm`` looks for a weight."""

    def __missing__(self, name: str) -> nn.Parameter:
        if name == "weight":
            raise ConfigError(
                "a Bayesian layer has no parameter 'weight' to normalise: its weights are drawn; "
                "leave it out of weight_norm and spectral_norm"
            )
        raise KeyError(name)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            self.__missing__(name)
        super().__delitem__(name)


class RandomAffine(BayesianLayer):
    """``y = W x + b`` on rows made of the input: what linear layers and convolutions share.

    ``matrix`` holds the parameters, the posterior and the prior of the weights. ``bias`` is a
    parameter or ``None``; a random bias has a ``bias_posterior``, and its prior is ``N(0, λ I)``
    with ``λ`` by empirical Bayes. Groups of a convolution are replicas of the matrix.
    """

    num_axes = 0  # of the input after its features
    matrix: RandomMatrix
    bias_posterior: Posterior | None

    def __init__(
        self,
        matrix: RandomMatrix,
        bias: bool,
        bias_posterior: str | PosteriorFactory | None,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.__dict__["_parameters"] = _Parameters()
        self.matrix, self.groups = matrix, groups
        self.batch_shape = matrix.batch_shape if groups == 1 else matrix.batch_shape[:-1]
        self.bias_posterior, self.bias_prior = None, EmpiricalBayesPrior()
        shape = (*self.batch_shape, groups * matrix.out_features)
        parameter, loc = None, matrix.posterior.loc
        place: Any = {"device": loc.device, "dtype": loc.dtype}
        if bias and bias_posterior is None:
            parameter = nn.Parameter(torch.zeros(shape, **place))
        elif bias and bias_posterior is not None:
            blocks = (*shape[:-1], 1, shape[-1])
            self.bias_posterior = make_posterior(bias_posterior, blocks, **place)
        self._parameters["bias"] = parameter  # register_parameter refuses names of properties
        self._reset_bias(None)

    @torch.no_grad()
    def _reset_bias(self, generator: torch.Generator | None) -> None:
        """Start at zero; a random bias with small means and a standard deviation of 0.1."""
        parameter = self._parameters["bias"]
        if parameter is not None:
            parameter.zero_()
        if self.bias_posterior is not None:
            self.bias_posterior.reset(0.01, 0.1, generator=generator)

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point."""
        self.matrix.reset_parameters(generator=generator)
        self._reset_bias(generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*batch_shape, *inner, in, *spatial)`` to ``(…, out, *spatial)``.

        A linear layer has no spatial axes. Weights are drawn as
        :func:`whvi.sampling.current_sampler` says: one draw for the whole call unless a
        :func:`whvi.sampling.sampling` block says otherwise. Under ``torch.autocast`` the output
        has its data type, as that of torch's layer; inside, parameters keep theirs.
        """
        given: Any = x
        if isinstance(given, Proxy):
            return cast(Tensor, as_fx_leaf(self, given))
        loc = self.matrix.posterior.loc
        if not _is_any_autocast_enabled() or (lower := autocast_dtype(x, loc)) is None:
            return self._map(x)
        with without_autocast(x):
            return self._map(x.to(loc.dtype)).to(lower)

    def _map(self, x: Tensor) -> Tensor:
        """Do what :meth:`forward` says, outside autocast."""
        self._check(x)
        sampler = current_sampler()
        check_draws_axis(x, sampler, len(self.batch_shape), 1 + self.num_axes)
        rows = self._rows(x) if self.num_axes else x
        if self.bias_posterior is None:
            bias: Tensor | None = self._parameters["bias"]
            if bias is not None and self.groups > 1:
                bias = bias.unflatten(-1, (self.groups, -1))
            y = self.matrix.multiply(rows, bias, sampler)
            return self._output(y) if self.num_axes else y
        inner_shape = tuple(rows.shape[len(self.matrix.batch_shape) : -1])
        drawn = self._over(x, sampler.value(self.bias_posterior, inner_shape))
        return self._output(self.matrix.multiply(rows, None, sampler)) + drawn

    @abstractmethod
    def _check(self, x: Tensor) -> None:
        """Refuse an input of another shape, data type or device."""

    def _rows(self, x: Tensor) -> Tensor:
        """Return the rows of ``x``, ``(*matrix.batch_shape, *inner, in)``."""
        return x

    def _output(self, y: Tensor) -> Tensor:
        """Join groups and put features before spatial axes: the way back from rows."""
        if self.groups > 1:
            y = y.movedim(len(self.batch_shape), -2).flatten(-2)
        return y.movedim(-1, -1 - self.num_axes)

    def _over(self, x: Tensor, bias: Tensor) -> Tensor:
        """Let ``(*batch_shape, *some_inner, out)`` broadcast over the output for ``x``."""
        batch_ndim = len(self.batch_shape)
        bias = insert_inner_axes(bias, batch_ndim, x.dim() - batch_ndim - 1)
        return bias.movedim(-1, -1 - self.num_axes)

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return the exact mean and variance of the output, without sampling.

        Args:
            x: As in :meth:`forward`.

        Returns:
            Mean and variance, each of the shape of the output. Outputs of one row are correlated;
            these are the marginals.
        """
        self._check(x)
        mean, variance = map(self._output, self.matrix.output_moments(self._rows(x)))
        if self.bias_posterior is not None:
            mean = mean + self._over(x, self.bias_posterior.mean)
            variance = variance + self._over(x, self.bias_posterior.variance)
        elif self.bias is not None:
            mean = mean + self._over(x, self.bias)
        return OutputMoments(mean, variance)

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weights in torch's layer."""

    @property
    def weight(self) -> Tensor:
        """The dense weights under the active sampler, with gradient.

        Of the shape that torch's layer has, after ``(*batch_shape, [S,])``: those that ``forward``
        multiplies by under the same :class:`whvi.sampling.WeightDraws`, the mean under
        :class:`whvi.sampling.MeanWeights`, and one draw under
        :class:`whvi.sampling.LocalReparameterization`. They are formed by the first operation on
        them; shape, data type and device are free.
        """
        sampler = current_sampler()
        shape = (*self.batch_shape, *sampler.sample_shape, *self.weight_shape)
        return deferred(
            lambda: self._shaped(self.matrix.drawn(sampler)), shape, self.matrix.posterior.loc
        )

    def _shaped(self, matrices: Tensor) -> Tensor:
        """Return ``(*batch_shape, *some, *weight_shape)`` for the dense forms of the matrix."""
        if self.groups > 1:  # draws stand between groups and outputs
            matrices = matrices.movedim(len(self.batch_shape), -3)
        leading = matrices.shape[: matrices.dim() - (2 if self.groups == 1 else 3)]
        return matrices.reshape(*leading, *self.weight_shape)

    @property
    def bias(self) -> Tensor | None:
        """The parameter, or the value of a random bias under the active sampler, or ``None``."""
        if self.bias_posterior is None:
            return self._parameters["bias"]
        posterior, sampler = self.bias_posterior, current_sampler()
        shape = (*self.batch_shape, *sampler.sample_shape, posterior.num_entries)
        return deferred(lambda: sampler.value(posterior), shape, posterior.loc)

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias, random or not."""
        return self.bias_posterior is not None or self._parameters["bias"] is not None

    def sample_weight(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw weights, ``(*sample_shape, *batch_shape, *weight_shape)``, with gradients."""
        matrices = self.matrix.sample(sample_shape, generator=generator)
        return matrices.reshape(*sample_shape, *self.batch_shape, *self.weight_shape)

    def weight_moments(self) -> WeightMoments:
        """Return mean and covariance of the flat weights (row by row), for small layers."""
        mean, covariance = self.matrix.moments()
        if self.groups == 1:
            return WeightMoments(mean, covariance)
        apart = torch.diag_embed(covariance.movedim(-3, -1))  # (..., n, n, G, G)
        whole = apart.movedim((-2, -1), (-4, -2)).flatten(-4, -3).flatten(-2)
        return WeightMoments(mean.flatten(-2), whole)

    def kl_terms(self) -> list[tuple[Posterior, Prior]] | None:
        """Return posterior and prior of weights and (if random) bias; ``None`` with groups."""
        return self._pairs() if self.groups == 1 else None

    def _pairs(self) -> list[tuple[Posterior, Prior]]:
        pairs = self.matrix.kl_pairs()
        if self.bias_posterior is not None:
            pairs.append((self.bias_posterior, self.bias_prior))
        return pairs

    def kl(self) -> Tensor:
        """Return the KL of weights and (if random) bias in nats, shape ``batch_shape``."""
        with without_autocast(self.matrix.posterior.loc):
            return self._kl()

    def _kl(self) -> Tensor:
        if self.groups == 1:
            return sum_of_kls(self._pairs())
        kl = sum_of_kls(self.matrix.kl_pairs()).sum(-1)
        if self.bias_posterior is None:
            return kl
        return kl + sum_of_kls([(self.bias_posterior, self.bias_prior)])


class RandomLinear(RandomAffine):
    """What linear layers share."""

    def __init__(
        self, matrix: RandomMatrix, bias: bool, bias_posterior: str | PosteriorFactory | None
    ) -> None:
        super().__init__(matrix, bias, bias_posterior)
        self.in_features, self.out_features = matrix.in_features, matrix.out_features

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """``(out_features, in_features)``."""
        return (self.out_features, self.in_features)

    def _check(self, x: Tensor) -> None:
        loc, axes = self.matrix.posterior.loc, len(self.batch_shape)
        if (
            isinstance(x, Tensor)
            and x.dtype is loc.dtype
            and x.device == loc.device
            and x.dim() > axes
            and x.shape[-1] == self.in_features
            and (not axes or x.shape[:axes] == self.batch_shape)
        ):
            return
        check_dtype("input", x, loc)
        check_last_dim("input", x, self.in_features)
        raise ShapeError(
            f"input of a layer with batch_shape {self.batch_shape} must have shape "
            f"({', '.join(map(str, self.batch_shape))}, ..., {self.in_features}), got "
            f"{tuple(x.shape)}; x.expand(*batch_shape, *x.shape) shares rows between replicas"
        )

    def extra_repr(self) -> str:
        """Show what ``torch.nn.Linear`` shows, and the replicas."""
        shown = f"in_features={self.in_features}, out_features={self.out_features}"
        shown += f", bias={self.has_bias}"
        return shown + (f", batch_shape={self.batch_shape}" if self.batch_shape else "")


def structured_matrix(
    scales: str, num_blocks: int, in_features: int, out_features: int, **options: Any
) -> StructuredMatrix | RandomScalesMatrix | GridMatrix:
    """Make the matrix of a layer whose scales are ``"optimised"`` or ``"gaussian"``."""
    if scales not in ("optimised", "gaussian"):
        raise ConfigError(f"scales must be 'optimised' or 'gaussian', got {scales!r}")
    if num_blocks != 1:
        if scales == "gaussian":
            raise ConfigError(f"scales='gaussian' needs num_blocks=1, got {num_blocks!r}")
        return GridMatrix(in_features, out_features, num_blocks, **options)
    if scales == "gaussian":
        return RandomScalesMatrix(in_features, out_features, **options)
    return StructuredMatrix(in_features, out_features, **options)


@final
class WHVILinear(RandomLinear):
    """``torch.nn.Linear`` with a Walsh-Hadamard structured Gaussian posterior over its weights.

    ``W = diag(s1) H diag(g) H diag(s2)``, ``g ~ q(g)``: O(in + out) parameters, O(D log D) time.

    Args:
        in_features, out_features: Any sizes; see :class:`whvi._kernel.layout.BlockPlan`.
        bias: Whether to add a bias.
        posterior: Of ``g``: ``"diagonal"``, ``"low_rank"``, ``"full"``, ``"flow"``, ``"point"``,
            or a factory such as ``functools.partial(LowRankGaussian, rank=8)``.
        prior: Of ``g``, ``N(0, λ I)``: ``"empirical_bayes"``, ``"learned"``,
            ``"standard_normal"``, or a :class:`whvi.priors.Prior` such as ``FixedPrior(0.1)``.
        scales: ``"optimised"``: ``s1`` and ``s2`` are parameters. ``"gaussian"``: they have fully
            factorized Gaussian posteriors and the prior ``N(0, I)``.
        transform: Replaces ``H``: ``"hadamard"``, ``"dct"``, ``"hartley"``, ``"circulant"``,
            ``"butterfly"`` (learned), ``"butterfly-random"``, or your own orthonormal map; see
            :func:`whvi.transforms.make_mixing`.
        num_blocks: Slices of the input, each with its own blocks: about ``num_blocks`` times the
            parameters (:class:`whvi.layers.grid.GridMatrix`), as heads for many classes need.
        bias_posterior: ``None`` for a deterministic bias (recommended), else its posterior.
        batch_shape: ``(R,)`` for R independent replicas trained in one pass.
    """

    matrix: StructuredMatrix | RandomScalesMatrix | GridMatrix

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
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
        matrix = structured_matrix(
            scales, num_blocks, in_features, out_features, posterior=posterior, prior=prior,
            transform=transform, batch_shape=batch_shape, device=device, dtype=dtype,
        )  # fmt: skip
        super().__init__(matrix, bias, bias_posterior)


@final
class MeanFieldLinear(RandomLinear):
    """``torch.nn.Linear`` with an independent Gaussian posterior for every weight.

    Args:
        in_features, out_features: Any sizes; ``2 · in · out`` parameters.
        bias: Whether to add a bias.
        prior: ``N(0, λ I)`` over the weights, as in :class:`WHVILinear`.
        bias_posterior: ``None`` for a deterministic bias, else its posterior.
        batch_shape: ``(R,)`` for R independent replicas trained in one pass.
    """

    matrix: DenseGaussianMatrix

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prior: str | Prior | PriorFactory = "empirical_bayes",
        bias_posterior: str | PosteriorFactory | None = None,
        batch_shape: tuple[int, ...] = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        matrix = DenseGaussianMatrix(
            in_features, out_features, prior=prior,
            batch_shape=batch_shape, device=device, dtype=dtype,
        )  # fmt: skip
        super().__init__(matrix, bias, bias_posterior)
