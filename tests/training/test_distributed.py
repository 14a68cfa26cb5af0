from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.doubles import tiny_data
from tests.training.two_ranks import gradients, quiet_net, trained
from whvi._files import unseal
from whvi.errors import ConfigError
from whvi.training.distributed import Ranks, current_ranks

SCRIPT = Path(__file__).parent / "two_ranks.py"


def test_outside_of_distributed_training_there_is_one_rank():
    assert current_ranks() == Ranks(0, 1)


def test_shares_are_equal_and_disjoint():
    shares = [list(range(12))[Ranks(r, 3).share(12)] for r in range(3)]
    assert [row for share in shares for row in share] == list(range(12))
    assert {len(share) for share in shares} == {4}
    with pytest.raises(ConfigError, match="split equally"):
        Ranks(0, 5).share(12)


def check_outcome(folder: Path) -> None:
    results = {
        p.name: unseal(p.read_bytes()) for p in folder.iterdir() if p.name[-2:] in ("-0", "-1")
    }
    for name in ("gradients", "wrapped", "bare", "noisy"):
        first, second = results[f"{name}-0"], results[f"{name}-1"]
        assert first[1] == second[1]
        assert all(torch.equal(first[0][n], second[0][n]) for n in first[0]), name
    x, y = tiny_data(8, dtype=torch.float64)
    net = quiet_net()
    # Two sums of four rows instead of one of eight: float64, last bits.
    torch.testing.assert_close(results["gradients-0"][0], gradients(net, net, x, y))
    alone, history = trained(None, lambda net: net)
    for name in ("wrapped-0", "bare-0"):
        tensors, records = results[name]
        for parameter, value in alone.items():
            torch.testing.assert_close(tensors[parameter], value.detach(), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            torch.tensor(records["kl"]), torch.tensor(history["kl"]), rtol=1e-6, atol=0
        )
    assert results["resumed-0"][1] == results["noisy-0"][1]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def test_two_processes_train_like_one(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path)],
            env=ENVIRONMENT | {"RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    check_outcome(tmp_path)


@pytest.mark.nightly
def test_two_processes_started_by_torchrun(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*launcher, "--standalone", str(SCRIPT), str(tmp_path)]
    process = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    check_outcome(tmp_path)
