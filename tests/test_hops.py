"""How many files of the package a reader passes through on the way to the kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import whvi
from whvi._kernel.backend import kernel
from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear, noisy_block_linear
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling

ROOT = Path(whvi.__file__).parent
KERNEL_PART = {"_kernel/product.py", "_kernel/layout.py"}

pytestmark = pytest.mark.skipif(kernel is None, reason="leads to the compiled kernel")


def files_on_the_way(call: Callable[[], object]) -> set[str]:
    """Files of the package in which a function is entered before the first call of the kernel."""
    entered: set[str] = set()
    arrived = False

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal arrived
        if event == "c_call" and getattr(argument, "__self__", None) is kernel:
            arrived = True
        path = Path(frame.f_code.co_filename)
        if event == "call" and not arrived and path.is_relative_to(ROOT):
            entered.add(path.relative_to(ROOT).as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert arrived, "the kernel was not called"
    return entered


@pytest.mark.parametrize("sampler", [WeightDraws, LocalReparameterization, MeanWeights])
def test_a_layer_reaches_the_kernel_through_six_files(sampler: type) -> None:
    layer = whvi.WHVILinear(24, 40)
    for rows in range(1, 4):  # the first call with a shape plans it, another draw is kept
        x = torch.randn(rows, 24)
        for _ in range(2):
            with sampling(sampler()):
                files = files_on_the_way(lambda x=x: layer(x))
            assert {"layers/linear.py", "_kernel/product.py"} <= files
            assert len(files) <= 6, sorted(files)


def test_the_part_in_the_kernel_package_is_two_files_and_one_from_the_second_call_on() -> None:
    plan = BlockPlan.for_shape(24, 40)
    x, vector, bias = torch.randn(5, 24), torch.randn(plan.vector_size), torch.randn(40)
    calls: list[Callable[[], object]] = [
        lambda: block_linear(x, vector, vector, vector, bias, plan),
        lambda: noisy_block_linear(x, vector, (vector, vector), vector, bias, plan, 3),
    ]
    for call in calls:
        assert files_on_the_way(call) <= KERNEL_PART
        assert files_on_the_way(call) == {"_kernel/product.py"}
