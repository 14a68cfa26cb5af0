"""Build the optional C kernel; everything else is in pyproject.toml.

The extension is optional: without a compiler the package installs and uses the plain torch path
(`python -m whvi.doctor` says so). It uses the CPython limited API and includes no torch header.
"""

import os
import sys

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
EXTRA_FLAGS = os.environ.get("WHVI_CFLAGS", "").split()
EXTRA_LINK_FLAGS = os.environ.get("WHVI_LDFLAGS", "").split()

kernel = Extension(
    "whvi._kernel._compiled",
    sources=["csrc/kernel.c"],
    depends=[
        f"csrc/{name}.h"
        for name in (
            "isa",
            "threads",
            "noise",
            "element",
            "vectors",
            "butterflies",
            "orders",
            "product",
            "tasks",
            "exponential",
            "gaussian",
            "column",
            "reflections",
            "hartley",
            "network",
        )
    ],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    extra_compile_args=[] if sys.platform == "win32" else FLAGS + EXTRA_FLAGS,
    extra_link_args=EXTRA_LINK_FLAGS,
    py_limited_api=True,
    optional=os.environ.get("WHVI_REQUIRE_KERNEL", "0") != "1",
)

setup(ext_modules=[] if os.environ.get("WHVI_BUILD_KERNEL", "1") == "0" else [kernel])
