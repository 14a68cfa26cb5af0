"""Freed memory is kept: counted in page faults of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource")

SCRIPT = """
import resource
import torch
from whvi.training.memory import keep_freed_memory
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
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator only")
def test_kept_memory_needs_no_page_faults() -> None:
    kept = page_faults()
    if kept < 0:
        pytest.skip("this C library has no mallopt")
    touched = 8 * (64 << 20) // resource.getpagesize()
    assert kept < touched / 8
