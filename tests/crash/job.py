"""One small fit that leaves its outcome in a file, and ways to end it early.

Run as a script it is one process with one fit: ``python job.py FOLDER``. The killer imports it
and forks, which spares a hundred starts of the interpreter.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from tests.training.doubles import gaussian, tiny_config, tiny_data, tiny_net
from whvi._sealed import seal
from whvi.training import Checkpoints, fit


def run(folder: Path, *, num_steps: int = 90, pause: float = 0.0) -> None:
    """Fit, resuming from ``folder / "checkpoints"``, and write ``folder / "outcome"``."""
    torch.set_num_threads(1)
    net, likelihood = tiny_net(batch_shape=(2,)), gaussian(batch_shape=(2,))
    config = tiny_config(num_steps=num_steps, ema_decay=0.9, patience=100, max_grad_norm=1.0)
    history = fit(
        net,
        likelihood,
        tiny_data(),
        config=config,
        validation=tiny_data(seed=1),
        callbacks=[lambda _: time.sleep(pause)],
        checkpoint=Checkpoints(folder / "checkpoints", every_steps=3),
    )
    tensors = {f"net.{n}": t for n, t in net.state_dict().items()}
    tensors |= {f"likelihood.{n}": t for n, t in likelihood.state_dict().items()}
    (folder / "outcome").write_bytes(seal(tensors, history.as_dict()))


def die_inside_write(call: int, moment: str) -> None:
    """Kill this process in the ``call``-th write of a checkpoint.

    ``moment`` is ``"half"`` (half of the file written), ``"before"`` or ``"after"`` the rename.
    """
    calls = 0
    replace = os.replace

    def dying_replace(source, target):
        nonlocal calls
        calls += 1
        if calls == call and moment == "half":
            os.truncate(source, os.path.getsize(source) // 2)
        if calls == call and moment != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = dying_replace


if __name__ == "__main__":
    run(Path(sys.argv[1]))
