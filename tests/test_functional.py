"""The structured product against dense matrices: values, gradients, layouts, threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tests.transforms.reference import (
    dense_product,
    linear_map_in_g,
    paley,
    relative_error,
    split,
)
from whvi._kernel.backend import kernel
from whvi._kernel.noise import normal_from_seed
from whvi.errors import ShapeError
from whvi.functional import (
    column_features,
    dense_matrix,
    noisy_structured_product,
    structured_product,
)
from whvi.sampling import draw_seed
from whvi.transforms import hadamard_matrix

DTYPES = (torch.float32, torch.float64)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
# torch's own forward-mode formulas and inductor still use torch.jit
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

# leading shapes of x, s1, g, s2
LAYOUTS = {
    "one row": ((), (), (), ()),
    "rows": ((7,), (), (), ()),
    "K blocks": ((7, 1), (3,), (3,), (3,)),
    "S draws": ((5, 7), (), (5, 1), ()),
    "S draws of shared x": ((7,), (), (5, 1), ()),
    "S draws, K blocks": ((5, 7, 1), (3,), (5, 1, 3), (3,)),
    "S draws of shared x, K blocks": ((7, 1), (3,), (5, 1, 3), (3,)),
    "R replicas": ((4, 7), (4, 1), (4, 1), (4, 1)),
    "R replicas of shared x": ((7,), (4, 1), (4, 1), (4, 1)),
    "R, S, K": ((4, 5, 7, 1), (4, 1, 1, 3), (4, 5, 1, 3), (4, 1, 1, 3)),
    "R, S, K, shared x": ((7, 1), (4, 1, 1, 3), (4, 5, 1, 3), (4, 1, 1, 3)),
    "R, S, K, x per replica": ((4, 1, 7, 1), (4, 1, 1, 3), (4, 5, 1, 3), (4, 1, 1, 3)),
    "g per row": ((7,), (), (7,), ()),
    "g per row and block": ((7, 1), (3,), (7, 3), (3,)),
    "g per draw and row, x shared": ((7,), (), (5, 7), ()),
    "R, S, K, g per row": ((4, 5, 7, 1), (4, 1, 1, 3), (4, 5, 7, 3), (4, 1, 1, 3)),
    "all per row": ((7,), (7,), (7,), (7,)),
    "s1 per row": ((7,), (7,), (), ()),
    "s2 per row": ((7,), (), (), (7,)),
    "blocks before rows": ((7,), (3, 1), (3, 1), (3, 1)),
    "g alone has rows": ((), (), (7,), ()),
    "g alone has rows, K blocks": ((), (3,), (7, 3), (3,)),
    "blocks before draws and rows": ((5, 7), (3, 1, 1), (3, 5, 1), (3, 1, 1)),
    "s1 alone has rows": ((), (7,), (), ()),
    "scales of other axes": ((2, 1, 3, 1), (5, 1, 1), (3, 1), (2, 5, 1, 7)),
    "five axes, all different": ((2, 1, 3, 1, 2), (3, 1, 1, 2), (2, 3, 1, 5, 1), (1, 3, 1, 2)),
    "axes that merge": ((2, 3, 7), (), (), ()),
    "replicas that merge": ((2, 3, 7), (2, 3, 1), (2, 3, 1), (2, 3, 1)),
    "axes of one": ((1, 7, 1), (1,), (1, 1, 1), ()),
    "empty_rows": ((0,), (), (), ()),
    "empty_draws": ((7,), (), (0, 1), ()),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
# runs of less than a vector up to more than a register block, and rows beyond the cache
ORDERS = [12, 24, 40, 56, 96, 192, 320, 448, 768, 1280, 3072, 3584, 6144, 10240]


def operands(leading, size, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*shape, size, dtype=dtype, generator=generator).requires_grad_()
        for shape in leading
    ]


def with_gradients(function, tensors, weight):
    tensors = [t.detach().clone().requires_grad_() for t in tensors]
    y = function(*tensors)
    return [y.detach(), *torch.autograd.grad((y * weight.to(y.dtype)).sum(), tensors)]


def assert_agree(function, reference, tensors, limit):
    """Values and all gradients of ``function`` against ``reference`` in float64."""
    doubles = [t.detach().double() for t in tensors]
    shape = reference(*doubles).shape
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    expected = with_gradients(reference, doubles, weight)
    actual = with_gradients(function, tensors, weight.to(tensors[0].dtype))
    for name, a, e in zip(("y", "x", "s1", "g", "s2", "scale"), actual, expected, strict=False):
        assert a.shape == e.shape, name
        assert a.dtype == tensors[0].dtype, name
        if e.numel() and e.abs().max() > 0:
            assert relative_error(a, e) <= limit, name


# ---- values and gradients -----------------------------------------------------------------------

# float32 is judged in its own eps against float64; float64 against a float64 dense product, whose
# own error grows with the square root of D: hence eps times a few tens.
LIMIT = 64


@layouts
@dtypes
def test_equals_dense_matrices(layout, dtype):
    assert_agree(structured_product, dense_product, operands(LAYOUTS[layout], 16, dtype), LIMIT)


@dtypes
@pytest.mark.parametrize("size", [1 << bits for bits in range(13)] + ORDERS)
@pytest.mark.parametrize("layout", ["rows", "K blocks", "g per row and block"])
def test_every_size(layout, size, dtype):
    tensors = operands(LAYOUTS[layout], size, dtype, seed=size)
    reference = dense_product if size <= 512 else _composed
    assert_agree(structured_product, reference, tensors, LIMIT)


def _composed(x, s1, g, s2):
    """The product by eager float64 operations only; ``H`` by two-by-two steps."""
    return s1 * _steps(g * _steps(s2 * x))


def _steps(x):
    size, (order, power) = x.shape[-1], split(x.shape[-1])
    y, half = x, power // 2
    if order > 1:
        y = (torch.from_numpy(paley(order)).to(x) @ x.unflatten(-1, (order, power))).flatten(-2)
    while half:
        pairs = y.unflatten(-1, (-1, 2, half))
        upper, lower = pairs.unbind(-2)
        y = torch.stack([upper + lower, upper - lower], -2).flatten(-3)
        half //= 2
    return y / size**0.5


@dtypes
@pytest.mark.parametrize(
    "size", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 8192, 16384, *ORDERS]
)
def test_every_instruction_set(instruction_set, size, dtype):
    tensors = operands(((3, 1), (2,), (2,), (2,)), size, dtype, seed=size)
    assert_agree(structured_product, dense_product if size < 512 else _composed, tensors, LIMIT)


leading_shapes = st.lists(st.sampled_from([1, 1, 2, 3]), min_size=0, max_size=5)


@given(
    st.tuples(*[leading_shapes] * 4),
    st.lists(st.sampled_from([2, 3]), min_size=5, max_size=5),
    st.integers(0, 5),
    st.sampled_from(DTYPES),
)
def test_any_broadcast(shapes, extents, bits, dtype):
    # an axis has size one or that of `extents`, counted from the right, so that all broadcast
    leading = [
        tuple(1 if size == 1 else extents[i - len(shape)] for i, size in enumerate(shape))
        for shape in shapes
    ]
    tensors = operands(leading, 1 << bits, dtype, seed=bits)
    assert_agree(structured_product, dense_product, tensors, LIMIT)


def test_memory_of_any_layout():
    x, s1, g, s2 = (t.detach() for t in operands(((6,), (), (6,), ()), 16))
    expected = structured_product(x, s1, g, s2)
    odd = [
        x.T.contiguous().T,
        torch.stack([s1, s1], -1)[..., 0],
        torch.cat([g, g], -1)[:, :16],
        s2.flip(-1).flip(-1),
    ]
    assert torch.equal(structured_product(*odd), expected)
    weight = torch.randn(6, 16, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    spread = torch.stack([weight, weight], -1)[..., 0]  # a gradient that is not contiguous
    tensors = [t.clone().requires_grad_() for t in (x, s1, g, s2)]
    plain = torch.autograd.grad(structured_product(*tensors), tensors, weight)
    strided = torch.autograd.grad(structured_product(*tensors), tensors, spread)
    assert all(torch.equal(a, b) for a, b in zip(plain, strided, strict=True))


def _spread(t):
    return torch.stack([t, -t], -1)[..., 0]


def _transposed(t):
    return t.clone() if t.dim() < 2 else t.mT.contiguous().mT


@pytest.mark.parametrize("move", [_spread, _transposed])
@pytest.mark.parametrize("layout", ["rows", "K blocks", "S draws of shared x"])
def test_gradients_of_operands_that_are_not_contiguous(layout, move):
    tensors = operands(LAYOUTS[layout], 8)
    spread = [move(t.detach()).requires_grad_() for t in tensors]
    y = structured_product(*tensors)
    weight = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0))
    plain = torch.autograd.grad(y, tensors, weight)
    strided = torch.autograd.grad(structured_product(*spread), spread, weight)
    # without the kernel, torch multiplies strided matrices in another order
    tolerance = 0 if kernel is not None else 8 * torch.finfo(y.dtype).eps
    for a, b in zip(plain, strided, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_saved_tensors_pass_through_hooks(generator):
    """Whoever moves saved tensors away (activation checkpoints) gets all of them, noise too."""
    state = generator.get_state()
    x, s1, mean, s2 = operands(LAYOUTS["rows"], 8)
    tensors = [x, s1, mean, s2, mean.detach().abs().requires_grad_()]
    expected = torch.autograd.grad(noisy(state)(*tensors).sum(), tensors)
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = noisy(state)(*tensors)
    if kernel is not None:
        assert packed.count(x.shape) == 2  # x itself and the noise
    found = torch.autograd.grad(y.sum(), tensors)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_second_backward_needs_the_graph_kept():
    tensors = operands(LAYOUTS["rows"], 8)
    y = structured_product(*tensors).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.skipif(kernel is None, reason="the kernel is off")
def test_wrong_arguments_of_the_kernel_are_refused():
    x = torch.ones(2, 8)
    for arguments in ((), (4, 1, 0, 0), (4, 1, 0, 0, x, None, *[x] * 7)):
        with pytest.raises(TypeError, match="expected"):
            kernel.product_forward(*arguments)
    with pytest.raises(AttributeError, match="contiguous"):
        kernel.product_forward(4, 1, 0, 0, 5, None, x, x, x, x)
    with pytest.raises(TypeError, match="expected a list"):
        kernel.product_backward(4, 1, 0, 0, x, None, (x,), x, x, x, x)
    with pytest.raises(ValueError, match="must be contiguous"):
        kernel.product_backward(4, 1, 0, 0, x, None, [x.T], x, x, x, x)


def test_an_expanded_gradient():
    tensors = operands(LAYOUTS["K blocks"], 8)
    structured_product(*tensors).sum().backward()  # a gradient of ones with stride 0
    expected = with_gradients(dense_product, tensors, torch.ones(7, 3, 8, dtype=torch.float64))
    for t, e in zip(tensors, expected[1:], strict=True):
        torch.testing.assert_close(t.grad, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (1, 2), (0, 3), (1, 2, 3)], ids=str)
def test_only_the_gradients_asked_for(wanted):
    tensors = [t.detach() for t in operands(LAYOUTS["R, S, K"], 8)]
    for i in wanted:
        tensors[i].requires_grad_()
    structured_product(*tensors).square().sum().backward()
    full = [t.detach().clone().requires_grad_() for t in tensors]
    structured_product(*full).square().sum().backward()
    for i, t in enumerate(tensors):
        assert (t.grad is not None) == (i in wanted)
        if i in wanted:
            assert torch.equal(t.grad, full[i].grad)


def test_operands_are_not_changed():
    tensors = operands(LAYOUTS["R, S, K"], 8)
    before = [t.detach().clone() for t in tensors]
    structured_product(*tensors).sum().backward()
    noisy_structured_product(*tensors[:3], tensors[2].detach().abs(), tensors[3]).sum().backward()
    assert all(torch.equal(t, b) for t, b in zip(tensors, before, strict=True))


def test_an_operand_changed_before_backward_is_noticed():
    x, s1, g, s2 = operands(LAYOUTS["rows"], 8)
    g = g.detach()
    y = structured_product(x, s1, g, s2)
    g.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_mixed_data_types_follow_torch():
    x, s1, g, s2 = operands(LAYOUTS["rows"], 8)
    y = structured_product(x.float(), s1, g, s2)
    assert y.dtype == torch.float64
    torch.testing.assert_close(y, dense_product(x.float().double(), s1, g, s2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype):
    tensors = [t.detach().to(dtype) for t in operands(LAYOUTS["rows"], 16)]
    y = structured_product(*tensors)
    assert y.dtype == dtype
    assert relative_error(y, dense_product(*[t.double() for t in tensors])) <= 4


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 8), (4,), (8,), (8,)), "same last dimension"),
        (((4, 6), (6,), (6,), (6,)), "12, 20 or 28, got size"),
        (((4, 0), (0,), (0,), (0,)), "12, 20 or 28, got size"),
        (((4, 8), (3, 8), (8,), (8,)), "do not broadcast"),
        (((), (8,), (8,), (8,)), "same last dimension"),
        (((), (), (), ()), "12, 20 or 28, got size"),
    ],
)
def test_operands_that_do_not_fit_are_refused(shapes, message):
    x, s1, g, s2 = (torch.ones(shape) for shape in shapes)
    with pytest.raises(ShapeError, match=message):
        structured_product(x, s1, g, s2)
    with pytest.raises(ShapeError, match=message):
        noisy_structured_product(x, s1, g, g, s2)


# ---- autograd, torch.func, graphs ---------------------------------------------------------------

COMPOSED = [name for name in LAYOUTS if not name.startswith("empty")][:12]
composed = pytest.mark.parametrize("layout", COMPOSED)
# The product is linear in each operand: a long step has no truncation error.
STEP = {
    torch.float32: {"eps": 0.25, "atol": 2e-4, "rtol": 2e-4},
    torch.float64: {"eps": 0.25, "atol": 1e-10, "rtol": 1e-10},
}


def small(layout):
    """The layout with at most two entries along every axis."""
    return [tuple(min(n, 2) for n in shape) for shape in LAYOUTS[layout]]


@pytest.mark.filterwarnings(r"ignore:Input #\d requires gradient:UserWarning")
@dtypes
@composed
def test_gradcheck(layout, dtype):
    tensors = operands(small(layout), 4, dtype)
    assert gradcheck(structured_product, tensors, **STEP[dtype])
    if dtype == torch.float64:
        assert gradgradcheck(structured_product, tensors, **STEP[dtype])
        assert gradcheck(
            structured_product,
            tensors,
            check_forward_ad=True,
            check_backward_ad=False,
            **STEP[dtype],
        )


@dtypes
@composed
def test_double_backward_equals_dense(layout, dtype):
    def twice(product):
        def run(*tensors):
            first = torch.autograd.grad(product(*tensors).pow(2).sum(), tensors, create_graph=True)
            return sum((f.square().mean() for f in first), torch.zeros((), dtype=dtype))

        return run

    tensors = operands(small(layout), 8, dtype)
    actual = torch.autograd.grad(twice(structured_product)(*tensors), tensors)
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(twice(dense_product)(*doubles), doubles)
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) <= 4 * LIMIT


@dtypes
@composed
def test_func_transforms(layout, dtype):
    tensors = [t.detach() for t in operands(LAYOUTS[layout], 8, dtype)]
    tangents = [t.detach() for t in operands(LAYOUTS[layout], 8, dtype, seed=1)]
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    for function in (
        lambda f: jvp(f, tuple(tensors), tuple(tangents)),
        lambda f: grad(lambda *t: f(*t).square().sum(), (0, 1, 2, 3))(*tensors),
        lambda f: vmap(f)(*[torch.stack([t, 2 * t]) for t in tensors]),
        lambda f: vmap(grad(lambda g: f(tensors[0], tensors[1], g, tensors[3]).square().sum()))(
            torch.stack([tensors[2], tangents[2]])
        ),
    ):
        torch.testing.assert_close(
            function(structured_product), function(dense_product), **tolerance
        )


@dtypes
def test_jacobian_and_hessian(dtype):
    x, s1, g, s2 = (t.detach() for t in operands(LAYOUTS["rows"], 8, dtype))
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    for product in (structured_product, dense_product):
        jacobian = jacrev(product, 2)(x, s1, g, s2)
        torch.testing.assert_close(jacobian, linear_map_in_g(x, s1, s2), **tolerance)
    curvature = [
        hessian(lambda t, f=f: f(x, s1, t, s2).square().sum())(g)
        for f in (structured_product, dense_product)
    ]
    torch.testing.assert_close(*curvature, **tolerance)


@composed
def test_compiled_without_a_break(layout):
    torch._dynamo.reset()
    compiled = torch.compile(structured_product, fullgraph=True, backend="aot_eager")
    tensors = operands(LAYOUTS[layout], 8)
    y = compiled(*tensors)
    weight = torch.randn_like(y)
    expected = with_gradients(structured_product, tensors, weight)
    torch.testing.assert_close(y, expected[0])
    torch.testing.assert_close(torch.autograd.grad(y, tensors, weight), tuple(expected[1:]))


def test_compiled_by_inductor():
    torch._dynamo.reset()
    tensors = operands(LAYOUTS["R, S, K"], 16, torch.float32)
    compiled = torch.compile(structured_product, fullgraph=True)
    torch.testing.assert_close(
        compiled(*tensors), structured_product(*tensors), rtol=1e-5, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_exported():
    class Product(torch.nn.Module):
        def forward(self, x, s1, g, s2):
            return structured_product(x, s1, g, s2)

    tensors = tuple(t.detach() for t in operands(LAYOUTS["S draws, K blocks"], 8))
    program = torch.export.export(Product(), tensors)
    torch.testing.assert_close(program.module()(*tensors), structured_product(*tensors))


def test_traced_by_make_fx():
    tensors = [t.detach() for t in operands(LAYOUTS["rows"], 8)]
    others = [t.detach() for t in operands(LAYOUTS["rows"], 8, seed=1)]
    graph = make_fx(lambda *given: structured_product(*given))(*tensors)
    torch.testing.assert_close(graph(*others), dense_product(*others))


# ---- noise --------------------------------------------------------------------------------------


def noisy_by_hand(seed, dtype, product=dense_product):
    """The noisy product from the stream of noise of a data type, dense and in float64."""

    def run(x, s1, mean, s2, scale):
        leading = torch.broadcast_shapes(*[t.shape for t in (x, s1, mean, s2)])
        noise = normal_from_seed(leading, seed, dtype=dtype).double()
        return product(x, s1, mean + scale * noise, s2)

    return run


def noisy(seed_generator_state):
    def run(x, s1, mean, s2, scale):
        generator = torch.Generator()
        generator.set_state(seed_generator_state)
        return noisy_structured_product(x, s1, mean, scale, s2, generator=generator)

    return run


# Where one g serves all rows of a problem and rows come after replicas and draws, entry e of the
# result takes entry e of the stream.
IN_ORDER = ["one row", "rows", "K blocks", "S draws", "S draws, K blocks", "R replicas", "R, S, K"]


@dtypes
@pytest.mark.parametrize("layout", IN_ORDER)
@pytest.mark.parametrize("size", [1, 2, 16, 256])
def test_noisy_product_takes_its_noise_from_the_stream(layout, size, dtype, generator):
    state = generator.get_state()
    seed = draw_seed(generator)
    x, s1, mean, s2 = operands(LAYOUTS[layout], size, dtype)
    scale = torch.rand(mean.shape, dtype=dtype, generator=generator)
    assert_agree(noisy(state), noisy_by_hand(seed, x.dtype), [x, s1, mean, s2, scale], LIMIT)


@layouts
@dtypes
def test_noisy_product_draws_one_g_for_every_row(layout, dtype, generator):
    """Recover the noise from the result, whatever the layout: all different, all normal."""
    shapes = LAYOUTS[layout]
    leading = torch.broadcast_shapes(*shapes)
    size = 16
    x, s1, mean, s2 = (torch.zeros(*shape, size, dtype=dtype) for shape in shapes)
    x[..., 0] = size**0.5  # H(s2 * x) = 1: then y = s1 * H(mean + scale * eps)
    y = noisy_structured_product(x, s1 + 1, mean, mean + 1, s2 + 1, generator=generator)
    assert y.shape == (*leading, size)
    noise = y.double() @ hadamard_matrix(size, dtype=torch.float64)
    if noise.numel():
        rows = noise.reshape(-1, size).round(decimals=3)
        assert len(rows.unique(dim=0)) == len(rows)
        standard_error = 1 / math.sqrt(noise.numel())
        assert abs(noise.mean()) < 5 * standard_error
        assert abs(noise.square().mean() - 1) < 5 * math.sqrt(2) * standard_error


@layouts
def test_noisy_gradients_by_linearity(layout, generator):
    """y is linear in (mean, scale): y = mean * dy/dmean + scale * dy/dscale, for fixed noise."""
    state = generator.get_state()
    x, s1, mean, s2 = operands(LAYOUTS[layout], 8)
    scale = torch.rand(mean.shape, dtype=mean.dtype, generator=generator).requires_grad_()
    tensors = [x, s1, mean, s2, scale]
    y = noisy(state)(*tensors)
    weight = torch.randn(y.shape, dtype=y.dtype, generator=generator)
    gradients = torch.autograd.grad(y, tensors, weight)
    assert [g.shape for g in gradients] == [t.shape for t in tensors]
    total = (y * weight).sum()
    inner = [(g * t).sum() for g, t in zip(gradients, tensors, strict=True)]
    for value in (*(inner[i] for i in (0, 1, 3)), inner[2] + inner[4]):
        torch.testing.assert_close(value, total, rtol=1e-11, atol=1e-11)
    # and against differences: each gradient on its own
    for i, t in enumerate(tensors):
        if t.numel() == 0:
            continue
        step = torch.randn(t.shape, dtype=t.dtype, generator=generator)
        moved = [u + step if i == k else u for k, u in enumerate(tensors)]
        change = ((noisy(state)(*moved) - y) * weight).sum()
        torch.testing.assert_close((gradients[i] * step).sum(), change, rtol=1e-9, atol=1e-9)


def test_noisy_product_with_more_noise_than_is_kept(generator):
    state = generator.get_state()
    seed = draw_seed(generator)
    size, rows = 64, (1 << 16) + 3  # just above 2^22 numbers: made again for the backward pass
    x, s1, mean, s2 = operands(((rows,), (), (), ()), size)
    scale = torch.rand(size, dtype=torch.float64, generator=generator)
    assert_agree(noisy(state), noisy_by_hand(seed, x.dtype), [x, s1, mean, s2, scale], LIMIT)


def test_noisy_double_backward(generator):
    state = generator.get_state()
    x, s1, mean, s2 = operands(LAYOUTS["K blocks"], 4)
    scale = torch.rand(mean.shape, dtype=mean.dtype, generator=generator).requires_grad_()
    tensors = [x, s1, mean, s2, scale]
    assert gradcheck(noisy(state), tensors)
    assert gradgradcheck(noisy(state), tensors)


def test_noisy_product_is_decided_by_its_generator():
    x, s1, mean, s2 = (t.detach() for t in operands(LAYOUTS["K blocks"], 8))
    scale = torch.ones_like(mean)
    first, again, other = (
        noisy_structured_product(
            x, s1, mean, scale, s2, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(3)  # None is torch's default generator
    default = noisy_structured_product(x, s1, mean, scale, s2)
    torch.manual_seed(3)
    assert torch.equal(default, noisy_structured_product(x, s1, mean, scale, s2))
    assert not torch.equal(default, noisy_structured_product(x, s1, mean, scale, s2))


def test_noisy_product_without_scale_is_the_product():
    x, s1, mean, s2 = operands(LAYOUTS["R, S, K"], 16)
    y = noisy_structured_product(x, s1, mean, torch.zeros_like(mean), s2)
    torch.testing.assert_close(y, structured_product(x, s1, mean, s2), rtol=1e-13, atol=1e-13)


def test_mean_and_scale_of_two_shapes_are_refused():
    one = torch.ones(8)
    with pytest.raises(ShapeError, match="mean and scale need one shape"):
        noisy_structured_product(torch.ones(4, 8), one, torch.ones(3, 1, 8), one, one)


def test_noisy_under_func_grad(generator):
    x, s1, mean, s2 = (t.detach() for t in operands(LAYOUTS["rows"], 8))
    scale = torch.ones_like(mean)

    def loss(m):
        return noisy_structured_product(x, s1, m, scale, s2, generator=generator).sum()

    gradient = grad(loss)(mean)  # linear in the mean: no noise in this gradient
    expected = grad(lambda m: dense_product(x, s1, m, s2).sum())(mean)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
@dtypes
def test_noisy_compiled(dtype):
    torch._dynamo.reset()
    x, s1, mean, s2 = (t.detach() for t in operands(LAYOUTS["rows"], 8, dtype))
    compiled = torch.compile(noisy_structured_product, backend="aot_eager")
    y = compiled(x, s1, mean, torch.zeros_like(mean), s2)
    torch.testing.assert_close(y, structured_product(x, s1, mean, s2), rtol=1e-5, atol=1e-5)
    draws = [compiled(x, s1, mean, torch.ones_like(mean), s2) for _ in range(2)]
    assert not torch.equal(*draws)


# ---- sums over many rows, threads ---------------------------------------------------------------


def test_sums_over_many_rows_keep_their_digits():
    rows, size = 65_536, 32
    leading = ((rows,), (), (), ())
    # values around one, not zero: a running float32 sum of 65,536 of them loses three digits more
    x, s1, g, s2 = (t.detach().abs() + 1 for t in operands(leading, size, torch.float32))
    weight = torch.ones(rows, size)
    actual = with_gradients(structured_product, [x, s1, g, s2], weight)
    expected = with_gradients(_composed, [t.double() for t in (x, s1, g, s2)], weight)
    for name, a, e in zip(("y", "x", "s1", "g", "s2"), actual, expected, strict=True):
        assert ((a - e).norm() / e.norm()) < 1e-6, name


def test_sums_over_rows_longer_than_their_memory_allows():
    # so many rows that chunks are made longer to bound the memory of partial sums
    tensors = operands(((5000,), (), (), ()), 1024, torch.float32)
    assert_agree(structured_product, _composed, tensors, LIMIT)


@dtypes
@pytest.mark.parametrize(
    ("leading", "size"),
    [
        (((3001,), (), (), ()), 64),
        (((501, 1), (3,), (3,), (3,)), 64),
        (((4, 5, 99, 1), (4, 1, 1, 3), (4, 5, 1, 3), (4, 1, 1, 3)), 32),
        (((1001,), (), (1001,), ()), 64),
        (((3,), (), (), ()), 1 << 16),
        (((70_001,), (), (), ()), 2),
    ],
    ids=str,
)
def test_the_number_of_threads_changes_no_bit(leading, size, dtype, set_threads, generator):
    state = generator.get_state()
    x, s1, g, s2 = operands(leading, size, dtype)
    tensors = [x, s1, g, s2]
    weight = torch.randn(structured_product(*tensors).shape, dtype=dtype, generator=generator)
    runs, noisy_runs = [], []
    for threads in (1, 2, 2):
        set_threads(threads)
        runs.append(with_gradients(structured_product, tensors, weight))
        scale = g.detach().abs()
        noisy_runs.append(with_gradients(noisy(state), [*tensors, scale], weight))
    for results in (runs, noisy_runs):
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@dtypes
def test_rows_do_not_depend_on_their_company(dtype):
    x, s1, g, s2 = (t.detach() for t in operands(((300, 1), (3,), (3,), (3,)), 64, dtype))
    y = structured_product(x, s1, g, s2)
    assert torch.equal(structured_product(x[17:18], s1, g, s2), y[17:18])
    assert torch.equal(structured_product(x.flip(0), s1, g, s2).flip(0), y)


# ---- dense forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 8, 64, 12, 40, 56])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_dense_matrix(size, leading):
    s1, g, s2 = (t.detach() for t in operands((leading,) * 3, size))
    H = hadamard_matrix(size, dtype=torch.float64)
    W = s1.diag_embed() @ H @ g.diag_embed() @ H @ s2.diag_embed()
    torch.testing.assert_close(dense_matrix(s1, g, s2), W, rtol=1e-13, atol=1e-13)
    x = torch.randn(5, size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    y = structured_product(x, s1.unsqueeze(-2), g.unsqueeze(-2), s2.unsqueeze(-2))
    torch.testing.assert_close(y, x @ W.mT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [8, 12])
def test_dense_matrix_with_draws_of_g(size):
    s1, g, s2 = (t.detach() for t in operands(((3,), (5, 3), (3,)), size))
    W = dense_matrix(s1, g, s2)
    assert W.shape == (5, 3, size, size)
    torch.testing.assert_close(W[4, 2], dense_matrix(s1[2], g[4, 2], s2[2]))


def test_dense_matrix_is_differentiable():
    assert gradcheck(dense_matrix, operands(((2,), (2,), (2,)), 4))
    assert gradcheck(dense_matrix, operands(((), (), ()), 12))


@pytest.mark.parametrize("size", [1, 2, 16, 24])
def test_linear_map_in_g(size):
    x, s1, g, s2 = (t.detach() for t in operands(((6,), (), (), ()), size))
    A = linear_map_in_g(x, s1, s2)
    assert A.shape == (6, size, size)
    torch.testing.assert_close(A @ g, structured_product(x, s1, g, s2), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 4, 16, 12, 20, 28])
def test_column_features(size):
    s1, g, s2 = (t.detach() for t in operands(((), (), ()), size))
    x = torch.randn(5, 3, size**2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    features = column_features(x, s1, s2)
    assert features.shape == (5, 3, size)
    W = dense_matrix(s1, g, s2)
    torch.testing.assert_close(features @ g, x @ W.flatten(), rtol=1e-12, atol=1e-12)


def test_column_features_with_replicas():
    s1, g, s2 = (t.detach() for t in operands(((2, 1), (2, 1), (2, 1)), 4))
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    W = dense_matrix(s1, g, s2).flatten(-2)
    expected = (x * W).sum(-1)
    torch.testing.assert_close((column_features(x, s1, s2) * g).sum(-1), expected)


def test_column_features_of_another_width_are_refused():
    with pytest.raises(ShapeError, match=r"\(\.\.\., 16\)"):
        column_features(torch.ones(3, 15), torch.ones(4), torch.ones(4))


def test_covariance_of_the_weights_is_that_of_the_paper():
    """``W[i,j] = s1[i] s2[j] c[i^j]``: two entries with one ``i ^ j`` are fully correlated."""
    s1, g, s2 = (t.detach() for t in operands(((), (), ()), 8))
    W = dense_matrix(s1, g, s2) / (s1[:, None] * s2)
    index = np.arange(8)
    for d in range(8):
        entries = W[index, index ^ d]
        torch.testing.assert_close(entries, entries[:1].expand(8))
