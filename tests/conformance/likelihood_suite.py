"""What every likelihood must do. A likelihood joins with a subclass that names one `Case`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from whvi.errors import DataError, NumericalError, ShapeError
from whvi.likelihoods import Likelihood

S, N, R = 4, 5, 3


@dataclass(frozen=True)
class Case:
    """`make(**options)` builds it; `targets(shape)` draws targets; `oracle` is another library.

    `oracle(likelihood, f, y)` takes aligned `(S, N, features)` and `(N, outputs)` and returns
    the log-probability per output, `(S, N, outputs)`. `grid` holds (the) possible targets.
    """

    make: Callable[..., Likelihood]
    targets: Callable[[tuple[int, ...]], Tensor]
    oracle: Callable[[Likelihood, Tensor, Tensor], Tensor]
    grid: Tensor
    discrete: bool = False


def values(likelihood: Likelihood, seed: int = 1) -> Tensor:
    shape = (*likelihood.batch_shape, S, N, likelihood.num_features)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scramble(likelihood: Likelihood) -> Likelihood:
    """Give every replica and output its own float64 parameters and units."""
    likelihood.double()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in likelihood.state_dict().items():
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(0.5 + 2 * noise if name == "target_scale" else noise - 0.3)
    return likelihood


def check_vjp(likelihood: Likelihood, f: Tensor, y: Tensor) -> None:
    """Compare a gradient by hand with autograd's, twice: it must keep what it was given."""
    expected_value, by_autograd = Likelihood.vjp(likelihood, f, y)
    with torch.no_grad():
        value, vjp = likelihood.vjp(f, y)
    assert torch.equal(value, expected_value)
    slope = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    for grad in (slope, torch.ones((), dtype=value.dtype).expand(value.shape)):
        pairs = list(zip(vjp(grad), by_autograd(grad), strict=True))
        assert all((found is None) == (expected is None) for found, expected in pairs)
        for found, expected in pairs:
            if found is not None and expected is not None:
                size = float(expected.abs().max())
                eps = torch.finfo(f.dtype).eps
                torch.testing.assert_close(found, expected, rtol=0, atol=20 * eps * max(1, size))


class LikelihoodSuite:
    case: Case

    def make(self, **options: object) -> Likelihood:
        return scramble(self.case.make(**options))

    def targets(self, likelihood: Likelihood, *leading: int) -> Tensor:
        return self.case.targets((*leading, N, likelihood.num_outputs))

    def test_log_prob_equals_the_oracle(self) -> None:
        likelihood = self.make()
        f, y = values(likelihood), self.targets(likelihood)
        expected = self.case.oracle(likelihood, f, y).sum(-1)
        log_prob = likelihood.log_prob(f, y)
        assert log_prob.shape == (S, N)
        # The noise floor (1e-8 of a variance) is not in the oracle.
        torch.testing.assert_close(log_prob, expected, rtol=1e-6, atol=1e-6)

    def test_is_a_density_in_the_users_units(self) -> None:
        likelihood = self.make()
        if likelihood.num_outputs > 1:
            pytest.skip("one output is enough")
        grid = self.case.grid
        f = values(likelihood)[:, :1].expand(S, len(grid), likelihood.num_features)
        density = likelihood.log_prob(f, grid).exp()
        total = density.sum(-1) if self.case.discrete else torch.trapezoid(density, grid)
        torch.testing.assert_close(total, torch.ones(S).double(), rtol=0, atol=1e-4)

    def test_predictive_is_the_mean_over_draws_of_exp_log_prob(self) -> None:
        likelihood = self.make()
        f, y = values(likelihood), self.targets(likelihood)
        expected = likelihood.log_prob(f, y).exp().mean(0).log()
        torch.testing.assert_close(likelihood.predictive(f).log_prob(y), expected)

    def test_replicas_are_independent_models(self) -> None:
        likelihood = self.make(batch_shape=(R,))
        f, y = values(likelihood), self.targets(likelihood, R)
        log_prob, predictive = likelihood.log_prob(f, y), likelihood.predictive(f)
        assert log_prob.shape == (R, S, N)
        assert predictive.batch_shape == (R,)
        for r in range(R):
            single = self.make()
            single.load_state_dict({k: v[r] for k, v in likelihood.state_dict().items()})
            torch.testing.assert_close(single.log_prob(f[r], y[r]), log_prob[r])
            alone = single.predictive(f[r]).log_prob(y[r])
            torch.testing.assert_close(alone, predictive.log_prob(y)[r])
            torch.testing.assert_close(alone, predictive.unbind()[r].log_prob(y[r]))

    def test_pooled_replicas_are_one_mixture(self) -> None:
        likelihood = self.make(batch_shape=(R,))
        f, y = values(likelihood), self.targets(likelihood)
        pooled = likelihood.predictive(f).pool()
        assert pooled.num_components == R * S
        expected = likelihood.log_prob(f, y).exp().mean((0, 1)).log()
        torch.testing.assert_close(pooled.log_prob(y), expected)

    def test_targets_shared_by_replicas(self) -> None:
        likelihood = self.make(batch_shape=(R,))
        f, y = values(likelihood), self.targets(likelihood)
        shared = likelihood.log_prob(f, y)
        torch.testing.assert_close(shared, likelihood.log_prob(f, y.expand(R, *y.shape)))

    def test_single_output_may_drop_its_axis(self) -> None:
        for batch_shape in ((), (R,)):
            likelihood = self.make(batch_shape=batch_shape)
            if likelihood.num_outputs > 1:
                pytest.skip("several outputs")
            f, y = values(likelihood), self.targets(likelihood, *batch_shape)
            expected = likelihood.log_prob(f, y)
            torch.testing.assert_close(likelihood.log_prob(f, y.squeeze(-1)), expected)
            assert likelihood.predictive(f).log_prob(y).shape == (*batch_shape, N)

    def test_wrong_shapes_are_refused_with_both_shapes(self) -> None:
        likelihood = self.make()
        f, y = values(likelihood), self.targets(likelihood)
        for wrong in (y[:-1], y.mT, y[None, None], torch.zeros(N + 1), torch.zeros(())):
            with pytest.raises(ShapeError, match=rf"{N} rows"):
                likelihood.log_prob(f, wrong)
        for wrong in (f[0], f[..., :0], f[None], torch.cat([f, f], -1)):
            with pytest.raises(ShapeError, match="function values must have shape"):
                likelihood.log_prob(wrong, y)
            with pytest.raises(ShapeError, match="function values must have shape"):
                likelihood.predictive(wrong)

    def test_gradients(self) -> None:
        likelihood = self.make(batch_shape=(R,))
        f, y = values(likelihood).requires_grad_(), self.targets(likelihood, R)
        parameters = list(likelihood.parameters())
        assert torch.autograd.gradcheck(
            lambda f, *_: likelihood.log_prob(f, y), (f, *parameters), fast_mode=True
        )
        assert all(any(p is q for q in parameters) for p in likelihood.noise_parameters())

    @pytest.mark.parametrize("trained", [True, False])
    @pytest.mark.parametrize("batch_shape", [(), (R,)])
    def test_vjp_is_that_of_autograd(self, batch_shape: tuple[int, ...], trained: bool) -> None:
        likelihood = self.make(batch_shape=batch_shape).requires_grad_(trained)
        check_vjp(likelihood, values(likelihood), self.targets(likelihood, *batch_shape))

    def test_float32_stays_float32_and_agrees(self) -> None:
        likelihood = self.make()
        f, y = values(likelihood), self.targets(likelihood)
        expected = likelihood.log_prob(f, y)
        for targets in (y, y.float()):
            log_prob = likelihood.float().log_prob(f.float(), targets)
            assert log_prob.dtype == torch.float32
            torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-4)

    def test_vmap_over_draws(self) -> None:
        likelihood = self.make()
        f, y = values(likelihood), self.targets(likelihood)
        mapped = torch.func.vmap(lambda one: likelihood.log_prob(one[None], y)[0])(f)
        torch.testing.assert_close(mapped, likelihood.log_prob(f, y))

    def test_state_is_plain_and_copies(self) -> None:
        likelihood = self.make(batch_shape=(R,))
        f, y = values(likelihood), self.targets(likelihood, R)
        likelihood.log_prob(f, y)
        state = likelihood.state_dict()
        pointers = [t.data_ptr() for t in state.values()]
        assert len(set(pointers)) == len(pointers)
        twin = self.case.make(batch_shape=(R,)).double()
        twin.load_state_dict(state)
        for other in (twin, copy.deepcopy(likelihood)):
            assert torch.equal(other.log_prob(f, y), likelihood.log_prob(f, y))
        assert "batch_shape=(3,)" in repr(likelihood)

    def test_nan_never_becomes_a_number(self) -> None:
        likelihood = self.make()
        f, y = values(likelihood), self.targets(likelihood).double()
        y[2] = torch.nan
        with pytest.raises(DataError, match=r"not finite .*\(2, 0\)"):
            likelihood.check_targets(y)
        assert likelihood.predictive(f).log_prob(y).isnan().tolist() == [0, 0, 1, 0, 0]
        f[1, 2] = torch.nan
        with pytest.raises(NumericalError, match="not finite"):
            likelihood.predictive(f)

    def test_rejects_bad_options(self) -> None:
        for options in ({"batch_shape": (0,)}, {"batch_shape": (2.0,)}):
            with pytest.raises(ValueError, match="batch_shape"):
                self.case.make(**options)

    def test_fitted_units_keep_shapes(self) -> None:
        for batch_shape in ((), (R,)):
            likelihood = self.make(batch_shape=batch_shape)
            shapes = {k: v.shape for k, v in likelihood.state_dict().items()}
            for leading in {(), batch_shape}:
                likelihood.set_target_scaling(self.targets(likelihood, *leading))
            assert {k: v.shape for k, v in likelihood.state_dict().items()} == shapes
