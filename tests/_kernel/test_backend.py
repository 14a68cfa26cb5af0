"""Which kernel runs, and how it behaves among threads and after a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from whvi._kernel import backend as module
from whvi._kernel.backend import backend
from whvi._kernel.noise import normal_from_seed
from whvi.functional import structured_product
from whvi.transforms import fwht, fwht_


def run_python(code, *arguments, **environment):
    """Run code in a new interpreter; returns what it printed."""
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_the_kernel_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("WHVI_KERNEL", "0")
    assert module._load() == (None, "turned off by WHVI_KERNEL=0")


ONE_AFTER_THE_OTHER = """
import os, sys
os.environ["WHVI_ISA"] = "mmx"
from whvi._kernel import backend
print(backend.kernel is not None, backend.backend.reason)
os.environ["WHVI_ISA"] = sys.argv[1]
print(backend._load().kernel.instruction_set())
"""


def test_an_instruction_set_is_chosen_and_an_unknown_one_turns_it_off_and_says_why(kernel):
    last = kernel.instruction_sets()[-1]  # the others are faster and found without asking
    unknown, chosen = run_python(ONE_AFTER_THE_OTHER, last).splitlines()
    assert unknown.startswith("False")
    assert "WHVI_ISA=mmx" in unknown
    assert chosen == last


def test_an_unknown_instruction_set_is_refused(kernel):
    before = kernel.instruction_set()
    with pytest.raises(ValueError, match="no instruction set 'mmx'"):
        kernel.use("mmx")
    with pytest.raises(TypeError):
        kernel.use(3)
    assert kernel.instruction_set() == before


@pytest.mark.parametrize(
    "name", ["fwht", "normals", "words", "product_forward", "product_backward"]
)
def test_a_wrong_number_or_type_of_arguments_is_refused(kernel, name):
    with pytest.raises(TypeError, match=r"expected \d+ arguments( or more)?, got 1"):
        getattr(kernel, name)(4)
    with pytest.raises(TypeError):
        getattr(kernel, name)()


def test_the_kernel_finds_the_threads_of_torch(kernel):
    assert kernel.has_threads()


def test_what_the_kernel_takes(kernel):
    assert module.kernel_takes(torch.ones(2))
    assert module.kernel_takes(torch.nn.Parameter(torch.ones(2)))
    assert not module.kernel_takes(torch.ones(2, dtype=torch.float16))
    assert not module.kernel_takes(torch.ones(2, device="meta"))


# ---- threads ------------------------------------------------------------------------------------


def results(seed):
    """Bits of each kernel function on random operands."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 128, generator=generator, requires_grad=True)
    s1, g, s2 = (torch.randn(128, generator=generator, requires_grad=True) for _ in range(3))
    y = structured_product(x, s1, g, s2)
    gradients = torch.autograd.grad(y, (x, s1, g, s2), torch.ones_like(y))
    return [fwht(x).detach(), y.detach(), *gradients, normal_from_seed((40_000,), seed)]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def many_threads(calls, num_threads=8):
    expected = {seed: results(seed) for seed in range(num_threads)}
    failures = []

    def work(seed):
        failures.extend(call for call in range(calls) if not same(results(seed), expected[seed]))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(num_threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_several_python_threads_get_the_same_bits(set_threads):
    set_threads(2)
    many_threads(calls=5, num_threads=4)


@pytest.mark.nightly
def test_eight_python_threads_get_the_same_bits(set_threads):
    set_threads(2)
    many_threads(calls=1000)


def fork_and_use(rounds):
    """Use the kernel in a forked child; torch's own threaded operations would hang there."""
    x, s1, g, s2 = (torch.randn(n, 128) for n in (700, 1, 1, 1))

    def run():
        tensors = fwht(x), structured_product(x, s1, g, s2), normal_from_seed((90_000,), 1)
        return [t.numpy() for t in tensors]

    for _ in range(rounds):
        expected = run()  # the parent's threads have run
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a deadlock ends the child, not the test run
            equal = all(np.array_equal(a, b) for a, b in zip(run(), expected, strict=True))
            os._exit(0 if equal else 3)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_forked_child_works(kernel, set_threads):
    set_threads(2)
    fork_and_use(3)


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_many_forked_children_work(kernel, set_threads):
    set_threads(2)
    fork_and_use(50)


def test_other_python_threads_run_meanwhile(kernel, set_threads):
    set_threads(1)
    x = torch.randn(1 << 22, generator=torch.Generator().manual_seed(0))
    stop, ticks = threading.Event(), []

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.0005)

    ticker = threading.Thread(target=tick)
    ticker.start()
    during = 0
    for _ in range(20):  # each call takes some milliseconds
        begin = time.monotonic()
        fwht_(x)
        end = time.monotonic()
        during += sum(begin < t < end for t in ticks)
    stop.set()
    ticker.join()
    assert during > 0  # with the lock held there is none


# ---- memory -------------------------------------------------------------------------------------

PEAK = """
import resource, torch
from whvi.functional import structured_product
D = 1 << 20
generator = torch.Generator().manual_seed(0)
x, s1, g, s2 = (torch.randn(D, generator=generator, requires_grad=True) for _ in range(4))
structured_product(x[None], s1, g, s2).square().sum().backward()
assert all(t.grad.isfinite().all() for t in (x, s1, g, s2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.nightly
def test_a_row_of_a_million_needs_no_matrix():
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(run_python(PEAK)) * unit < 1 << 30  # the dense matrix would take 4 TiB


@pytest.mark.nightly
def test_many_long_rows_bound_their_partial_sums(kernel):
    code = PEAK.replace("x[None]", "x.expand(4, D)")
    assert int(run_python(code)) < 1 << 20  # KiB


def test_the_reason_is_a_sentence():
    assert backend.reason
    assert (backend.kernel is not None) == (backend.reason == "compiled kernel active")
