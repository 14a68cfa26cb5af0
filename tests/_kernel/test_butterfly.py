"""The butterfly of the kernel against dense matrices, and against its composition in torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jvp, vmap

from tests.transforms.reference import relative_error
from whvi._kernel.butterfly import butterfly, compose
from whvi.transforms import fwht

directions = pytest.mark.parametrize("transpose", [False, True])
# torch's own forward-mode formulas still use torch.jit
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def operands(levels, leading=(69,), own=(), dtype=torch.float64):
    generator = torch.Generator().manual_seed(levels)
    shapes = [(*own, *leading, 1 << levels), (*own, levels, (1 << levels) // 2)]
    return [
        torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes
    ]


def dense(angles):
    """``T`` as the product of its levels, entry by entry."""
    size = 1 << len(angles)
    T = torch.eye(size, dtype=angles.dtype)
    for level, thetas in enumerate(angles):
        matrix = torch.zeros(size, size, dtype=angles.dtype)
        lower = [i for i in range(size) if not i >> level & 1]
        for theta, i in zip(thetas.tolist(), lower, strict=True):
            j = i + (1 << level)
            matrix[i, i], matrix[j, j] = math.cos(theta), -math.cos(theta)
            matrix[i, j] = matrix[j, i] = math.sin(theta)
        T = matrix @ T
    return T


@pytest.mark.parametrize("levels", range(7))
def test_the_composition_is_the_dense_matrix(levels):
    x, angles = (t.detach() for t in operands(levels, (3,)))
    T = dense(angles)
    torch.testing.assert_close(T @ T.T, torch.eye(len(T), dtype=T.dtype))
    torch.testing.assert_close(compose(x, angles, False), x @ T.T)
    torch.testing.assert_close(compose(x, angles, True), x @ T)


@dtypes
@directions
@pytest.mark.parametrize("own", [(), (2,), (2, 3)])
@pytest.mark.parametrize("levels", [*range(9), 11, 13])
def test_the_kernel_makes_what_torch_makes(instruction_set, levels, own, transpose, dtype):
    leading = (69,) if levels < 8 else (3, 2)  # more than one chunk, and a last group of one row
    x, angles = operands(levels, leading, own, dtype)
    doubles = [t.detach().double().requires_grad_() for t in (x, angles)]
    y = butterfly(x, angles, transpose)
    rows = doubles[0].reshape(*own, -1, x.shape[-1])
    expected = compose(rows, doubles[1], transpose).reshape(x.shape)
    grad = torch.randn(y.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    found = (y, *torch.autograd.grad(y, (x, angles), grad, allow_unused=not levels))
    right = torch.autograd.grad(expected, doubles, grad.double(), allow_unused=not levels)
    for one, other in zip(found, (expected, *right), strict=True):
        assert (one is None) == (other is None)
        # a rounding or two for every level, in both
        assert one is None or not one.numel() or relative_error(one.detach(), other.detach()) <= 8
    with torch.no_grad():
        assert torch.equal(butterfly(x, angles, transpose), y)


@directions
@pytest.mark.parametrize("levels", range(12))
def test_angles_of_45_degrees_give_the_hadamard_transform(levels, transpose):
    x, angles = (t.detach() for t in operands(levels, (5,)))
    y = butterfly(x, torch.full_like(angles, math.pi / 4), transpose)
    torch.testing.assert_close(y, fwht(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("levels", [2, 5, 10])
def test_the_transpose_is_the_inverse(levels):
    x, angles = operands(levels)
    torch.testing.assert_close(butterfly(butterfly(x, angles), angles, True), x)


@directions
def test_gradients_of_gradients(transpose):
    x, angles = operands(4, (2,))
    assert gradcheck(lambda x, a: butterfly(x, a, transpose), (x, angles))
    assert gradgradcheck(lambda x, a: butterfly(x, a, transpose), (x, angles))


def test_torch_func():
    x, angles = (t.detach() for t in operands(4, (3,)))
    torch.testing.assert_close(vmap(butterfly, (0, None))(x, angles), butterfly(x, angles))
    _, tangent = jvp(lambda x: butterfly(x, angles), (x,), (x,))
    torch.testing.assert_close(tangent, butterfly(x, angles))


def test_no_rows_and_other_layouts():
    x, angles = (t.detach() for t in operands(5, (6,)))
    assert butterfly(x[:0], angles).shape == (0, 32)
    strided = torch.stack([x, x], -1)[..., 0]
    assert torch.equal(butterfly(strided, angles), butterfly(x, angles))
    assert torch.equal(butterfly(x[0], angles), butterfly(x, angles)[0])
    turned = angles.T.contiguous().T
    assert torch.equal(butterfly(x, turned), butterfly(x, angles))


@directions
def test_bits_do_not_depend_on_the_number_of_threads(set_threads, transpose):
    x, angles = operands(8, (301,), (2,), torch.float32)
    results = []
    for number in (1, 2, 3):
        set_threads(number)
        y = butterfly(x, angles, transpose)
        results.append((y, *torch.autograd.grad(y, (x, angles), torch.ones_like(y))))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_nothing_between_input_and_output_is_kept(kernel):
    x, angles = operands(6)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        butterfly(x, angles)
    assert sum(t.numel() for t in kept) == 2 * x.numel() + 3 * angles.numel()
