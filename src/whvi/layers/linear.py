"""Linear layers with ``torch.nn.Linear``'s signature: ``y = W x + b`` with a random ``W``."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, final

import torch
from torch import Tensor, nn

from whvi._checks import check_dtype, check_last_dim, check_positive_int
from whvi.errors import ShapeError
from whvi.layers.deferred import deferred
from whvi.layers.matrix import OutputMoments, RandomMatrix, WeightMoments
from whvi.layers.meanfield import DenseGaussianMatrix
from whvi.layers.protocol import BayesianLayer
from whvi.layers.structured import StructuredMatrix
from whvi.posteriors import Posterior, PosteriorFactory, make_posterior
from whvi.posteriors.base import sum_of_kls
from whvi.priors import EmpiricalBayesPrior, Prior, PriorFactory
from whvi.sampling import Sampler, check_draws_axis, current_sampler, insert_inner_axes

Device = torch.device | str | None


class RandomAffine(BayesianLayer):
    """What linear layers and convolutions share: a random matrix and a bias.

    ``matrix`` holds the parameters, the posterior and the prior of the weights. ``bias`` is a
    parameter or ``None``; a random bias has a ``bias_posterior``, and its prior is ``N(0, λ I)``
    with ``λ`` by empirical Bayes.
    """

    matrix: RandomMatrix
    bias_posterior: Posterior | None
    bias_prior: Prior

    def _add_bias(
        self, size: int, posterior: str | PosteriorFactory | None, wanted: bool, **place: Any
    ) -> None:
        self.bias_posterior = None
        # register_parameter refuses a name that is a property
        self._parameters["bias"] = None
        if wanted and posterior is None:
            zeros = torch.zeros(*self.batch_shape, size, **place)
            self._parameters["bias"] = nn.Parameter(zeros)
        elif wanted and posterior is not None:
            self.bias_posterior = make_posterior(posterior, (*self.batch_shape, 1, size), **place)
            self.bias_prior = EmpiricalBayesPrior()
            self._reset_bias(None)

    @torch.no_grad()
    def _reset_bias(self, generator: torch.Generator | None) -> None:
        """Start at zero; a random bias with small means and a standard deviation of 0.1."""
        parameter = self._parameters["bias"]
        if parameter is not None:
            parameter.zero_()
        if self.bias_posterior is not None:
            self.bias_posterior.reset(0.01, 0.1, generator=generator)

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
        return deferred(lambda: self._dense(sampler), shape, self.matrix.posterior.loc)

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

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weights in torch's layer."""

    def _dense(self, sampler: Sampler) -> Tensor:
        """Form the dense weights."""
        return self.matrix.dense(sampler.value(self.matrix.posterior))

    def sample_weight(
        self, sample_shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw weights in the shape of torch's layer, after ``(*sample_shape, *batch_shape)``.

        With gradients; nothing is kept, whatever the sampler.
        """
        matrices = self.matrix.sample(sample_shape, generator=generator)
        return matrices.reshape(*sample_shape, *self.batch_shape, *self.weight_shape)

    def kl(self) -> Tensor:
        """Return the KL of weights and (if random) bias in nats, shape ``batch_shape``."""
        return sum_of_kls(self._kl_pairs())

    def kl_terms(self) -> list[tuple[Posterior, Prior]] | None:
        """Return posterior and prior of the weights and (if random) of the bias."""
        return self._kl_pairs()

    def _kl_pairs(self) -> list[tuple[Posterior, Prior]]:
        pairs = [(self.matrix.posterior, self.matrix.prior)]
        if self.bias_posterior is not None:
            pairs.append((self.bias_posterior, self.bias_prior))
        return pairs

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point."""
        self.matrix.reset_parameters(generator=generator)
        self._reset_bias(generator)

    def _with_bias(self, moments: OutputMoments, inner_ndim: int) -> OutputMoments:
        """Add the mean and variance of the bias to those of ``W x``."""
        mean, variance = moments
        axes = (len(self.batch_shape), inner_ndim)
        if self.bias_posterior is not None:
            mean = mean + insert_inner_axes(self.bias_posterior.mean, *axes)
            variance = variance + insert_inner_axes(self.bias_posterior.variance, *axes)
        elif self.bias is not None:
            mean = mean + insert_inner_axes(self.bias, *axes)
        return OutputMoments(mean, variance)


class RandomLinear(RandomAffine):
    """What linear layers share: ``y = W x + b`` on the last axis."""

    in_features: int
    out_features: int

    def _set_sizes(self, in_features: int, out_features: int, batch_shape: tuple[int, ...]) -> None:
        check_positive_int("in_features", in_features)
        check_positive_int("out_features", out_features)
        self.in_features, self.out_features = in_features, out_features
        self.batch_shape = tuple(batch_shape)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*batch_shape, *inner, in_features)`` to ``(*batch_shape, *inner, out_features)``.

        Weights are drawn as :func:`whvi.sampling.current_sampler` says: one draw for the whole
        call unless a :func:`whvi.sampling.sampling` block says otherwise.
        """
        self._check(x)
        sampler = current_sampler()
        batch_ndim = len(self.batch_shape)
        check_draws_axis(x, sampler, batch_ndim)
        if self.bias_posterior is None:
            return self.matrix.multiply(x, self._parameters["bias"], sampler)
        inner_shape = tuple(x.shape[batch_ndim:-1])
        bias = sampler.value(self.bias_posterior, inner_shape)
        bias = insert_inner_axes(bias, batch_ndim, len(inner_shape))
        return self.matrix.multiply(x, None, sampler) + bias

    def _check(self, x: Tensor) -> None:
        loc, axes = self.matrix.posterior.loc, len(self.batch_shape)
        if (
            x.dtype is loc.dtype
            and x.device == loc.device
            and x.dim() > axes
            and x.shape[-1] == self.in_features
            and (not axes or x.shape[:axes] == self.batch_shape)
        ):
            return
        check_last_dim("input", x, self.in_features)
        check_dtype("input", x, loc)
        raise ShapeError(
            f"input of a layer with batch_shape {self.batch_shape} must have shape "
            f"({', '.join(map(str, self.batch_shape))}, ..., {self.in_features}), got "
            f"{tuple(x.shape)}; x.expand(*batch_shape, *x.shape) shares rows between replicas"
        )

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """``(out_features, in_features)``."""
        return (self.out_features, self.in_features)

    def weight_moments(self) -> WeightMoments:
        """Return mean and covariance of ``vec(W)`` (row by row), for small layers."""
        return self.matrix.moments()

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return the exact mean and variance of the output, without sampling.

        Args:
            x: Shape ``(*batch_shape, *inner, in_features)``.

        Returns:
            Mean and variance, each ``(*batch_shape, *inner, out_features)``. Outputs of one row
            are correlated; these are the marginals.
        """
        self._check(x)
        return self._with_bias(self.matrix.output_moments(x), x.dim() - len(self.batch_shape) - 1)

    def extra_repr(self) -> str:
        """Show what ``torch.nn.Linear`` shows, and the replicas."""
        shown = f"in_features={self.in_features}, out_features={self.out_features}"
        shown += f", bias={self.has_bias}"
        return shown + (f", batch_shape={self.batch_shape}" if self.batch_shape else "")


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
        bias_posterior: ``None`` for a deterministic bias (recommended), else its posterior.
        batch_shape: ``(R,)`` for R independent replicas trained in one pass.
    """

    matrix: StructuredMatrix

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        posterior: str | PosteriorFactory = "diagonal",
        prior: str | Prior | PriorFactory = "empirical_bayes",
        bias_posterior: str | PosteriorFactory | None = None,
        batch_shape: tuple[int, ...] = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._set_sizes(in_features, out_features, batch_shape)
        place: Any = {"device": device, "dtype": dtype}
        options: Any = {"posterior": posterior, "prior": prior, "batch_shape": self.batch_shape}
        self.matrix = StructuredMatrix(in_features, out_features, **options, **place)
        self._add_bias(out_features, bias_posterior, bias, **place)


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
        super().__init__()
        self._set_sizes(in_features, out_features, batch_shape)
        place: Any = {"device": device, "dtype": dtype}
        options: Any = {"prior": prior, "batch_shape": self.batch_shape}
        self.matrix = DenseGaussianMatrix(in_features, out_features, **options, **place)
        self._add_bias(out_features, bias_posterior, bias, **place)
