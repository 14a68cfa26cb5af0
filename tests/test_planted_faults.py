"""I13: alarms that ring. Plant each classic fault and see the suite fail.

Every fault has been seen in published code. The tests that should notice it run in a process of
their own, which loads this very file as a pytest plugin (``-p test_planted_faults``) and plants
the fault named by ``WHVI_PLANTED_FAULT`` before any test is collected. That the same tests pass
without a fault (an alarm that always rings is no alarm) is what every ordinary run shows.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TESTS = Path(__file__).parent
VARIABLE = "WHVI_PLANTED_FAULT"


def substitute(old: Any, new: Any) -> None:
    """Put ``new`` wherever a module of the library has imported ``old``."""
    found = False
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "whvi":
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

    def draw(original: Any, self: Any, num_draws: int, generator: Any) -> Any:
        mean = self.loc.unsqueeze(-3)
        return mean + (
            original(self, num_draws, generator) - mean
        ) * self.log_scale.exp().unsqueeze(-3)

    wrap(DiagonalGaussian, "_draw", draw)


def noise_variance_as_standard_deviation() -> None:
    from whvi.likelihoods import Gaussian
    from whvi.predictive import Predictive

    def predictive(original: Any, self: Any, f: Any) -> Any:
        scale = self.noise_scale.square().expand_as(f)
        axes = len(self.batch_shape)
        return Predictive.gaussian(f.squeeze(-1).double(), scale.squeeze(-1), batch_dims=axes)

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
    import whvi.elbo as module

    def elbo_of_values(
        model: Any, likelihood: Any, f: Any, y: Any, *, num_data: int, beta: float
    ) -> Any:
        log_prob = likelihood.log_prob(f, y)
        return module.Elbo(log_prob.mean(-2).sum(-1), module.kl(model), beta)

    substitute(sys.modules["whvi.elbo"].elbo_of_values, elbo_of_values)


def noise_shared_across_rows() -> None:
    from whvi.layers.structured import StructuredWeight

    def multiply(original: Any, self: Any, x: Any, bias: Any, generator: Any) -> Any:
        return self._multiply_given(x, bias, self._draw((), generator))

    wrap(StructuredWeight, "_multiply_local", multiply)


def logarithm_in_floats() -> None:
    from whvi import _checks

    substitute(_checks.next_power_of_two, lambda size: 1 << math.ceil(math.log2(max(size, 1))))


def noise_not_held_fixed() -> None:
    from whvi.training.step import NoiseHold

    wrap(NoiseHold, "update", lambda original, self, step: None)


def weights_drawn_again_at_every_call() -> None:
    from whvi.sampling import WeightDraws

    wrap(WeightDraws, "draw_once", lambda original, self, layer, draw: draw())


def scaling_that_saw_the_test_rows() -> None:
    import numpy as np

    from reproduction.data import splits as scaling

    original = scaling.standardize_replicas

    def standardize_replicas(replicas: Any) -> Any:
        leaked = replicas._replace(
            x_train=np.concatenate([replicas.x_train, replicas.x_test], axis=-2),
            y_train=np.concatenate([replicas.y_train, replicas.y_test], axis=-1),
        )
        _, x, y = original(leaked)
        parts = (x.transform(replicas.x_train), y.transform(replicas.y_train))
        rest = (x.transform(replicas.x_test), y.transform(replicas.y_test))
        return scaling.ScaledReplicas(scaling.Replicas(*parts, *rest), x, y)

    substitute(original, standardize_replicas)


def s1_and_s2_swapped() -> None:
    from whvi.layers import blocks

    original = blocks.block_linear

    def block_linear(x: Any, s1: Any, g: Any, s2: Any, bias: Any, plan: Any) -> Any:
        return original(x, s2, g, s1, bias, plan)

    substitute(original, block_linear)


class Fault(NamedTuple):
    """A way to plant a fault, and the tests that have to notice."""

    plant: Callable[[], None]
    noticed_by: tuple[str, ...]
    names: str = ""  # an expression for pytest -k


FAULTS = {
    fault.plant.__name__: fault
    for fault in (
        Fault(
            variance_as_standard_deviation,
            ("layers/test_linear.py",),
            "test_moments_match_draws",
        ),
        Fault(
            noise_variance_as_standard_deviation,
            ("test_likelihoods.py", "statistical/test_calibration.py"),
        ),
        Fault(
            kl_averaged_over_weights,
            ("statistical/test_inference.py",),
            "test_elbo_at_the_exact or test_best_factorized",
        ),
        Fault(kl_divided_by_layers, ("layers/test_protocol.py",)),
        Fault(hidden_penalty_in_the_kl, ("layers/test_protocol.py",)),
        Fault(
            missing_factor_of_the_batch,
            ("test_elbo.py", "statistical/test_inference.py"),
            "unbiased",
        ),
        Fault(
            noise_shared_across_rows,
            ("layers/test_conformance.py", "statistical/test_inference.py"),
            "test_local_reparameterization_draws or test_rows_are_correlated",
        ),
        Fault(logarithm_in_floats, ("layers/test_blocks.py",), "without_floats"),
        Fault(noise_not_held_fixed, ("training/test_loop.py",)),
        Fault(weights_drawn_again_at_every_call, ("layers/test_linear.py",), "is_a_function"),
        Fault(scaling_that_saw_the_test_rows, ("data/test_scaling.py",)),
        Fault(s1_and_s2_swapped, ("layers/test_linear.py",), "some_shapes"),
    )
}


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin: plant the fault that the environment names, before tests are collected."""
    import whvi
    import whvi.tabular.inputs
    import whvi.training.step  # noqa: F401

    if name := os.environ.get(VARIABLE):
        FAULTS[name].plant()


def run_tests(name: str) -> subprocess.CompletedProcess[str]:
    fault = FAULTS[name]
    command = [
        sys.executable, "-m", "pytest", "-p", "test_planted_faults", "-p", "no:cacheprovider",
        "-p", "no:xdist", "-q", "-x", *(str(TESTS / file) for file in fault.noticed_by),
    ]  # fmt: skip
    if fault.names:
        command += ["-k", fault.names]
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {VARIABLE: name, "PYTHONPATH": os.pathsep.join(paths)}
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(inherited, None)
    return subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=600
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_the_suite_notices(name: str) -> None:
    faulty = run_tests(name)
    assert faulty.returncode == pytest.ExitCode.TESTS_FAILED, faulty.stdout[-3000:]
    assert " failed" in faulty.stdout
    assert "error" not in faulty.stdout.splitlines()[-1]
