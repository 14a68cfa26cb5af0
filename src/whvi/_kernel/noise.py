"""Standard normal noise from a seed: counter-based in the compiled kernel, torch elsewhere.

A seed is one number taken from a ``torch.Generator``, so results are still determined by the state
of that generator. In the kernel, entry ``e`` of the noise is a pure function of (seed, ``e``)
(Philox4x32-10 and Box-Muller): the same for any number of threads, and it can be made again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whvi._kernel.backend import is_tracing, kernel


def normal_from_seed(
    shape: tuple[int, ...],
    seed: int | Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the first ``prod(shape)`` standard normals of stream ``seed``.

    On the CPU with the compiled kernel the stream is the kernel's, whatever ``dtype``; otherwise
    it is that of a ``torch.Generator`` with this seed. Under torch.compile a seed is a tensor.
    """
    device = torch.device(device)
    if isinstance(seed, Tensor):  # in a graph of torch.compile
        if device.type != "cpu":
            return torch.randn(shape, dtype=dtype, device=device)
        noise: Tensor = torch.ops.whvi.normal(seed, shape, dtype)
        return noise
    if kernel is None or device.type != "cpu" or is_tracing():
        # torch's CPU generator looks at the low 32 bits of a seed only: let the others count too
        generator = torch.Generator(device).manual_seed(seed ^ (seed >> 32))
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)
    native = torch.float64 if dtype == torch.float64 else torch.float32
    with torch._C._DisableFuncTorch():  # a tensor with memory of its own, under torch.func too
        out = fill_with_normals(torch.empty(shape, dtype=native, device="cpu"), seed)
        return out if native is dtype else out.to(dtype)


def fill_with_normals(out: Tensor, seed: int) -> Tensor:
    """Write stream ``seed`` over ``out``, contiguous and of a type of the kernel; return it."""
    assert kernel is not None  # the caller has asked kernel_takes
    element_bytes, threads = out.element_size(), torch.get_num_threads()
    kernel.normals(element_bytes, threads, seed, 0, out.numel(), out.data_ptr())
    return out
