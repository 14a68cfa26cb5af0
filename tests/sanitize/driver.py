"""Random calls of the kernel between guarded memory, or its results on fixed operands.

Run by run.py in a process of its own, against a build of the kernel under test:

    python driver.py calls NUM SEED     # memory faults are for the sanitizer to see
    python driver.py results FILE       # what every build must agree on
"""

from __future__ import annotations

import random
import sys

import numpy as np
import torch

from whvi.noise import normal_from_seed
from whvi.product import noisy_structured_product, structured_product
from whvi.transforms import fwht, fwht_
from whvi.transforms.backend import backend, kernel

GUARD = 24  # entries before and after an array
MARK = -12345.5
DTYPES = (torch.float32, torch.float64)
LEADING = [  # of x, s1, g, s2, with letters for sizes
    ("N", "", "", ""),
    ("N1", "K", "K", "K"),
    ("SN", "", "S1", ""),
    ("N", "", "S1", ""),
    ("SN1", "K", "S1K", "K"),
    ("RSN1", "R11K", "RS1K", "R11K"),
    ("N1", "R11K", "RS1K", "R11K"),
    ("N", "", "N", ""),
    ("N1", "K", "NK", "K"),
    ("N", "N", "N", "N"),
    ("", "N", "K1", ""),
]


def guarded(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype):
    """An array between guards, at any offset from an aligned address, and a check of the guards."""
    size, before = int(np.prod(shape, dtype=int)), GUARD + rng.randrange(9)
    memory = torch.full((before + size + GUARD,), MARK, dtype=dtype)
    inner = memory[before : before + size].view(shape)

    def check() -> None:
        intact = (memory[:before] == MARK).all() and (memory[before + size :] == MARK).all()
        assert intact, f"wrote beside {shape} {dtype}"

    return inner, check


def some_rows(rng: random.Random) -> tuple[int, int]:
    size = 1 << rng.choice([*range(13), 3, 4, 5, 6, 7])
    limit = 1 << (17 if rng.random() < 0.002 else 10)  # the larger ones use threads
    return rng.randrange(1 + max(1, limit // size)), size


def call_fwht(rng: random.Random) -> None:
    rows, size = some_rows(rng)
    dtype = rng.choice(DTYPES)
    source, check_source = guarded(rng, (rows, size), dtype)
    source.normal_()
    out, check_out = guarded(rng, (rows, size), dtype)
    normalize = rng.random() < 0.5
    fwht(source, out=out, normalize=normalize)
    fwht_(source, normalize=normalize)
    assert torch.equal(source, out)
    check_source()
    check_out()


def call_fwht_around_the_cache(rng: random.Random) -> None:
    dtype, size = rng.choice(DTYPES), 1 << rng.randrange(2, 12)
    x = torch.ones((25 << 20) // (size * dtype.itemsize), size, dtype=dtype)
    assert (fwht(x)[:, 1:] == 0).all()


def call_product(rng: random.Random) -> None:
    rows, size = some_rows(rng)
    dtype = rng.choice(DTYPES)
    sizes = {"1": 1, "N": rows, "K": rng.randrange(1, 4), "R": 2, "S": rng.randrange(1, 4)}
    tensors = []
    for letters in rng.choice(LEADING):
        tensor, _ = guarded(rng, (*[sizes[letter] for letter in letters], size), dtype)
        tensors.append(tensor.normal_().clone().requires_grad_(rng.random() < 0.8))
    x, s1, g, s2 = tensors
    noisy = rng.random() < 0.5
    y = noisy_structured_product(x, s1, g, g, s2) if noisy else structured_product(x, s1, g, s2)
    assert y.isfinite().all()
    if y.requires_grad:
        y.sum().backward()  # a gradient without memory of its own
        assert all(t.grad.isfinite().all() for t in tensors if t.requires_grad)


def call_normals(rng: random.Random) -> None:
    dtype, count = rng.choice(DTYPES), rng.randrange(1 << rng.randrange(1, 12))
    out, check = guarded(rng, (count,), dtype)
    seed, first = rng.randrange(2**63), rng.randrange(1 << rng.randrange(1, 60))
    kernel.normals(dtype.itemsize, torch.get_num_threads(), seed, first, count, out.data_ptr())
    assert out.isfinite().all()
    check()


def call_words(rng: random.Random) -> None:
    groups = rng.randrange(8)
    memory = np.full(64 * groups + 2 * GUARD, 0xABCDEF, dtype=np.uint32)
    kernel.words(rng.randrange(2**63), rng.randrange(2**60), groups, memory[GUARD:].ctypes.data)
    assert (memory[:GUARD] == 0xABCDEF).all()
    assert (memory[GUARD + 64 * groups :] == 0xABCDEF).all()


def calls(num_calls: int, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    functions = [call_fwht] * 3 + [call_product] * 4 + [call_normals, call_words]
    for index in range(num_calls):
        if index % 500 == 0:
            torch.set_num_threads(1 + index // 500 % 2)
        function = call_fwht_around_the_cache if index % 10_000 == 9_999 else rng.choice(functions)
        function(rng)
    print(f"{num_calls} calls, {kernel.instruction_set()}")


def results(file: str) -> None:
    """Values and gradients on fixed operands; every build writes the same names."""
    arrays = {"normals": normal_from_seed((10_001,), 3).numpy()}
    for bits in range(15):
        for dtype in DTYPES:
            generator = torch.Generator().manual_seed(bits)
            shapes = [(3, 1, 1 << bits), *[(2, 1 << bits)] * 3]
            tensors = [
                torch.randn(s, dtype=dtype, generator=generator).requires_grad_() for s in shapes
            ]
            y = structured_product(*tensors)
            weight = torch.randn(y.shape, dtype=dtype, generator=generator)
            named = {"fwht": fwht(weight), "y": y}
            gradients = torch.autograd.grad(y, tensors, weight)
            named.update(zip(("x", "s1", "g", "s2"), gradients, strict=True))
            for name, value in named.items():
                arrays[f"{name} 2^{bits} {dtype}"] = value.detach().numpy()
    np.savez(file, **arrays)


if __name__ == "__main__":
    if kernel is None:
        sys.exit(f"no kernel: {backend.reason}")
    if sys.argv[1] == "calls":
        calls(int(sys.argv[2]), int(sys.argv[3]))
    else:
        results(sys.argv[2])
