"""Tasks of the kernel on several threads: the same bits, and no stall on a busy host."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from whvi._kernel.noise import normal_from_seed
from whvi.functional import noisy_structured_product
from whvi.transforms import fwht

BUSY_LOOP = [sys.executable, "-c", "while True: pass"]


def results(rows, size):
    """Bits of the transform, a product with its gradients, and noise."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, size, generator=generator, requires_grad=True)
    vectors = [torch.randn(size, generator=generator, requires_grad=True) for _ in range(4)]
    seed = torch.Generator().manual_seed(1)
    y = noisy_structured_product(x, *vectors, generator=seed)
    gradients = torch.autograd.grad(y, (x, *vectors), torch.ones_like(y))
    return [fwht(x).detach(), y.detach(), *gradients, normal_from_seed((rows * size + 7,), 3)]


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 2**19), (3, 2**15), (257, 1024), (4001, 128), (1, 20 << 14), (257, 768)]
)
def test_bits_do_not_depend_on_the_number_of_threads(set_threads, rows, size):
    set_threads(1)
    expected = results(rows, size)
    for number in (2, 3, 7):
        set_threads(number)
        for found, wanted in zip(results(rows, size), expected, strict=True):
            assert torch.equal(found, wanted)


def mean_seconds(call, number=300):
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


@pytest.mark.nightly
def test_a_busy_host_does_not_stall_two_threads(kernel, set_threads):
    x = torch.randn(64, 1024)
    out = torch.empty_like(x)
    loops = [subprocess.Popen(BUSY_LOOP) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        ratios = []
        for _ in range(5):
            set_threads(1)
            alone = mean_seconds(lambda: fwht(x, out=out))
            set_threads(2)
            ratios.append(mean_seconds(lambda: fwht(x, out=out)) / alone)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert sorted(ratios)[2] < 5  # a barrier with a thread that has no processor: 10 to 100
