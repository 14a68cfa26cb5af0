"""Facts about the machine that explain a time; nothing that names the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from whvi._kernel.backend import backend

_CPU_FACTS = Path("/proc/cpuinfo")


def describe_machine(num_threads: int) -> dict[str, Any]:
    """Return processor, instruction set, versions, threads and how busy the machine was."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": backend.reason,
        "instruction set": backend.kernel.instruction_set() if backend.kernel else "none",
        "kernel threads": bool(backend.kernel and backend.kernel.has_threads()),
        "torch capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "threads": num_threads,
        "load average at start": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    if _CPU_FACTS.exists():
        for line in _CPU_FACTS.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
