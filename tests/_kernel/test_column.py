"""Single outputs with weights from ``vec(W)``: the kernel against dense matrices."""

from __future__ import annotations

import pytest
import torch

from whvi._kernel.column import column_linear
from whvi.functional import dense_matrix

SHAPES = [  # batch_shape, draws, rows; then D and in_features
    ((), (), (), 16, 200),
    ((), (), (3,), 32, 1024),
    ((2,), (), (9,), 64, 3000),
    ((), (4,), (2, 3), 64, 4096),
    ((2, 3), (2,), (17,), 16, 31),
    ((), (5,), (), 128, 12345),  # weights for every row
]
shapes = pytest.mark.parametrize(("batch", "draws", "rows", "size", "inputs"), SHAPES)


def operands(batch, draws, rows, size, inputs, dtype=torch.float64):
    generator = torch.Generator().manual_seed(size + inputs)
    sizes = [
        (*batch, *draws, *rows, inputs),
        (*batch, size),
        (*batch, *draws, size),
        (*batch, size),
    ]
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in sizes]


def oracle(x, s1, g, s2):
    """``Σ_j x_j vec(W)_j`` with the dense matrix ``W``."""
    axes = (*s1.shape[:-1], *(1,) * (g.dim() - s1.dim()), s1.shape[-1])
    weights = dense_matrix(s1.reshape(axes), g, s2.reshape(axes)).flatten(-2)[..., : x.shape[-1]]
    missing = (1,) * (x.dim() - weights.dim())
    return (x * weights.reshape(*weights.shape[:-1], *missing, x.shape[-1])).sum(-1)


@shapes
@pytest.mark.parametrize("isa", ["avx512", "avx2", "baseline"])
def test_values_and_gradients_are_those_of_the_dense_matrix(
    kernel, isa, batch, draws, rows, size, inputs
):
    if isa not in kernel.instruction_sets():
        pytest.skip(f"the processor has no {isa}")
    before = kernel.instruction_set()
    kernel.use(isa)
    try:
        tensors = operands(batch, draws, rows, size, inputs)
        y, expected = column_linear(*tensors), oracle(*tensors)
        weight = torch.randn_like(expected)
        found = torch.autograd.grad(y, tensors, weight)
    finally:
        kernel.use(before)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected, tensors, weight))


@pytest.mark.parametrize("rows", [1, 7, 8, 20])
def test_float32_keeps_its_digits_over_many_inputs(kernel, rows):
    tensors = operands((), (), (rows,), 512, 250_000, torch.float32)
    exact = [t.detach().double().requires_grad_() for t in tensors]
    y, expected = column_linear(*tensors), oracle(*exact)
    # sums in parts lose a few units in the last place of what is summed, not of what cancels
    bound = 4 * torch.finfo(torch.float32).eps
    terms = exact[0].norm(dim=-1) * dense_matrix(*exact[1:]).norm()
    assert ((y - expected).abs() < bound * terms).all()
    found = torch.autograd.grad(y, tensors, torch.ones_like(y))
    wanted = torch.autograd.grad(expected, exact, torch.ones_like(expected))
    for gradient, reference in zip(found, wanted, strict=True):
        assert (gradient - reference).norm() < bound * reference.norm()


def test_bits_do_not_depend_on_the_number_of_threads(kernel, set_threads):
    tensors = operands((2,), (), (5,), 256, 60_000, torch.float32)

    def run(number):
        set_threads(number)
        y = column_linear(*tensors)
        return [y, *torch.autograd.grad(y, tensors, torch.ones_like(y))]

    expected = run(1)
    for number in (2, 3):
        assert all(torch.equal(a, b) for a, b in zip(run(number), expected, strict=True))


def test_second_derivatives_and_function_transforms(kernel):
    tensors = operands((), (), (2,), 16, 40)
    assert torch.autograd.gradcheck(column_linear, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(column_linear, tensors, fast_mode=True)
    x, *vectors = (t.detach() for t in tensors)
    rows = torch.func.vmap(lambda row: column_linear(row, *vectors))(x)
    torch.testing.assert_close(rows, oracle(x, *vectors))
    slope = torch.func.grad(lambda g: column_linear(x, vectors[0], g, vectors[2]).sum())(vectors[1])
    (expected,) = torch.autograd.grad(column_linear(*tensors).sum(), tensors[2])
    torch.testing.assert_close(slope, expected)


def test_without_the_kernel_the_values_are_the_same(monkeypatch):
    tensors = operands((2,), (3,), (4,), 32, 700)
    expected = column_linear(*tensors)
    monkeypatch.setattr("whvi._kernel.backend.kernel", None)
    torch.testing.assert_close(column_linear(*tensors), expected)


@pytest.mark.parametrize("shape", [(0, 300), (3, 0, 300)])
def test_no_rows(shape):
    vectors = [torch.randn(32, requires_grad=True) for _ in range(3)]
    y = column_linear(torch.empty(shape), *vectors)
    assert y.shape == shape[:-1]
    y.sum().backward()
    assert all((v.grad == 0).all() for v in vectors)
