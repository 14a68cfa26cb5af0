"""What every posterior must do. A member joins by subclassing :class:`PosteriorSuite`.

``GaussianPosteriorSuite`` adds what has a closed form for Gaussian members.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import functional_call

from whvi.errors import ConfigError, ShapeError
from whvi.posteriors import Posterior
from whvi.priors import EmpiricalBayesPrior, FixedPrior, LearnedPrior, Prior

DTYPE = torch.float64
PRIORS: dict[str, Callable[[tuple[int, ...]], Prior]] = {
    "fixed": lambda batch_shape: FixedPrior(0.7),
    "learned": lambda batch_shape: LearnedPrior(batch_shape, variance=0.3, dtype=DTYPE),
    "empirical_bayes": lambda batch_shape: EmpiricalBayesPrior(),
}
each_prior = pytest.mark.parametrize("prior_name", sorted(PRIORS))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scramble(posterior: Posterior, seed: int = 0, size: float = 0.5) -> Posterior:
    """Move every parameter to a generic point: nothing zero, nothing symmetric."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in posterior.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(size * noise)
    return posterior


def replica(posterior: Posterior, build: Callable[..., Posterior], index: int) -> Posterior:
    """Return replica ``index`` as a posterior of its own."""
    alone = build(posterior.shape[1:], dtype=posterior.loc.dtype)
    alone.load_state_dict({name: t[index] for name, t in posterior.state_dict().items()})
    return alone


def block(posterior: Posterior, build: Callable[..., Posterior], index: int) -> Posterior:
    """Return stacked block ``index`` of a posterior without replicas as one of its own."""
    alone = build((1, posterior.shape[-1]), dtype=posterior.loc.dtype)
    num_blocks = posterior.shape[0]
    state = {n: t.unflatten(0, (num_blocks, -1))[index] for n, t in posterior.state_dict().items()}
    alone.load_state_dict(state)
    return alone


class PosteriorSuite:
    """Join with ``class TestX(PosteriorSuite): build = staticmethod(X)``."""

    build: Callable[..., Posterior]

    def make(self, *shape: int, seed: int = 0) -> Posterior:
        return scramble(type(self).build(shape, dtype=DTYPE), seed)

    def kl(self, posterior: Posterior, prior: Prior) -> Tensor:
        return posterior.kl(prior, generator=seeded(5))

    def priors(self) -> list[str]:
        return sorted(PRIORS)

    def test_vectors_are_flat_and_samples_come_first(self) -> None:
        for shape in [(2, 3), (4, 2, 3), (5, 4, 1, 3)]:
            posterior = self.make(*shape)
            replicas, n = shape[:-2], shape[-2] * shape[-1]
            assert posterior.shape == shape
            assert posterior.batch_shape == replicas
            assert posterior.mean.shape == posterior.loc.shape == (*replicas, n)
            assert posterior.blocks(posterior.mean).shape == shape
            for some in [(), (6,), (6, 7), (0,)]:
                assert posterior.rsample(some).shape == (*some, *replicas, n)
                assert posterior.draw(some).shape == (*replicas, *some, n)

    def test_both_orders_of_axes_hold_the_same_draws(self) -> None:
        posterior = self.make(2, 3, 2, 4)
        ours = posterior.draw((5, 6), seeded(1))
        theirs = posterior.rsample((5, 6), generator=seeded(1))
        assert torch.equal(theirs, ours.permute(2, 3, 0, 1, 4))

    def test_draws_are_reproducible_by_their_generator_alone(self) -> None:
        posterior = self.make(2, 3)
        global_state = torch.get_rng_state()
        first = posterior.rsample((4,), generator=seeded(1))
        assert torch.equal(torch.get_rng_state(), global_state)
        assert torch.equal(first, posterior.rsample((4,), generator=seeded(1)))

    def test_draw_gradients_are_right_for_a_fixed_noise(self) -> None:
        posterior = self.make(2, 2, 3)
        names, values = zip(*posterior.named_parameters(), strict=True)

        def draw(*parameters: Tensor) -> Tensor:
            call = dict(zip(names, parameters, strict=True))
            with torch.nn.utils.stateless._reparametrize_module(posterior, call):
                return posterior.rsample((3,), generator=seeded(2))

        assert torch.autograd.gradcheck(draw, values)

    def test_kl_gradients_are_right(self) -> None:
        for prior_name in self.priors():
            posterior, prior = self.make(2, 2, 3), PRIORS[prior_name]((2,))
            names, values = zip(*posterior.named_parameters(), strict=True)

            def kl(*parameters: Tensor, q=posterior, p=prior, names=names) -> Tensor:
                call = dict(zip(names, parameters, strict=True))
                with torch.nn.utils.stateless._reparametrize_module(q, call):
                    return self.kl(q, p)

            assert torch.autograd.gradcheck(kl, values), prior_name

    def test_every_parameter_gets_a_gradient_at_the_start(self) -> None:
        posterior = type(self).build((2, 8), dtype=DTYPE)
        posterior.reset(1.4, 0.1, generator=seeded())
        target = torch.randn(16, generator=seeded(3), dtype=DTYPE)
        draws = posterior.rsample((16,), generator=seeded(4))
        (
            (draws - target).square().sum(-1).square().sum() + self.kl(posterior, FixedPrior())
        ).backward()
        for name, parameter in posterior.named_parameters():
            assert parameter.grad is not None, name
            assert bool((parameter.grad != 0).all()), name

    def test_kl_of_replicas_is_that_of_separate_posteriors(self) -> None:
        posterior = self.make(3, 2, 4)
        build = type(self).build
        for prior_name in self.priors():
            together = self.kl_exactly(posterior, PRIORS[prior_name]((3,)))
            assert together.shape == (3,)
            for index in range(3):
                alone = replica(posterior, build, index)
                expected = self.kl_exactly(alone, PRIORS[prior_name](()))
                torch.testing.assert_close(together[index], expected, rtol=1e-12, atol=1e-12)

    def kl_exactly(self, posterior: Posterior, prior: Prior) -> Tensor:
        """Return a KL that does not depend on how draws are shared between replicas."""
        return posterior.kl(prior)

    def test_draws_of_replicas_use_their_own_parameters(self) -> None:
        posterior = self.make(2, 1, 3)
        with torch.no_grad():
            posterior.loc[1] += 100
        draws = posterior.rsample((50,), generator=seeded())
        assert (draws[:, 1] - draws[:, 0] > 50).all()

    def test_state_dict_and_copies_round_trip(self) -> None:
        posterior, other = self.make(2, 3), self.make(2, 3, seed=9)
        other.load_state_dict(posterior.state_dict())
        twin = copy.deepcopy(posterior)
        for copied in (other, twin):
            draw = copied.rsample((2,), generator=seeded())
            assert torch.equal(draw, posterior.rsample((2,), generator=seeded()))
        storages = {t.untyped_storage().data_ptr() for t in posterior.state_dict().values()}
        assert len(storages) == len(posterior.state_dict())
        with torch.no_grad():
            twin.loc += 1
        assert not torch.equal(twin.loc, posterior.loc)

    def test_dtype_and_device_are_those_asked_for(self) -> None:
        for dtype in (torch.float32, torch.float64):
            posterior = type(self).build((2, 4), device="cpu", dtype=dtype)
            assert {p.dtype for p in posterior.parameters()} == {dtype}
            assert posterior.rsample((3,)).dtype == dtype
            assert self.kl(posterior, FixedPrior()).dtype == dtype
            assert posterior.mean.dtype == dtype
        assert type(self).build((2, 4), device="meta").loc.device.type == "meta"
        assert self.make(2, 4).float().rsample((3,)).dtype == torch.float32

    def test_reset_is_reproducible_and_has_the_spread_asked_for(self) -> None:
        posterior = type(self).build((4, 512), dtype=DTYPE)
        posterior.reset(2.0, 0.05, generator=seeded(1))
        first = {name: t.clone() for name, t in posterior.state_dict().items()}
        # 2048 means: their std is known to 1.6 %, so 8 % is five standard errors.
        assert posterior.loc.std().item() == pytest.approx(2.0, rel=0.08)
        posterior.reset(2.0, 0.05, generator=seeded(1))
        assert all(torch.equal(t, first[name]) for name, t in posterior.state_dict().items())

    def test_vmap_over_parameters_matches_native_replicas(self) -> None:
        posterior = self.make(3, 2, 4)
        alone = replica(posterior, type(self).build, 0)
        stacked = dict(posterior.named_parameters())
        mean = torch.func.vmap(lambda p: functional_call(_Mean(alone), _prefixed(p), ()))(stacked)
        torch.testing.assert_close(mean, posterior.mean, rtol=1e-13, atol=1e-13)

    def test_bad_shapes_and_starts_are_refused(self) -> None:
        for shape in [(3,), (), (0, 4), (2, -1)]:
            with pytest.raises(ShapeError, match="batch_shape, K, D"):
                type(self).build(shape)
        posterior = self.make(2, 3)
        with pytest.raises(ConfigError, match="scale must be"):
            posterior.reset(1.0, 0.0)
        with pytest.raises(ConfigError, match="mean_std must be"):
            posterior.reset(-1.0, 0.1)

    def test_repr_names_the_shape(self) -> None:
        assert "(2, 3)" in repr(self.make(2, 3))


class _Mean(torch.nn.Module):
    """A forward that returns the mean, for functional_call."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.posterior = posterior

    def forward(self) -> Tensor:
        return self.posterior.mean


def _prefixed(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"posterior.{name}": value for name, value in parameters.items()}


class GaussianPosteriorSuite(PosteriorSuite):
    """What members with a Gaussian ``q`` add: exact moments and an exact KL."""

    def dense(self, posterior: Posterior) -> MultivariateNormal:
        return MultivariateNormal(posterior.blocks(posterior.mean), posterior.covariance())

    def move_to_prior(self, posterior: Posterior, variance: float) -> None:
        """Make ``q = N(0, variance · I)``."""
        posterior.reset(0.0, math.sqrt(variance))

    @each_prior
    def test_kl_matches_torch_distributions(self, prior_name: str) -> None:
        for shape in [(1, 1), (2, 5), (3, 2, 4)]:
            posterior, prior = self.make(*shape), PRIORS[prior_name](shape[:-2])
            variance = prior.variance(posterior.mean_square())[..., None, None, None]
            eye = torch.eye(shape[-1], dtype=DTYPE)
            p = MultivariateNormal(torch.zeros(shape, dtype=DTYPE), variance * eye)
            expected = kl_divergence(self.dense(posterior), p).sum(-1)
            torch.testing.assert_close(posterior.kl(prior), expected, rtol=1e-12, atol=1e-12)

    def test_entropy_matches_torch_distributions(self) -> None:
        posterior = self.make(3, 2, 4)
        expected = self.dense(posterior).entropy().sum(-1)
        torch.testing.assert_close(posterior.entropy(), expected, rtol=1e-12, atol=1e-12)

    @each_prior
    def test_kl_matches_monte_carlo(self, prior_name: str) -> None:
        posterior, prior = self.make(2, 3), PRIORS[prior_name](())
        with torch.no_grad():
            g = posterior.rsample((20_000,), generator=seeded(7))
            variance = prior.variance(posterior.mean_square())
            log_p = torch.distributions.Normal(0.0, variance.sqrt()).log_prob(g).sum(-1)
            log_ratio = self.dense(posterior).log_prob(posterior.blocks(g)).sum(-1) - log_p
            standard_error = log_ratio.std() / math.sqrt(len(log_ratio))
            z = (log_ratio.mean() - posterior.kl(prior)) / standard_error
        assert abs(z.item()) < 4

    @each_prior
    def test_kl_is_not_negative_and_vanishes_at_the_prior(self, prior_name: str) -> None:
        for seed in range(20):
            posterior = self.make(3, 2, 4, seed=seed)
            assert (posterior.kl(PRIORS[prior_name]((3,))) > 0).all()
        self.move_to_prior(posterior, 0.7)
        assert posterior.kl(FixedPrior(0.7)).abs().max() < 1e-14 * posterior.num_entries

    def test_kl_adds_up_over_blocks(self) -> None:
        posterior = self.make(3, 4)
        parts = [block(posterior, type(self).build, i).kl(FixedPrior(0.7)) for i in range(3)]
        total = posterior.kl(FixedPrior(0.7))
        torch.testing.assert_close(total, torch.stack(parts).sum(), rtol=1e-13, atol=0)

    def test_variance_is_the_diagonal_of_the_covariance(self) -> None:
        posterior = self.make(3, 2, 4)
        diagonal = posterior.covariance().diagonal(dim1=-2, dim2=-1).flatten(-2)
        torch.testing.assert_close(posterior.variance, diagonal, rtol=1e-13, atol=0)
        expected = (posterior.mean.square() + diagonal).mean(-1)
        torch.testing.assert_close(posterior.mean_square(), expected, rtol=1e-13, atol=0)

    def test_draws_have_the_mean_and_covariance_they_claim(self) -> None:
        num_draws, size = 20_000, 3
        posterior = self.make(2, 2, size)
        with torch.no_grad():
            draws = posterior.rsample((num_draws,), generator=seeded(11))
            mean, covariance = posterior.mean, posterior.covariance()
        z_mean = (draws - mean).mean(0) / (posterior.variance.detach() / num_draws).sqrt()
        assert z_mean.abs().max() < 4.5  # 12 statistics
        centred = posterior.blocks(draws - mean)
        products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
        z_cov = (products.mean(0) - covariance) / (products.std(0) / math.sqrt(num_draws))
        assert z_cov.abs().max() < 5  # 24 distinct statistics
        self.check_independence_of_blocks(centred)

    def check_independence_of_blocks(self, centred: Tensor) -> None:
        """Entries of different blocks and replicas are uncorrelated."""
        num_draws = len(centred)
        rows = centred.movedim(0, -1).flatten(0, 1)  # (replica × block, D, draws)
        for i in range(len(rows)):
            for j in range(i):
                products = rows[i].unsqueeze(0) * rows[j].unsqueeze(1)
                z = products.mean(-1) / (products.std(-1) / math.sqrt(num_draws))
                assert z.abs().max() < 5

    def test_mahalanobis_distances_are_chi_square(self) -> None:
        size = 4
        posterior = self.make(1, size)
        with torch.no_grad():
            draws = posterior.rsample((5_000,), generator=seeded(13))
            centred = (draws - posterior.mean).unsqueeze(-1)
            solved = torch.linalg.solve(posterior.covariance()[0], centred)
            distances = (centred * solved).sum((-2, -1))
        assert stats.kstest(distances.numpy(), "chi2", args=(size,)).pvalue > 1e-4

    def test_reset_sets_the_marginal_standard_deviation(self) -> None:
        posterior = type(self).build((3, 8), dtype=DTYPE)
        posterior.reset(1.4, 0.05, generator=seeded())
        expected = torch.full((24,), 0.05**2, dtype=DTYPE)
        torch.testing.assert_close(posterior.variance, expected, rtol=1e-12, atol=0)
