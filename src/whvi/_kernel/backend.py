"""Which kernel runs: the compiled one, or none and why.

Environment variables, read once at import: ``WHVI_KERNEL=0`` turns the compiled kernel off,
``WHVI_ISA`` (``avx512``, ``avx2``, ``baseline``) chooses its instruction set.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as _has_transforms
from torch._C import _is_tracing as _is_jit_tracing
from torch._C import _len_torch_dispatch_stack as _num_dispatch_modes
from torch.autograd import forward_ad
from torch.compiler import is_compiling as _is_compiling

KERNEL_DTYPES = (torch.float32, torch.float64)
PLAIN_TYPES = (Tensor, torch.nn.Parameter)  # not fake, batched or otherwise wrapped tensors


class Backend(NamedTuple):
    """The compiled kernel, if it is active, and a sentence that says so or why not."""

    kernel: ModuleType | None
    reason: str


def _load() -> Backend:
    if os.environ.get("WHVI_KERNEL", "1") == "0":
        return Backend(None, "turned off by WHVI_KERNEL=0")
    try:
        import whvi._kernel._compiled as compiled
    except ModuleNotFoundError:
        return Backend(None, "not built: install a C compiler and install the package again")
    except ImportError as error:
        return Backend(None, f"not loadable: {error}")
    return Backend(compiled, "compiled kernel active")


backend = _load()
kernel = backend.kernel


def kernel_takes(x: Tensor) -> bool:
    """Tell whether the compiled kernel may read the memory of ``x``."""
    return kernel is not None and x.is_cpu and x.dtype in KERNEL_DTYPES and type(x) in PLAIN_TYPES


def is_tracing() -> bool:
    """Tell whether somebody writes down the operations: torch.compile, export, make_fx, jit.

    Such a record would miss what the kernel does to memory by itself.
    """
    return _is_compiling() or _num_dispatch_modes() > 0 or _is_jit_tracing()


def is_transformed() -> bool:
    """Tell whether torch.func or forward-mode differentiation is active: tensors are wrapped."""
    return _has_transforms() or forward_ad._current_level >= 0
