from __future__ import annotations

import pytest
import torch

from whvi._kernel.jacobian import _compose, row_gradients
from whvi._kernel.layout import BlockPlan
from whvi._kernel.product import block_linear

SHAPES = [(8, 8), (3, 20), (20, 3), (13, 128), (128, 128), (2, 2), (257, 400)]


def operands(sizes, batch_shape, num, dtype):
    plan, generator = BlockPlan.for_shape(*sizes), torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*batch_shape, *shape, generator=generator, dtype=dtype)

    vectors = [draw(plan.vector_size) for _ in range(3)]
    return draw(num, plan.in_features), *vectors, draw(num, plan.out_features), plan


@pytest.mark.parametrize("num", [1, 37])
@pytest.mark.parametrize("batch_shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_the_kernel_makes_what_torch_makes(sizes, dtype, batch_shape, num):
    given = operands(sizes, batch_shape, num, dtype)
    for made, expected in zip(row_gradients(*given), _compose(*given), strict=True):
        assert made.shape == expected.shape
        error = (made - expected).abs().max()
        assert error <= 64 * torch.finfo(dtype).eps * expected.abs().max()


def test_their_sum_is_the_gradient():
    x, s1, g, s2, grad, plan = operands((5, 12), (2,), 9, torch.float64)
    leaves = [t.requires_grad_() for t in (x, s1, g, s2)]
    expected = torch.autograd.grad(block_linear(*leaves, None, plan), leaves, grad)
    made = row_gradients(*(t.detach() for t in leaves), grad, plan)
    torch.testing.assert_close(made.x, expected[0])
    for derivative, gradient in zip(made[1:], expected[1:], strict=True):
        torch.testing.assert_close(derivative.sum(-3).flatten(-2), gradient)


@pytest.mark.parametrize("name", ["avx512", "avx2", "baseline"])
def test_every_instruction_set(name, kernel):
    if name not in kernel.instruction_sets():
        pytest.skip(f"this processor has no {name}")
    kernel.use(name)
    given = operands((13, 64), (2,), 11, torch.float64)
    for made, expected in zip(row_gradients(*given), _compose(*given), strict=True):
        assert (made - expected).abs().max() <= 64 * 2.2e-16 * expected.abs().max()


def test_expanded_rows_are_taken():
    x, s1, g, s2, grad, plan = operands((4, 4), (3,), 5, torch.float64)
    shared = x[0].expand(3, 5, 4)
    made = row_gradients(shared, s1, g, s2, grad, plan)
    expected = _compose(shared, s1, g, s2, grad, plan)
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other)
