from __future__ import annotations

import os
import signal

import pytest

from tests.training.doubles import (
    assert_bitwise,
    gaussian,
    tiny_config,
    tiny_data,
    tiny_net,
    weights_of,
)
from whvi.training import fit
from whvi.training.checkpoint import CheckpointStore
from whvi.training.signals import deferred_interrupts


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
