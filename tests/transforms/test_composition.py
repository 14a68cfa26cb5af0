"""``fwht`` under autograd, torch.func, torch.compile and torch.export."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tests.transforms.reference import signs
from whvi._kernel.backend import backend
from whvi.transforms import fwht, hadamard_matrix
from whvi.transforms.fwht import _operator

SHAPES = [
    *[(1,), (2,), (8,), (64,), (3, 4), (2, 16), (1, 128), (5, 1)],
    *[(0, 8), (2, 3, 4), (2, 1, 3, 8), (1, 2, 1, 2, 16)],
]
CASES = [(shape, dtype) for shape in SHAPES for dtype in (torch.float32, torch.float64)]
cases = pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
slow_cases = pytest.mark.parametrize(  # each shape by day in one precision, and nightly in both
    ("shape", "dtype"),
    [
        case if k % 4 in (0, 3) else pytest.param(*case, marks=pytest.mark.nightly)
        for k, case in enumerate(CASES)
    ],
    ids=str,
)
needs_operator = pytest.mark.skipif(
    backend.kernel is None, reason=f"the operator stands for the kernel: {backend.reason}"
)
# The transform is linear: finite differences over a long step are exact but for rounding.
LINEAR = {
    torch.float32: {"eps": 0.5, "atol": 1e-5, "rtol": 1e-5, "nondet_tol": 0.0},
    torch.float64: {"eps": 0.5, "atol": 1e-12, "rtol": 1e-12, "nondet_tol": 0.0},
}
single_precision = pytest.mark.filterwarnings(r"ignore:Input #\d requires gradient:UserWarning")
# torch's own forward-mode formulas and inductor still use torch.jit
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def values(shape, dtype, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def dense(x):
    return x @ hadamard_matrix(x.shape[-1], dtype=x.dtype)


def assert_close(actual, expected):
    tolerance = 32 * torch.finfo(expected.dtype).eps  # both sides round; sums of up to 128
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=4 * tolerance)


@single_precision
@cases
def test_gradients(shape, dtype):
    x = values(shape, dtype).requires_grad_()
    assert gradcheck(fwht, x, **LINEAR[dtype])
    assert gradcheck(lambda t: fwht(t, normalize=False), x, **LINEAR[dtype])


@single_precision
@cases
def test_gradients_of_gradients(shape, dtype):
    x = values(shape, dtype).requires_grad_()
    assert gradgradcheck(fwht, x, **LINEAR[dtype])


def test_gradients_of_gradients_of_a_curved_function():
    x = values((2, 8), torch.float64).requires_grad_()
    assert gradgradcheck(lambda t: fwht(t.sin()) ** 3, x)
    assert gradcheck(
        lambda t: torch.autograd.grad(fwht(t**2).pow(2).sum(), t, create_graph=True)[0], x
    )


@single_precision
@cases
def test_forward_mode(shape, dtype):
    x = values(shape, dtype).requires_grad_()
    assert gradcheck(fwht, x, check_forward_ad=True, check_backward_ad=False, **LINEAR[dtype])
    primal, tangent = values(shape, dtype), values(shape, dtype, seed=1)
    y, y_tangent = jvp(fwht, (primal,), (tangent,))
    assert torch.equal(y, fwht(primal))
    assert torch.equal(y_tangent, fwht(tangent))


@cases
def test_vmap_over_any_axis(shape, dtype):
    x = values(shape, dtype)
    for axis in range(len(shape) - 1):
        if shape[axis] == 0:  # vmap itself refuses an empty axis
            continue
        assert torch.equal(vmap(fwht, axis, axis)(x), fwht(x))
    batched = values((*shape, 3), dtype)  # the mapped axis comes last, in strided memory
    assert torch.equal(vmap(fwht, -1)(batched), fwht(batched.movedim(-1, 0)))


@cases
def test_func_grad_and_vjp(shape, dtype):
    x, weight = values(shape, dtype), values(shape, dtype, seed=1)
    assert_close(grad(lambda t: (fwht(t) * weight).sum())(x), dense(weight))
    y, pullback = vjp(fwht, x)
    assert_close(y, dense(x))
    assert_close(pullback(weight)[0], dense(weight))


@cases
def test_jacobians_and_hessian(shape, dtype):
    x = (
        values(shape, dtype)[(0,) * (len(shape) - 1)]
        if 0 not in shape
        else values(shape[-1:], dtype)
    )
    size = x.shape[-1]
    H = torch.from_numpy(signs(size)).to(dtype) / size**0.5
    assert_close(jacrev(fwht)(x), H)
    assert_close(jacfwd(fwht)(x), H)
    # the square of an orthonormal map has the Hessian 2 I
    assert_close(hessian(lambda t: fwht(t).square().sum())(x), 2 * torch.eye(size, dtype=dtype))


@cases
def test_per_example_gradients(shape, dtype):
    x, weight = values((4, *shape), dtype), values(shape, dtype, seed=1)
    actual = vmap(grad(lambda t: (fwht(t) ** 2 * weight).sum()))(x)
    assert_close(actual, dense(2 * dense(x) * weight))
    nested = vmap(vmap(grad(lambda t: fwht(t).sum())))(values((2, 3, *shape), dtype))
    assert_close(nested, dense(torch.ones(2, 3, *shape, dtype=dtype)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(1, 2, 16, dtype=torch.float64))

    def forward(self, x):
        return fwht(torch.tanh(fwht(x) * self.scale))


def test_parameters_of_a_module_by_functional_call():
    net, x = Net(), values((5, 16), torch.float64)
    gradient = grad(lambda p: functional_call(net, p, (x,)).sum())(dict(net.named_parameters()))
    net(x).sum().backward()
    torch.testing.assert_close(gradient["scale"], net.scale.grad, rtol=1e-13, atol=1e-13)


# ---- graphs -------------------------------------------------------------------------------------


@needs_operator
@slow_cases
def test_the_operator_keeps_the_rules_of_operators(shape, dtype):
    if 0 in shape:
        pytest.skip("opcheck compares aliases by address, which empty tensors do not have")
    torch.library.opcheck(_operator, (values(shape, dtype).requires_grad_(), True))
    torch.library.opcheck(_operator, (values(shape, dtype), False))


@needs_operator
def test_the_operator_under_vmap():
    x = values((3, 4, 8), torch.float64)
    for axis in (0, 1):
        expected = fwht(x.movedim(axis, 0))
        assert torch.equal(vmap(lambda t: _operator(t, True), axis)(x), expected)


@slow_cases
def test_compiled_without_a_break(shape, dtype):
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: fwht(2 * t).sin(), fullgraph=True, backend="aot_eager")
    x, other = values(shape, dtype).requires_grad_(), values(shape, dtype).requires_grad_()
    y, expected = compiled(x), fwht(2 * other).sin()
    assert_close(y, expected)
    y.sum().backward()
    expected.sum().backward()
    assert_close(x.grad, other.grad)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        *(
            pytest.param(d, marks=pytest.mark.nightly)
            for d in (torch.float64, torch.float16, torch.bfloat16)
        ),
    ],
)
def test_compiled_by_inductor(dtype):
    torch._dynamo.reset()
    x = values((4, 64), torch.float64).to(dtype)
    compiled = torch.compile(lambda t: fwht(2 * t, dim=0).sin(), fullgraph=True)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        compiled(x), fwht(2 * x, dim=0).sin(), rtol=tolerance, atol=tolerance
    )


def test_compiled_with_any_number_of_rows():
    torch._dynamo.reset()
    compiled = torch.compile(fwht, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_rows in (3, 5, 8):
        x = values((num_rows, 16), torch.float64)
        assert_close(compiled(x), fwht(x))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traced_by_make_fx(mode):
    x, other = values((2, 16), torch.float64), values((2, 16), torch.float64, seed=1)
    graph = make_fx(lambda t: fwht(2 * t) + 1, tracing_mode=mode)(x)
    assert_close(graph(other), dense(2 * other) + 1)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr:UserWarning")
def test_linearized():
    x, tangent = values((2, 16), torch.float64), values((2, 16), torch.float64, seed=1)
    y, push = linearize(lambda t: fwht(t**2), x)
    assert_close(y, dense(x**2))
    assert_close(push(tangent), dense(2 * x * tangent))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_by_torch_jit():
    x, other = values((2, 16), torch.float64), values((2, 16), torch.float64, seed=1)
    graph = torch.jit.trace(lambda t: fwht(2 * t) + 1, (x,), check_trace=False)
    assert_close(graph(other), dense(2 * other) + 1)


@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(16,), (3, 1), (2, 3, 128)], ids=str)
def test_exported_as_plain_operations(shape, dtype):
    class Transform(torch.nn.Module):
        def forward(self, x):
            return fwht(x)

    x = values(shape, dtype)
    program = torch.export.export(Transform(), (x,))
    assert "whvi" not in str(program.graph)  # runs where this library is not installed
    assert_close(program.module()(x), fwht(x))


def test_tensor_subclasses_take_the_plain_path():
    class Tagged(torch.Tensor):
        pass

    x = values((3, 16), torch.float64)
    tagged = fwht(x.as_subclass(Tagged))
    assert isinstance(tagged, Tagged)
    assert_close(tagged.as_subclass(torch.Tensor), fwht(x))


def test_meta_tensors_have_shapes_only():
    y = fwht(torch.empty(3, 16, device="meta"))
    assert y.shape == (3, 16)
    assert y.device.type == "meta"


def test_inference_mode():
    x = values((3, 16), torch.float64)
    with torch.inference_mode():
        assert torch.equal(fwht(x), fwht(x.clone()))
        out = torch.empty_like(x)
        assert torch.equal(fwht(x, out=out), fwht(x))
