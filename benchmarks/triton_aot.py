"""Compile the Triton kernels for GPUs that are not there: ``python -m benchmarks.triton_aot``.

Says for every kernel, size and architecture how many registers a thread needs, how many bytes it
spills to local memory and how much shared memory a program takes, as ``ptxas`` reports them, and
writes ``results/triton_aot.json``. It says nothing about speed: that needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # read at import

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from whvi._kernel.triton import _TILES, _tile
from whvi._kernel.triton_kernels import product_backward_kernel, product_kernel, transform_kernel

RESULT = Path(__file__).parent / "results" / "triton_aot.json"
ARCHITECTURES = (80, 90)  # A100, H100
SIZES = (64, 1024, 4096)
TYPES = {"float32": "*fp32", "bfloat16": "*bf16", "float64": "*fp64"}
_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)
_RESOURCES = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def sources(size: int, name: str) -> Iterator[tuple[ASTSource, int]]:
    """Yield the kernels for rows of ``size`` entries, with their numbers of warps."""
    import torch

    pointer, constants = TYPES[name], _tile(size, getattr(torch, name))
    num_warps = constants.pop("num_warps")
    made = "*fp64" if name == "float64" else "*fp32"
    loops = {"sizes": ("i32",) * 4, "strides": (("i32",) * 4,) * 5}
    tensors = dict.fromkeys(("x", "s1", "g", "s2"), pointer)
    gradients = dict.fromkeys(("to_x", "to_s1", "to_g", "to_s2"), made)
    scale = {"SCALE": 1.0 / size}
    layer = {"SHARED": (False, True, True, True), "WANTS_X": True, "TILES": _TILES}
    cases: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (
            transform_kernel,
            {"source": pointer, "target": pointer, "num_vectors": "i32"},
            {"INNER": 1, "SCALE": size**-0.5},
        ),
        (product_kernel, {"y": pointer, **tensors, **loops}, scale),
        (
            product_backward_kernel,
            {"grad": pointer, **tensors, **gradients, **loops},
            scale | layer,
        ),
    ]
    for kernel, signature, own in cases:
        constexprs = {**own, **constants}
        signature = {**signature, **dict.fromkeys(constexprs, "constexpr")}
        yield ASTSource(fn=kernel, signature=signature, constexprs=constexprs), num_warps


def resources(ptx: str, architecture: int) -> dict[str, int]:
    """Let ``ptxas`` of the Triton wheel say what a kernel needs."""
    ptxas = get_ptxas(architecture).path
    target = _TARGET.search(ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        command = [ptxas, "-v", f"--gpu-name={target[1]}", str(source), "-o", os.devnull]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers, spills = _RESOURCES.search(report), _SPILLS.search(report)
    assert registers is not None
    assert spills is not None
    stores, loads = map(int, spills.groups())
    return {"registers": int(registers[1]), "spill_stores": stores, "spill_loads": loads}


def compiled(architecture: int, size: int, dtype: str) -> Iterator[dict[str, Any]]:
    target = GPUTarget("cuda", architecture, 32)
    for source, num_warps in sources(size, dtype):
        found = triton.compile(source, target=target, options={"num_warps": num_warps})
        yield {
            "kernel": source.fn.__name__,
            "architecture": f"sm_{architecture}",
            "size": size,
            "dtype": dtype,
            "num_warps": num_warps,
            **resources(found.asm["ptx"], architecture),
            "shared_bytes": found.metadata.shared,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="one architecture, size and type")
    options = parser.parse_args()
    grid = [(a, size, dtype) for a in ARCHITECTURES for size in SIZES for dtype in TYPES]
    rows = []
    for case in grid[:1] if options.quick else grid:
        for row in compiled(*case):
            print(*row.values(), sep="\t", flush=True)
            rows.append(row)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"triton": triton.__version__, "kernels": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
