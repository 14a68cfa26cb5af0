from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from tests.training.doubles import (
    assert_bitwise,
    gaussian,
    tiny_config,
    tiny_data,
    tiny_net,
    weights_of,
)
from whvi.errors import ConfigError
from whvi.training import fit
from whvi.training.checkpoint import CheckpointStore
from whvi.training.process import deferred_interrupts, limited_threads


@pytest.fixture(autouse=True)
def _usual_handlers():
    """A test run in the background of a shell ignores SIGINT; start from Python's defaults."""
    former = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def send_at(step, number):
    def send(record):
        if record.step == step:
            os.kill(os.getpid(), number)

    return send


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_finishes_the_step_writes_a_checkpoint_and_leaves(tmp_path, number, raised):
    def run(folder=None, callbacks=()):
        net, likelihood = tiny_net(), gaussian()
        history = fit(net, likelihood, tiny_data(), config=tiny_config(),
                      callbacks=callbacks, checkpoint=folder)  # fmt: skip
        return weights_of(net, likelihood), history

    expected, history = run()
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(raised) as caught:
        run(tmp_path, [send_at(15, number)])
    if number == signal.SIGTERM:
        assert caught.value.code == 143
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    _, metadata = CheckpointStore(tmp_path).load_latest()
    assert metadata["step"] == 16
    resumed, records = run(tmp_path)
    assert_bitwise(resumed, expected)
    assert records == history


def test_a_second_interrupt_is_not_waited_for():
    with deferred_interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred_interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received is None


def test_threads_are_limited_and_come_back_after_an_exception():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with limited_threads(2):
            assert torch.get_num_threads() == 2
            with limited_threads(8):  # never more than outside
                assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError), limited_threads(1):
            raise RuntimeError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ConfigError, match="num_threads"):
        limited_threads(0).__enter__()


def test_a_fit_changes_no_thread_settings(monkeypatch):
    def refuse(_):
        raise AssertionError("fit must leave the threads alone")

    monkeypatch.setattr(torch, "set_num_threads", refuse)
    monkeypatch.setattr(torch, "set_num_interop_threads", refuse)
    fit(tiny_net(), gaussian(), tiny_data(), config=tiny_config())


SCRIPT = """
import resource
import torch
from whvi.training.process import keep_freed_memory
if not keep_freed_memory():
    print(-1)
    raise SystemExit
def step():
    return len([torch.ones(1 << 20) for _ in range(16)])  # 64 MiB, all freed at once
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults() -> int:
    """Page faults of a process of its own that keeps freed memory; -1 if it cannot."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator only")
def test_kept_memory_needs_no_page_faults() -> None:
    resource = pytest.importorskip("resource")
    kept = page_faults()
    if kept < 0:
        pytest.skip("this C library has no mallopt")
    touched = 8 * (64 << 20) // resource.getpagesize()
    assert kept < touched / 8
