"""Tests that notice: plant each classic fault and see the test that is meant for it fail.

Every fault has been seen in published code. The test that should notice it runs in a process of its
own, which loads this very file as a pytest plugin and plants the fault named by
``WHVI_PLANTED_FAULT`` before any test is collected. It has to fail by the assertion meant for the
fault: any other exception, such as that of a mutant which does not run, counts as not noticed. That
the same tests pass without a fault is what every ordinary run shows.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
VARIABLE = "WHVI_PLANTED_FAULT"
REPORT = "WHVI_PLANTED_REPORT"  # a file for what the test raised


def substitute(old: Any, new: Any) -> None:
    """Put ``new`` wherever a module of the library has imported ``old``."""
    found = False
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("whvi", "reproduction"):
            continue
        for attribute, value in list(vars(module).items()):
            if value is old:
                setattr(module, attribute, new)
                found = True
    assert found, f"{old} has moved: adapt the fault"


def wrap(owner: type, name: str, change: Callable[..., Any]) -> None:
    """Replace a method that ``owner`` itself defines by ``change(original, self, …)``."""
    original = vars(owner)[name]

    def changed(self: Any, *args: Any, **options: Any) -> Any:
        return change(original, self, *args, **options)

    setattr(owner, name, changed)


def variance_as_standard_deviation() -> None:
    from whvi.posteriors import DiagonalGaussian
    from whvi.sampling import insert_inner_axes

    def draw(original: Any, self: Any, inner_shape: Any = (), generator: Any = None) -> Any:
        axes = (len(self.batch_shape), len(inner_shape))
        mean, scale = (insert_inner_axes(v, *axes) for v in (self.loc, self.log_scale.exp()))
        return mean + (original(self, inner_shape, generator) - mean) * scale

    wrap(DiagonalGaussian, "draw", draw)


def noise_variance_as_standard_deviation() -> None:
    from whvi.likelihoods import Gaussian

    def predictive(original: Any, self: Any, f: Any) -> Any:
        log_variance = self.log_noise_variance.data
        self.log_noise_variance.data = 2 * log_variance
        try:
            return original(self, f)
        finally:
            self.log_noise_variance.data = log_variance

    wrap(Gaussian, "predictive", predictive)


def kl_averaged_over_weights() -> None:
    from whvi import priors

    def kl(original: Any, self: Any, mean_square: Any, log_volume: Any, n: int) -> Any:
        return original(self, mean_square, log_volume, n) / n

    for owner in (priors.Prior, priors.FixedPrior, priors.EmpiricalBayesPrior):
        wrap(owner, "kl", kl)


def kl_divided_by_layers() -> None:
    from whvi.layers import BayesianLayer, protocol

    original = protocol.kl

    def kl(model: Any) -> Any:
        count = sum(isinstance(module, BayesianLayer) for module in model.modules())
        return original(model) / max(count, 1)

    substitute(original, kl)


def hidden_penalty_in_the_kl() -> None:
    from whvi.layers import protocol

    original = protocol.kl

    def kl(model: Any) -> Any:
        return original(model) + 1e-4 * sum(p.square().sum() for p in model.parameters())

    substitute(original, kl)


def missing_factor_of_the_batch() -> None:
    from whvi.elbo import Elbo
    from whvi.elbo import elbo_of_values as original

    def elbo_of_values(
        likelihood: Any, f: Any, y: Any, kl_value: Any, *, num_data: int, beta: float
    ) -> Any:
        log_prob = likelihood.log_prob(f, y)
        return Elbo(log_prob.mean(-2).sum(-1), kl_value, beta)

    substitute(original, elbo_of_values)


def noise_shared_across_rows() -> None:
    from whvi.layers.structured import StructuredMatrix
    from whvi.sampling import WeightDraws

    def multiply(original: Any, self: Any, x: Any, bias: Any, sampler: Any) -> Any:
        return original(self, x, bias, WeightDraws(generator=sampler.generator))

    wrap(StructuredMatrix, "multiply", multiply)


def logarithm_in_floats() -> None:
    from whvi import _checks

    substitute(_checks.next_power_of_two, lambda size: 1 << math.ceil(math.log2(max(size, 1))))


def noise_not_held_fixed() -> None:
    from whvi.training.step import NoiseHold

    wrap(NoiseHold, "update", lambda original, self, step: None)


def weights_drawn_again_at_every_call() -> None:
    from whvi.sampling import WeightDraws

    wrap(WeightDraws, "draw_once", lambda original, self, layer, draw: draw(self.generator))


def scaling_that_saw_the_test_rows() -> None:
    import numpy as np

    from reproduction.data import splits

    original = splits.standardize_replicas

    def standardize_replicas(replicas: Any) -> Any:
        leaked = replicas._replace(
            x_train=np.concatenate([replicas.x_train, replicas.x_test], axis=-2),
            y_train=np.concatenate([replicas.y_train, replicas.y_test], axis=-1),
        )
        _, x, y = original(leaked)
        parts = (x.transform(replicas.x_train), y.transform(replicas.y_train))
        rest = (x.transform(replicas.x_test), y.transform(replicas.y_test))
        return splits.ScaledReplicas(splits.Replicas(*parts, *rest), x, y)

    substitute(original, standardize_replicas)


def s1_and_s2_swapped() -> None:
    from whvi._kernel.product import block_linear as original

    def block_linear(x: Any, s1: Any, g: Any, s2: Any, bias: Any, plan: Any) -> Any:
        return original(x, s2, g, s1, bias, plan)

    substitute(original, block_linear)


def missing_factor_two_of_a_log_determinant() -> None:
    from whvi.linearized import evidence

    def factor(original: Any, self: Any, precision: Any, noise: Any, b: Any) -> Any:
        found = original(self, precision, noise, b)
        return found._replace(log_det=found.log_det / 2)

    for owner in (evidence.PrimalSystem, evidence.DualSystem):
        wrap(owner, "factor", factor)


def precision_for_variance() -> None:
    from whvi.linearized.parameters import ParameterSpace

    def spread(original: Any, self: Any, values: Any) -> Any:
        return original(self, 1 / values)

    wrap(ParameterSpace, "spread", spread)


def dropped_off_diagonal() -> None:
    import torch

    from whvi.linearized.covariance import RootCovariance

    def of_outputs(original: Any, self: Any, J: Any) -> Any:
        variances = self.root.square().sum(-2)
        return original(RootCovariance(torch.diag_embed(variances.sqrt())), J)

    wrap(RootCovariance, "of_outputs", of_outputs)


def noise_counted_twice() -> None:
    from whvi.linearized import LinearizedPosterior

    def predictive(original: Any, self: Any, x: Any, **options: Any) -> Any:
        self.noise = 2 * self.noise
        try:
            return original(self, x, **options)
        finally:
            self.noise = self.noise / 2

    wrap(LinearizedPosterior, "predictive", predictive)


def latent_kl_with_the_wrong_sign() -> None:
    from whvi.models.vae import Latents

    wrap(Latents, "kl", lambda original, self: -original(self))


def importance_weights_summed() -> None:
    from whvi.models import Vae

    def log_sum(original: Any, self: Any, x: Any, num_latents: int, outputs: Any) -> Any:
        return original(self, x, num_latents, outputs) + math.log(num_latents)

    wrap(Vae, "_log_mean_weight", log_sum)


def weight_kl_counted_per_image() -> None:
    from whvi.models.vae import VaeTerms

    def elbo(original: Any, self: Any, num_data: int) -> Any:
        return num_data * original(self, 1)

    wrap(VaeTerms, "elbo", elbo)


class Fault(NamedTuple):
    """A way to plant a fault, the test that has to notice, and the assertion in it."""

    plant: Callable[[], None]
    test: str
    assertion: str


FAULTS = {
    fault.plant.__name__: fault
    for fault in (
        Fault(
            variance_as_standard_deviation,
            "layers/test_linear.py::test_moments_match_draws[diagonal-sizes0]",
            "assert _variance_z(y, exact.variance) < 5",
        ),
        Fault(
            noise_variance_as_standard_deviation,
            "statistical/test_calibration.py"
            "::test_intervals_of_the_exact_posterior_have_their_level",
            "assert abs(covered - level) < 3 * error",
        ),
        Fault(
            kl_averaged_over_weights,
            "statistical/test_inference.py"
            "::test_elbo_at_the_exact_posterior_is_the_evidence[(5, 7)]",
            "assert_close(\n        closed_form_elbo(problem).detach(), log_evidence(problem)",
        ),
        Fault(
            kl_divided_by_layers,
            "layers/test_protocol.py::test_kl_of_a_model_with_replicas_is_per_replica",
            "assert_close(kl(model), model[0].kl() + model[2].kl()",
        ),
        Fault(
            hidden_penalty_in_the_kl,
            "layers/test_protocol.py::test_a_shared_module_counts_once",
            "assert_close(kl(model), layer.kl()",
        ),
        Fault(
            missing_factor_of_the_batch,
            "test_elbo.py::test_minibatch_objective_is_unbiased_exactly[2]",
            "assert_close(mean, full.value",
        ),
        Fault(
            noise_shared_across_rows,
            "layers/test_conformance.py::TestWHVILinear"
            "::test_local_reparameterization_draws_for_every_row",
            "assert (spread > 0).all()",
        ),
        Fault(
            logarithm_in_floats,
            "_kernel/test_product.py::test_sizes_are_found_without_floats",
            "assert BlockPlan.for_shape(power + 1, 2).block_size == 2 * power",
        ),
        Fault(
            noise_not_held_fixed,
            "training/test_loop.py::TestNoiseHold::test_noise_is_held_and_then_moves",
            "assert values[5] == values[15] == [[-2.0]]",
        ),
        Fault(
            weights_drawn_again_at_every_call,
            "layers/test_linear.py::test_a_draw_is_a_function_at_any_size[WHVILinear-sizes0]",
            "assert torch.equal(parts, whole)",
        ),
        Fault(
            scaling_that_saw_the_test_rows,
            "tabular/test_scaling.py::test_nothing_of_the_test_rows_reaches_the_training_arrays",
            "assert_array_equal(changed.data.x_train, original.data.x_train)",
        ),
        Fault(
            s1_and_s2_swapped,
            "layers/test_linear.py::test_some_shapes_are_their_dense_matrix[0]",
            "assert error <= 64 * EPS * scale",
        ),
        Fault(
            missing_factor_two_of_a_log_determinant,
            "linearized/test_evidence.py::test_of_a_linear_model_it_is_exact[False-1]",
            "assert value.log_evidence == pytest.approx(float(exact)",
        ),
        Fault(
            precision_for_variance,
            "linearized/test_posterior.py::test_of_a_linear_model_everything_is_exact[1]",
            "assert_close(q.space.vector(model) + q.shift, mean",
        ),
        Fault(
            dropped_off_diagonal,
            "linearized/test_posterior.py::test_of_a_linear_model_everything_is_exact[1]",
            "assert_close(moments.covariance, A @ covariance @ A.mT",
        ),
        Fault(
            noise_counted_twice,
            "linearized/test_posterior.py::test_of_a_linear_model_everything_is_exact[1]",
            "assert_close(predictive.variance, variance",
        ),
        Fault(
            latent_kl_with_the_wrong_sign,
            "models/test_vae.py::test_the_elbo_is_its_closed_form",
            "assert z.abs().max() < 5",
        ),
        Fault(
            importance_weights_summed,
            "models/test_vae.py::test_an_exact_encoder_gives_the_exact_likelihood[7]",
            "assert_close(estimate, exact",
        ),
        Fault(
            weight_kl_counted_per_image,
            "models/test_vae.py::test_terms_are_what_fit_maximises[whvi]",
            "assert_close(whole.value, terms.elbo(1000))",
        ),
    )
}


def mutant_that_does_not_run() -> None:
    from whvi.layers.structured import StructuredMatrix

    wrap(StructuredMatrix, "multiply", lambda original, self: None)  # TypeError at every call


# what must not count as noticed
CRASH = FAULTS["noise_shared_across_rows"]._replace(plant=mutant_that_does_not_run)


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: plant the fault that the environment names, before tests are collected."""
    if name := os.environ.get(VARIABLE):
        import whvi.linearized
        import whvi.tabular
        import whvi.training.step  # noqa: F401

        FAULTS.get(name, CRASH).plant()


def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """As a plugin: write down what the test raised, and the last statement of a test in it."""
    if (path := os.environ.get(REPORT)) and call.excinfo is not None:
        raised, tests = call.excinfo, ROOT / "tests"
        *_, last = (e for e in raised.traceback if Path(e.path).is_relative_to(tests))
        found = {
            "is_assertion": raised.errisinstance(AssertionError),
            "raised": repr(raised.value),
            "statement": str(last.statement),
        }
        Path(path).write_text(json.dumps(found))


def run_test(name: str, report: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "pytest", "-p", "tests.test_planted_faults", "-p", "no:cacheprovider",
        "-p", "no:xdist", "-q", "-o", "addopts=", f"tests/{FAULTS.get(name, CRASH).test}",
    ]  # fmt: skip
    environment = os.environ | {VARIABLE: name, REPORT: str(report)}
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(inherited, None)
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_the_assertion_meant_for_it_notices(name: str, tmp_path: Path) -> None:
    report = tmp_path / "raised.json"
    faulty = run_test(name, report)
    assert faulty.returncode == pytest.ExitCode.TESTS_FAILED, faulty.stdout[-3000:] + faulty.stderr
    found = json.loads(report.read_text())
    assert found["is_assertion"], found["raised"]
    assert FAULTS[name].assertion in found["statement"]


@pytest.mark.nightly
def test_a_mutant_that_does_not_run_is_not_noticed(tmp_path: Path) -> None:
    report = tmp_path / "raised.json"
    assert run_test("crash", report).returncode == pytest.ExitCode.TESTS_FAILED
    assert not json.loads(report.read_text())["is_assertion"]
