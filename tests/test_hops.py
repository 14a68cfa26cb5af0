"""How many files of the library a tensor passes on its way from a layer to the kernel."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import whvi
from whvi._kernel.backend import backend
from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear, noisy_block_linear
from whvi.sampling import LocalReparameterization, MeanWeights, Sampler, WeightDraws, sampling

ROOT = Path(whvi.__file__).parent
NUM_ROWS = itertools.count(11)  # another one for each test


def files_entered(call: Callable[[], object]) -> list[str]:
    """Files of the library in which a function is entered before the first kernel call."""
    entered: dict[str, None] = {}
    reached = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal reached
        if event == "c_call" and getattr(argument, "__self__", None) is backend.kernel:
            reached = True
        path = Path(frame.f_code.co_filename)
        if event == "call" and not reached and path.is_relative_to(ROOT):
            entered[str(path.relative_to(ROOT))] = None

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert reached, "the kernel was not called"
    return list(entered)


@pytest.mark.skipif(backend.kernel is None, reason="needs the compiled kernel")
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("kind", ["default", "mean", "draw", "draws", "local"])
def test_forward(kind: str, grad: bool) -> None:
    """From ``WHVILinear.forward``; at the first call with new shapes, which plans the product."""
    layer, x = whvi.WHVILinear(128, 128), torch.randn(3, next(NUM_ROWS), 128)
    samplers: dict[str, Callable[[], Sampler]] = {
        "mean": MeanWeights,
        "draw": WeightDraws,
        "draws": lambda: WeightDraws(3),
        "local": LocalReparameterization,
    }
    active = sampling(samplers[kind]()) if kind in samplers else contextlib.nullcontext()
    with active, torch.set_grad_enabled(grad):
        assert len(files := files_entered(lambda: layer(x))) <= 6, files


@pytest.mark.skipif(backend.kernel is None, reason="needs the compiled kernel")
def test_the_kernel_package_is_two_files_and_one_from_the_second_call_on() -> None:
    plan = BlockPlan.for_shape(24, 40)
    x, vector, bias = torch.randn(5, 24), torch.randn(plan.vector_size), torch.randn(40)
    calls: list[Callable[[], object]] = [
        lambda: block_linear(x, vector, vector, vector, bias, plan),
        lambda: noisy_block_linear(x, vector, (vector, vector), vector, bias, plan, 3),
    ]
    for call in calls:
        assert set(files_entered(call)) <= {"_kernel/product.py", "_kernel/layout.py"}
        assert files_entered(call) == ["_kernel/product.py"]
