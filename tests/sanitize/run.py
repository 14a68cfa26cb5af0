"""Build the kernel strictly and instrumented, and run it: ``make sanitize``.

1. warnings: ``-Wall -Wextra -Wconversion -Werror``, with and without optimisation;
2. agreement: -O0 and -O3, every instruction set (AVX-512 emulated where the processor has none)
   give the same noise to the bit and the same numbers to 4 eps;
3. address and undefined-behaviour sanitizers: 100,000 random calls among guarded arrays;
4. valgrind, where it is installed: 1,000 calls.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = ["-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-g"]
STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
# frames that the sanitizer lays out lose the 64-byte alignment of emulated vectors
WIDE_STACK = ["--param", "asan-stack=0"]
AVX512_TARGET = '"avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"'
COMPILER = os.environ.get("CC", "gcc")


def compile_kernel(sources: Path, target: Path, *flags: str) -> None:
    include = sysconfig.get_paths()["include"]
    definition = "-DPy_LIMITED_API=0x030A0000"
    command = [COMPILER, *FLAGS, *flags, definition, f"-I{include}", "-shared", "-fPIC"]
    subprocess.run([*command, str(sources / "kernel.c"), "-o", str(target)], check=True)


def take_snapshot(folder: Path) -> Path:
    """Copy the sources, so that all builds are of one state of the tree."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "whvi", folder / "whvi", ignore=ignore)
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    return folder


def package_with(folder: Path, sources: Path, *flags: str) -> Path:
    """A copy of the package in ``folder`` with a kernel built from ``sources`` with ``flags``."""
    shutil.copytree(sources.parent / "whvi", folder / "whvi")
    compile_kernel(sources, folder / "whvi" / "_kernel" / "_compiled.abi3.so", *flags)
    return folder


def emulated_sources(snapshot: Path) -> Path:
    """The C sources with their AVX-512 section aimed at AVX2."""
    folder = snapshot / "emulated"
    if folder.exists():
        return folder
    shutil.copytree(snapshot / "csrc", folder)
    kernel = folder / "kernel.c"
    text = kernel.read_text()
    assert AVX512_TARGET in text, "the target of the AVX-512 section has changed: adapt run.py"
    kernel.write_text(text.replace(AVX512_TARGET, '"avx2,fma"'))
    return folder


EMULATION = ["-include", str(HERE / "emulate_avx512.h"), "-Wno-psabi"]


def drive(package: Path, *arguments: str, isa: str = "", **environment: str) -> None:
    settings = {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "2", "WHVI_ISA": isa}
    subprocess.run(
        [sys.executable, str(HERE / "driver.py"), *arguments],
        env={**os.environ, **settings, **environment},
        check=True,
    )


def check_warnings(snapshot: Path) -> None:
    for level in ("-O0", "-O3"):
        compile_kernel(snapshot / "csrc", snapshot / "strict.so", level, *STRICT)


def disagreement(left: np.ndarray, right: np.ndarray) -> float:
    """The largest norm-wise difference of rows, in eps."""
    rows = (-1, left.shape[-1])
    a, b = left.astype(np.float64).reshape(rows), right.astype(np.float64).reshape(rows)
    distance = np.linalg.norm(a - b, axis=1) / np.maximum(np.linalg.norm(a, axis=1), 1e-300)
    return float(distance.max()) / np.finfo(left.dtype).eps


def check_agreement(builds: dict[str, tuple[Path, str]], folder: Path) -> None:
    expected: dict[str, np.ndarray] = {}
    for name, (package, isa) in builds.items():
        file = folder / f"{name}.npz"
        drive(package, "results", str(file), isa=isa)
        found = dict(np.load(file))
        expected = expected or found
        assert found.keys() == expected.keys()
        assert np.array_equal(found["normals"], expected["normals"]), f"{name}: other noise"
        worst = max((disagreement(expected[key], found[key]), key) for key in expected)
        print(f"  {name}: {worst[0]:.2f} eps from {next(iter(builds))} ({worst[1]})")
        assert worst[0] <= 4, f"{name} differs by {worst[0]:.2f} eps in {worst[1]}"


def library(name: str) -> str:
    output = subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True)
    path = output.stdout.strip()
    return path if os.path.isabs(path) else ""


def check_sanitizers(builds: dict[str, tuple[Path, str]], num_calls: int) -> None:
    preload = library("libasan.so")
    if not preload:
        sys.exit(f"{COMPILER} has no address sanitizer library: install it to run this check")
    options = {
        "LD_PRELOAD": preload,
        # Python and torch keep memory to the end; red zones are made wide
        "ASAN_OPTIONS": "detect_leaks=0:redzone=256:halt_on_error=1:alloc_dealloc_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    share = -(-num_calls // len(builds))
    for seed, (package, isa) in enumerate(builds.values()):
        drive(package, "calls", str(share), str(seed), isa=isa, **options)


def check_valgrind(package: Path, num_calls: int, folder: Path) -> None:
    program = shutil.which("valgrind")
    if program is None:
        print("  valgrind is not installed: not run")
        return
    log = folder / "valgrind.log"
    command = [program, "--error-limit=no", "--leak-check=no", f"--log-file={log}"]
    settings = {"PYTHONPATH": str(package), "PYTHONMALLOC": "malloc", "WHVI_ISA": "baseline"}
    subprocess.run(
        [*command, sys.executable, str(HERE / "driver.py"), "calls", str(num_calls), "7"],
        env={**os.environ, **settings, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    reports = [block for block in log.read_text().split("== \n") if "_compiled.abi3.so" in block]
    reports = [block for block in reports if " at 0x" in block]  # not the list of loaded files
    assert not reports, "\n".join(reports)


def processor_has_avx512() -> bool:
    info = Path("/proc/cpuinfo")
    return info.exists() and "avx512dq" in info.read_text()


def make_builds(
    folder: Path, snapshot: Path, *flags: str, emulated: Sequence[str] = ()
) -> dict[str, tuple[Path, str]]:
    """Packages built with ``flags`` and the instruction set to run each with.

    ``emulated`` are further flags of the emulated one, where there is such.
    """
    native = package_with(folder / "native", snapshot / "csrc", *flags)
    if processor_has_avx512():
        return {isa: (native, isa) for isa in ("avx512", "avx2", "baseline")}
    flags = (*flags, *EMULATION, *emulated)
    emulation = package_with(folder / "emulated", emulated_sources(snapshot), *flags)
    return {
        "avx2": (native, "avx2"),
        "baseline": (native, "baseline"),
        "emulated avx512": (emulation, "avx512"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--valgrind-calls", type=int, default=1_000)
    parser.add_argument("--only", choices=["warnings", "agreement", "sanitizers", "valgrind"])
    options = parser.parse_args()

    def wanted(name: str) -> bool:
        chosen = options.only in (None, name)
        if chosen:
            print(name, flush=True)
        return chosen

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot = take_snapshot(folder / "snapshot")
        if wanted("warnings"):
            check_warnings(snapshot)
        if wanted("agreement"):
            builds = {}
            for level in ("-O3", "-O0"):
                for isa, build in make_builds(folder / level, snapshot, level).items():
                    builds[f"{level} {isa}"] = build
            check_agreement(builds, folder)
        if wanted("sanitizers"):
            builds = make_builds(folder / "asan", snapshot, "-O0", *SANITIZE, emulated=WIDE_STACK)
            check_sanitizers(builds, options.calls)
        if wanted("valgrind"):
            package = package_with(folder / "valgrind", snapshot / "csrc", "-O1")
            check_valgrind(package, options.valgrind_calls, folder)
    print("clean")


if __name__ == "__main__":
    main()
