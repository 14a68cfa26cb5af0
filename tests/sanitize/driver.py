"""Random calls of the kernel between guarded memory, or its results on fixed operands.

Run by run.py in a process of its own, against a build of the kernel under test:

    python driver.py calls NUM SEED     # memory faults are for the sanitizer to see
    python driver.py results FILE       # what every build must agree on
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch

from whvi._checks import block_size_for
from whvi._kernel.backend import backend, kernel
from whvi._kernel.column import column_linear
from whvi._kernel.dense import local_linear
from whvi._kernel.kl import KLTerm, sum_of_kls
from whvi._kernel.network import Displacements, HiddenLayer, Network
from whvi._kernel.noise import normal_from_seed
from whvi.functional import noisy_structured_product, structured_product
from whvi.transforms import fwht, fwht_

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
    if rng.random() < 0.3:
        size = rng.choice([12, 20, 28]) << rng.randrange(8)
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


def call_kl(rng: random.Random) -> None:
    dtype, replicas, count = rng.choice(DTYPES), rng.randrange(4), rng.randrange(1, 200)
    arrays = [guarded(rng, (replicas, count), dtype) for _ in range(4)]
    sums = [guarded(rng, (replicas,), torch.float64) for _ in range(3)]
    for tensor, _ in [*arrays, *sums]:
        tensor.normal_()
    pointers = [tensor.data_ptr() for tensor, _ in arrays]
    variances, values, grads = [tensor.data_ptr() for tensor, _ in sums]
    sizes = (dtype.itemsize, replicas, count)
    kernel.diagonal_kl(*sizes, *pointers[:2], variances, values)
    kernel.diagonal_kl_backward(*sizes, *pointers[:2], variances, grads, *pointers[2:])
    assert (sums[0][0] > 0).all(), "a variance that was not positive is replaced"
    for tensor, check in [*arrays, *sums]:
        assert tensor.isfinite().all()
        check()


def call_dense(rng: random.Random) -> None:
    dtype, replicas, rows = rng.choice(DTYPES), rng.randrange(4), rng.randrange(150)
    inputs, outputs = rng.randrange(1, 70), rng.randrange(1, 6)
    x, loc, bias = (replicas, rows, inputs), (replicas, outputs, inputs), (replicas, outputs)
    y = (replicas, rows, outputs)
    # as in run_dense of kernel.c; the last four are gradients
    shapes = [x, loc, loc, bias, y, y, loc, y, x, loc, loc, bias]
    arrays = [guarded(rng, shape, dtype) for shape in shapes]
    for tensor, _ in arrays[:5]:
        tensor.normal_()
    has_bias, wants_x = rng.random() < 0.5, rng.random() < 0.5
    there = {3: has_bias, 8: wants_x, 11: has_bias}
    pointers = [t.data_ptr() if there.get(i, True) else 0 for i, (t, _) in enumerate(arrays)]
    sizes = (dtype.itemsize, torch.get_num_threads(), replicas, rows, inputs, outputs)
    kernel.dense_forward(*sizes, *pointers[:8])
    assert arrays[5][0].isfinite().all()
    kernel.dense_backward(*sizes, *pointers)
    for i, (tensor, check) in enumerate(arrays):
        assert pointers[i] == 0 or tensor.isfinite().all()
        check()


def call_column(rng: random.Random) -> None:
    dtype, replicas, rows = rng.choice(DTYPES), rng.randrange(1, 4), rng.randrange(1, 20)
    size = 1 << rng.randrange(4, 8)
    inputs = rng.randrange(1, size * size + 1)
    x, vector, y = (replicas, rows, inputs), (replicas, size), (replicas, rows)
    # as in run_column of kernel.c; the last four are gradients
    arrays = [guarded(rng, s, dtype) for s in [x, *[vector] * 3, y, x, *[vector] * 3]]
    for tensor, _ in arrays[:4]:
        tensor.normal_()
    arrays[6][0].zero_()
    pointers = [tensor.data_ptr() for tensor, _ in arrays]
    sizes = (dtype.itemsize, torch.get_num_threads(), replicas, rows, size, inputs)
    kernel.column_forward(*sizes, *pointers[:5])
    pointers[5] *= rng.random() < 0.5  # whether the gradient of x is wanted
    kernel.column_backward(*sizes, *pointers)
    for i, (tensor, check) in enumerate(arrays):
        assert pointers[i] == 0 or tensor.isfinite().all()
        check()


def call_butterfly(rng: random.Random) -> None:
    dtype, replicas, rows = rng.choice(DTYPES), rng.randrange(1, 4), rng.randrange(1, 80)
    levels, chunk_rows = rng.randrange(4, 9), rng.randrange(1, 80)
    row, angles = (replicas, rows, 1 << levels), (levels, 1 << (levels - 1))
    chunks = -(-rows // chunk_rows)
    # as in run_levels of kernel.c: cosines, sines, x, y, gradient of x, sums
    shapes = [*[(replicas, *angles)] * 2, *[row] * 3, (replicas, chunks, *angles)]
    arrays = [guarded(rng, shape, dtype) for shape in shapes]
    for tensor, _ in arrays[:3]:
        tensor.uniform_(-1, 1)
    pointers = [tensor.data_ptr() for tensor, _ in arrays]
    threads, reverse = torch.get_num_threads(), rng.randrange(2)
    sizes = (dtype.itemsize, threads, replicas, rows, levels, reverse, chunk_rows)
    kernel.butterfly_forward(*sizes, *pointers[:4])
    kernel.butterfly_backward(*sizes, *pointers)
    for tensor, check in arrays:
        assert tensor.isfinite().all()
        check()


def call_hartley(rng: random.Random) -> None:
    dtype, rows, size = rng.choice(DTYPES), rng.randrange(1, 40), 1 << rng.randrange(4, 10)
    # as in py_hartley of kernel.c: x, waves, turns, y
    arrays = [guarded(rng, s, dtype) for s in [(rows, size), *[(size // 2, 2)] * 2, (rows, size)]]
    for tensor, _ in arrays[:3]:
        tensor.uniform_(-1, 1)
    pointers = [tensor.data_ptr() for tensor, _ in arrays]
    pointers[2] *= rng.random() < 0.5  # whether it is a cosine transform
    up, threads = rng.randrange(2), torch.get_num_threads()
    kernel.hartley(dtype.itemsize, threads, rows, size, up, *pointers)
    for tensor, check in arrays:
        assert tensor.isfinite().all()
        check()


def call_network(rng: random.Random) -> None:
    dtype, members, draws = rng.choice(DTYPES), rng.randrange(1, 4), rng.randrange(1, 20)
    rows, outputs = rng.randrange(80), rng.randrange(1, 4)
    width = inputs = rng.randrange(2, 40)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype)  # memory of its own: its ends are guarded

    hidden = []
    for _ in range(rng.randrange(1, 4)):
        size, out = block_size_for(width), rng.randrange(1, 150)
        vector = (members, -(-out // size) * size)
        g = normal(members, draws, vector[1])
        s1, s2, bias = normal(*vector), normal(*vector), normal(members, out)
        hidden.append(HiddenLayer(width, rng.random() < 0.3, s1, g, s2, bias))
        width = out
    own = (members,) if rng.random() < 0.3 else ()
    x = normal(*own, rows, inputs)
    network = Network(hidden, normal(members, draws, outputs, width), normal(members, outputs))
    assert network.draws(x).isfinite().all()
    one = Network(
        [layer._replace(g=layer.g[:, :1].contiguous()) for layer in hidden],
        network.weight[:, :1].contiguous(),
        network.bias,
    )
    entries = sum(3 * layer.s1.shape[1] + layer.bias.shape[1] for layer in hidden)
    count = rng.randrange(1, 100)
    moves = Displacements.of(normal(members, count, entries + outputs * (width + 1)))
    kept, asked = rng.randrange(count + 1), rng.randrange(1, outputs + 1)
    for found in one.changes(x, moves, num_outputs=asked, num_kept=kept):
        assert found.isfinite().all()


def calls(num_calls: int, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    functions = [call_fwht] * 3 + [call_product] * 4 + [call_normals, call_words, call_kl]
    functions += [call_dense, call_column, call_butterfly, call_hartley, call_network]
    for index in range(num_calls):
        if index % 500 == 0:
            torch.set_num_threads(1 + index // 500 % 2)
        function = call_fwht_around_the_cache if index % 10_000 == 9_999 else rng.choice(functions)
        function(rng)
    print(f"{num_calls} calls, {kernel.instruction_set()}")


def small_jobs(loc: torch.Tensor, log_scale: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
    """The KL and a dense layer of ``loc, log_scale (2, D)`` on ``x (2, D)``, and gradients."""
    kl = sum_of_kls([KLTerm(loc.flatten(), log_scale.flatten(), 2.0)])
    y = local_linear(x, loc, log_scale, None, torch.ones(2, 2, dtype=x.dtype))
    named = {"kl": kl.reshape(1), "dense": y}
    for name, value in list(named.items()):
        both = torch.autograd.grad(value.sum(), (loc, log_scale))
        named.update(zip((f"{name} loc", f"{name} log_scale"), both, strict=True))
    return named


def results(file: str) -> None:
    """Values and gradients on fixed operands; every build writes the same names."""
    arrays = {"normals": normal_from_seed((10_001,), 3).numpy()}
    sizes = [1 << bits for bits in range(15)] + [12, 40, 112, 384, 640, 1792, 3072, 10240]
    for size in sizes:
        bits = size.bit_length() - 1
        for dtype in DTYPES:
            generator = torch.Generator().manual_seed(bits)
            shapes = [(3, 1, size), *[(2, size)] * 3]
            tensors = [
                torch.randn(s, dtype=dtype, generator=generator).requires_grad_() for s in shapes
            ]
            y = structured_product(*tensors)
            weight = torch.randn(y.shape, dtype=dtype, generator=generator)
            named = {"fwht": fwht(weight), "y": y}
            gradients = torch.autograd.grad(y, tensors, weight)
            named.update(zip(("x", "s1", "g", "s2"), gradients, strict=True))
            if size in (16, 32, 64):  # longer sums cancel
                named["column"] = column_linear(weight.transpose(0, 1), *tensors[1:])
            if bits <= 7:  # beyond, sums by 2 or 16 lanes differ by more than 4 eps
                named.update(small_jobs(tensors[1], tensors[2], weight[0]))
            for name, value in named.items():
                arrays[f"{name} {size} {dtype}"] = value.detach().numpy()
    np.savez(file, **arrays)


if __name__ == "__main__":
    if kernel is None:
        sys.exit(f"no kernel: {backend.reason}")
    if sys.argv[1] == "calls":
        calls(int(sys.argv[2]), int(sys.argv[3]))
    else:
        results(sys.argv[2])
