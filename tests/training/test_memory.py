"""Freed memory is kept: counted in page faults of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from whvi.training.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
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


def page_faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator only")
def test_kept_memory_needs_no_page_faults() -> None:
    kept = page_faults("keep")
    if kept < 0:
        pytest.skip("this C library has no mallopt")
    assert 4 * kept < page_faults("default")
