"""Linear layers with ``torch.nn.Linear``'s signature: ``y = W x + b`` with a random ``W``."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from whvi._checks import check_dtype, check_last_dim, check_positive_int
from whvi.errors import ShapeError
from whvi.layers.meanfield import DenseGaussianWeight
from whvi.layers.protocol import BayesianLayer
from whvi.layers.structured import StructuredWeight
from whvi.layers.weights import OutputMoments, Weight, WeightMoments, lift
from whvi.posteriors import Posterior, PosteriorFactory, make_posterior
from whvi.posteriors.diagonal import sum_of_kls
from whvi.priors import EmpiricalBayesPrior, Prior, PriorFactory
from whvi.sampling import LocalReparameterization, MeanWeights, Sampler, current_sampler

Device = torch.device | str | None


class Bias(nn.Module):
    """A bias vector ``(*batch_shape, out_features)``: a parameter, or a random vector.

    Args:
        out_features: Its length.
        posterior: ``None`` for a parameter, else name or factory of its posterior. Its prior is
            ``N(0, λ I)`` with ``λ`` by empirical Bayes.
    """

    def __init__(
        self,
        out_features: int,
        *,
        posterior: str | PosteriorFactory | None = None,
        batch_shape: tuple[int, ...] = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.batch_shape = batch_shape
        self.value: nn.Parameter | None = None
        self.posterior: Posterior | None = None
        self.prior: Prior = EmpiricalBayesPrior()
        if posterior is None:
            zeros = torch.zeros(*batch_shape, out_features, device=device, dtype=dtype)
            self.value = nn.Parameter(zeros)
        else:
            shape = (*batch_shape, 1, out_features)
            self.posterior = make_posterior(posterior, shape, device=device, dtype=dtype)
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Start at zero; a random bias with small means and a standard deviation of 0.1."""
        if self.value is not None:
            self.value.zero_()
        if self.posterior is not None:
            self.posterior.reset(0.01, 0.1, generator=generator)

    def draw(self, inner: tuple[int, ...], sampler: Sampler) -> Tensor:
        """Return a bias that ``lift`` can spread over ``inner``, as the sampler says."""
        if self.value is not None:
            return self.value
        posterior = self.posterior
        assert posterior is not None  # one of the two is always there
        if isinstance(sampler, MeanWeights):
            return posterior.mean.squeeze(-2)
        if isinstance(sampler, LocalReparameterization):
            return posterior.rsample(inner, generator=sampler.generator).squeeze(-2)
        shape, generator = sampler.sample_shape, sampler.generator
        draw = sampler.draw_once(self, lambda: posterior.rsample(shape, generator=generator))
        return draw.squeeze(-2)


class RandomLinear(BayesianLayer):
    """What linear layers share: a :class:`Weight`, a :class:`Bias`, and the checks at the door."""

    weight: Weight
    bias: Bias | None

    @property
    def in_features(self) -> int:
        """Width of the input."""
        return self.weight.in_features

    @property
    def out_features(self) -> int:
        """Width of the output."""
        return self.weight.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*batch_shape, *inner, in_features)`` to ``(*batch_shape, *inner, out_features)``.

        Weights are drawn as :func:`whvi.sampling.current_sampler` says: one draw for the whole
        call unless a :func:`whvi.sampling.sampling` block says otherwise.
        """
        self._check(x)
        sampler = current_sampler()
        if self.bias is None:
            return self.weight.multiply(x, None, sampler)
        if self.bias.value is not None:
            return self.weight.multiply(x, self.bias.value, sampler)
        batch_ndim = len(self.batch_shape)
        inner = tuple(x.shape[batch_ndim:-1])
        bias = lift(self.bias.draw(inner, sampler), batch_ndim, len(inner))
        return self.weight.multiply(x, None, sampler) + bias

    def kl(self) -> Tensor:
        """Return the KL of weights and (if random) bias in nats, shape ``batch_shape``."""
        return sum_of_kls(self.kl_terms())

    def kl_terms(self) -> list[tuple[Posterior, Prior]]:
        """Return posterior and prior of the weights and (if random) of the bias."""
        pairs = [(self.weight.posterior, self.weight.prior)]
        if self.bias is not None and self.bias.posterior is not None:
            pairs.append((self.bias.posterior, self.bias.prior))
        return pairs

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point."""
        self.weight.reset_parameters(generator=generator)
        if self.bias is not None:
            self.bias.reset_parameters(generator=generator)

    def sample_weight(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a dense weight matrix, shape ``(*batch_shape, out_features, in_features)``."""
        return self.weight.sample(generator=generator)

    def weight_moments(self) -> WeightMoments:
        """Return mean and covariance of ``vec(W)`` (row by row), for small layers."""
        return self.weight.moments()

    def output_moments(self, x: Tensor) -> OutputMoments:
        """Return the exact mean and variance of the output, without sampling.

        Args:
            x: Shape ``(*batch_shape, *inner, in_features)``.

        Returns:
            Mean and variance, each ``(*batch_shape, *inner, out_features)``. Outputs of one row
            are correlated; these are the marginals.
        """
        self._check(x)
        mean, variance = self.weight.output_moments(x)
        if self.bias is None:
            return OutputMoments(mean, variance)
        batch_ndim, inner_ndim = len(self.batch_shape), x.dim() - len(self.batch_shape) - 1
        mean = mean + lift(self.bias.draw((), MeanWeights()), batch_ndim, inner_ndim)
        if self.bias.posterior is not None:
            spread = self.bias.posterior.variance.squeeze(-2)
            variance = variance + lift(spread, batch_ndim, inner_ndim)
        return OutputMoments(mean, variance)

    def extra_repr(self) -> str:
        """Show what ``torch.nn.Linear`` shows, and the replicas."""
        shown = f"in_features={self.in_features}, out_features={self.out_features}"
        shown += f", bias={self.bias is not None}"
        return shown + (f", batch_shape={self.batch_shape}" if self.batch_shape else "")

    def _check(self, x: Tensor) -> None:
        check_last_dim("input", x, self.in_features)
        check_dtype("input", x, self.weight.posterior.loc)
        axes = len(self.batch_shape)
        if axes and tuple(x.shape[:axes]) != self.batch_shape:
            raise ShapeError(
                f"input of a layer with batch_shape {self.batch_shape} must have shape "
                f"({', '.join(map(str, self.batch_shape))}, ..., {self.in_features}), got "
                f"{tuple(x.shape)}; x.expand(*batch_shape, *x.shape) shares rows between replicas"
            )


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
        self.batch_shape = tuple(batch_shape)
        place: Any = {"batch_shape": self.batch_shape, "device": device, "dtype": dtype}
        self.weight = StructuredWeight(
            in_features, out_features, posterior=posterior, prior=prior, **place
        )
        self.bias = Bias(out_features, posterior=bias_posterior, **place) if bias else None


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
        check_positive_int("in_features", in_features)
        check_positive_int("out_features", out_features)
        self.batch_shape = tuple(batch_shape)
        place: Any = {"batch_shape": self.batch_shape, "device": device, "dtype": dtype}
        self.weight = DenseGaussianWeight(in_features, out_features, prior=prior, **place)
        self.bias = Bias(out_features, posterior=bias_posterior, **place) if bias else None
