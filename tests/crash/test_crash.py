"""C1–C4: killed, interrupted, repeated elsewhere, two at once; the outcome is bitwise the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.crash.job import run
from whvi._files import unseal
from whvi.training.checkpoint import open_store

HERE = Path(__file__).parent


def call(script: str, *arguments: object, cwd: Path | None = None, **environment: str):
    return subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        timeout=900,
        check=False,
    )


def assert_same_outcome(left: bytes, right: bytes) -> None:
    (tensors, history), (others, records) = unseal(left), unseal(right)
    assert history == records
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def check_report(folder: Path, count: int, seed: int) -> None:
    process = call("killer.py", folder, count, seed)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    reference = bytes.fromhex(report["reference"])
    assert len(report["trials"]) == count
    killed = sum(trial["ended"] == -signal.SIGKILL for trial in report["trials"])
    assert killed > count / 2  # a few may be done before their random moment comes
    for trial in report["trials"]:
        assert trial["resumed"] == 0, process.stderr
        if trial["inside"]:
            assert trial["ended"] == -signal.SIGKILL
        assert_same_outcome(bytes.fromhex(trial["outcome"]), reference)
    for name, code in (("SIGINT", 130), ("SIGTERM", 143)):
        trial = report["signals"][name]
        assert (trial["ended"], trial["resumed"]) == (code, 0)
        assert trial["took"] < 2
        assert_same_outcome(bytes.fromhex(trial["outcome"]), reference)


def test_killed_five_times_and_interrupted(tmp_path):
    check_report(tmp_path, 5, seed=0)


@pytest.mark.nightly
def test_killed_a_hundred_times(tmp_path):
    check_report(tmp_path, 100, seed=1)


def test_the_same_seed_in_two_processes_and_surroundings(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    threads = torch.get_num_threads()
    try:
        run(here)
    finally:
        torch.set_num_threads(threads)
    process = call("job.py", there, cwd=there, PYTHONHASHSEED="123", LC_ALL="C.UTF-8")
    assert process.returncode == 0, process.stderr
    assert_same_outcome(*((folder / "outcome").read_bytes() for folder in (here, there)))


def test_two_processes_on_one_folder(tmp_path):
    with open_store(tmp_path / "checkpoints"):
        process = call("job.py", tmp_path)
    assert process.returncode == 1
    assert f"in use by process {os.getpid()}" in process.stderr
    assert not (tmp_path / "outcome").exists()
