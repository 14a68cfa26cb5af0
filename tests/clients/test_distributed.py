"""Two processes with half a batch each find the gradients of one process with the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import whvi
from tests.clients.two_ranks import POSTERIORS, Objective, rows

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("two_ranks.py")
EXAMPLE = ROOT / "examples" / "train_distributed.py"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # see docs/distributed.md
}

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(SCRIPT), str(folder)],
            env={**ENVIRONMENT, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    return [torch.load(folder / f"rank-{rank}") for rank in range(2)]


def alone(posterior: str = "diagonal") -> tuple[Objective, dict[str, torch.Tensor]]:
    objective = Objective(posterior)
    objective(*rows()).backward()
    return objective, {name: p.grad for name, p in objective.named_parameters()}


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_ddp_with_the_likelihood(ranks: Ranks, where: str) -> None:
    _, expected = alone()
    for found in ranks:  # two sums of four rows instead of one of eight: the last bits
        torch.testing.assert_close(found[where], expected)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_fsdp_of_every_layer(ranks: Ranks, posterior: str) -> None:
    """Values and gradients of the KL of shards, and the step that follows."""
    objective, expected = alone(posterior)
    expected["kl"] = expected["sum of layers"] = whvi.kl(objective.net).detach()
    torch.optim.Adam(objective.net.parameters(), lr=0.1).step()
    expected["kl after a step"] = whvi.kl(objective.net).detach()
    for found in ranks:
        torch.testing.assert_close(found[f"sharded {posterior}"], expected)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_noise_differs_by_rank_and_gradients_do_not(ranks: Ranks, kind: str) -> None:
    one, other = (dict(found[f"noisy {kind}"]) for found in ranks)
    assert one.pop("own") != other.pop("own")
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch.testing.assert_close(one, {k: v for k, v in ranks[0]["noisy ddp"].items() if k != "own"})


def test_fit_refuses_shards(ranks: Ranks) -> None:
    assert "fit does not train sharded parameters (the first is" in ranks[0]["refusal"]


def launch(folder: Path, *options: str) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", "2", "--max-restarts", "1", str(EXAMPLE), "--quick"]
    result = subprocess.run(
        [*command, "--output", str(folder), *options],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["ddp", "fsdp"])
def test_a_restarted_run_ends_as_if_it_had_not_stopped(tmp_path: Path, method: str) -> None:
    whole = launch(tmp_path / "whole", "--method", method)
    again = launch(tmp_path / "again", "--method", method, "--fail-at", "33")
    assert "test MNLL" in whole
    assert again == whole
    assert len(list((tmp_path / "again").glob("step-*/.metadata"))) == 3


@pytest.mark.nightly
def test_fit_on_two_processes_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = launch(tmp_path, "--method", "fit")
    assert launch(tmp_path, "--method", "fit") == first
