"""The Triton kernels in Triton's interpreter, on the CPU, against the composition in torch.

Run by ``test_triton.py`` with ``TRITON_INTERPRET=1``, and ``WHVI_KERNEL=0`` so that CPU tensors
take the way that CUDA tensors take.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import whvi
from whvi._kernel import triton as kernels
from whvi._kernel.backend import backend, gpu_takes
from whvi.doctor import run_checks
from whvi.functional import structured_product
from whvi.layers.protocol import kl
from whvi.likelihoods import Gaussian
from whvi.transforms import fwht, hadamard_matrix
from whvi.transforms.plain import fwht_plain

assert backend.kernel is None
assert kernels.INTERPRETED

HALF = (torch.float16, torch.bfloat16)
SHAPES = {  # of x, s1, g, s2 over leading axes; whether the last of these are blocks
    "rows": ([(5,), (), (), ()], False),
    "one vector": ([(), (), (), ()], False),
    "a g for every row": ([(5,), (), (5,), ()], False),
    "draws": ([(3, 5), (), (3, 1), ()], False),
    "shared x": ([(), (), (7,), ()], False),
    "scales of every row": ([(6,), (6,), (1,), (6,)], False),
    "blocks": ([(5, 1), (1, 3), (1, 3), (1, 3)], True),
    "blocks and draws": ([(3, 5, 1), (1, 1, 2), (3, 1, 2), (1, 1, 2)], True),
    "replicas, draws, blocks": ([(2, 3, 5, 1), (2, 1, 1, 2), (2, 3, 5, 2), (2, 1, 1, 2)], True),
}  # fmt: skip


def composed(x: Tensor, s1: Tensor, g: Tensor, s2: Tensor) -> Tensor:
    return s1 * fwht_plain(g * fwht_plain(s2 * x, True), True)


def tolerance(dtype: torch.dtype, size: int) -> dict[str, float]:
    """Sums of ``2 log2 D`` levels, each rounded once; half precision rounds the result once."""
    unit = torch.finfo(torch.float32 if dtype in HALF else dtype).eps
    once = torch.finfo(dtype).eps if dtype in HALF else 0.0
    bound = 8 * unit * max(1, 2 * size.bit_length()) + once
    return {"rtol": bound, "atol": 5 * bound}


@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
@pytest.mark.parametrize("bits", range(16))
def test_the_transform(bits: int, dtype: torch.dtype) -> None:
    size = 2**bits
    x = torch.randn(3 if bits < 12 else 1, size, generator=torch.Generator().manual_seed(bits))
    x = x.to(dtype)
    found = fwht(x)  # by the hook
    assert found.dtype == dtype
    expected = fwht_plain(x.double(), True)
    torch.testing.assert_close(found.double(), expected, **tolerance(dtype, size))


def test_the_hook_is_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    run = kernels.transform

    def spy(x: Tensor, normalize: bool) -> Tensor:
        seen.append(tuple(x.shape))
        return run(x, normalize)

    monkeypatch.setattr(kernels, "transform", spy)
    x = torch.randn(4, 8, requires_grad=True)
    assert gpu_takes(x)
    fwht(x).square().sum().backward()
    assert seen == [(4, 8), (4, 8)]  # forward and backward
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_sums_without_scale_and_other_dimensions() -> None:
    x = torch.randn(2, 16, 3, dtype=torch.float64)
    H = hadamard_matrix(16, normalize=False, dtype=torch.float64)
    expected = torch.einsum("ij,ajb->aib", H, x)
    torch.testing.assert_close(fwht(x, dim=1, normalize=False), expected)


def test_passes_do_not_round_to_half_precision() -> None:
    """Sums of pieces go up to ``a · b``, beyond float16 if they were kept in it unscaled."""
    x = torch.full((1, 2**14), 60.0, dtype=torch.float16)
    found = kernels.transform(x, True)
    assert found[0, 0].item() == 60.0 * 2**7
    assert not found[0, 1:].any()


def operands(shapes: list[tuple[int, ...]], size: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    made = [torch.randn((*shape, size), generator=generator) for shape in shapes]
    return [t.to(dtype).requires_grad_() for t in made]


def check(given: list[Tensor], has_blocks: bool) -> None:
    """Value and gradients, against the composition in float64."""
    size, dtype = given[0].shape[-1], given[0].dtype
    exact = [t.detach().double().requires_grad_() for t in given]
    expected = composed(*exact)
    weight = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    weight = weight.to(dtype).double()  # what half precision can hold
    wanted = torch.autograd.grad((expected * weight).sum(), exact)
    y = kernels.structured_product(tuple(given), has_blocks=has_blocks)
    assert y is not None
    assert y.dtype == dtype
    limits = tolerance(dtype, size)
    torch.testing.assert_close(y.double(), expected, **limits)
    found = torch.autograd.grad(y, given, weight.to(dtype))
    for value, other in zip(found, wanted, strict=True):
        # sums over rows: entries grow, and errors with them
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(value.double() / scale, other / scale, **limits)


@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
@pytest.mark.parametrize("case", SHAPES)
def test_the_product_broadcasts(case: str, dtype: torch.dtype) -> None:
    shapes, has_blocks = SHAPES[case]
    check(operands(shapes, 8, dtype), has_blocks)


@pytest.mark.parametrize("bits", range(13))
def test_the_product_of_every_size(bits: int) -> None:
    check(operands([(3, 1), (1, 2), (1, 2), (1, 2)], 2**bits, torch.float32), True)


def test_programs_that_sum_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_PROGRAMS", 1)
    check(operands([(37, 1), (1, 2), (1, 2), (1, 2)], 1024, torch.float32), True)


@pytest.mark.parametrize("bits", [13, 15])
def test_long_rows_take_passes(bits: int) -> None:
    given = operands([(2,), (), (), ()], 2**bits, torch.float64)
    assert kernels.structured_product(tuple(given), has_blocks=False) is None
    found, expected = structured_product(*given), composed(*given)
    torch.testing.assert_close(found, expected)
    ours = torch.autograd.grad(found.square().sum(), given)
    torch.testing.assert_close(ours, torch.autograd.grad(expected.square().sum(), given))


def test_gradients_of_gradients() -> None:
    given = operands([(1,), (), (), ()], 2, torch.float64)
    torch.autograd.gradgradcheck(structured_product, given)


def test_what_the_kernels_do_not_take() -> None:
    x = torch.randn(2, 8)
    s = torch.randn(8, dtype=torch.float64)
    assert kernels.structured_product((x, s, s, s), has_blocks=False) is None  # data types differ
    shapes = [(2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2), (1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1)]
    many = operands(shapes, 8, torch.float32)
    assert kernels.structured_product(tuple(many), has_blocks=False) is None  # loops
    torch.testing.assert_close(structured_product(*many), composed(*many))
    assert not kernels.takes(torch.empty(0, 8))
    assert not kernels.takes(torch.ones(8, dtype=torch.int64))
    batched = torch.vmap(structured_product, (0, None, None, None))
    v = torch.randn(8)
    torch.testing.assert_close(batched(x, v, v, v), structured_product(x, v, v, v))


def test_layers_and_the_objective_train_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks, trimmed, with noise for every row, bias and KL: the same as without Triton."""
    found = []
    for active in (True, False):
        if not active:
            monkeypatch.setattr(kernels, "takes", lambda x: False)
        torch.manual_seed(0)
        model = torch.nn.Sequential(whvi.WHVILinear(5, 20), torch.nn.ReLU(), whvi.WHVILinear(20, 3))
        likelihood, x, y = Gaussian(3), torch.randn(6, 5), torch.randn(6, 3)
        value = whvi.elbo(model, likelihood, x, y, num_data=60, num_draws=2).value
        gradients = torch.autograd.grad(value, list(model.parameters()))
        found.append((value, *gradients, kl(model)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_the_self_check() -> None:
    assert all(check.is_passed for check in run_checks())


def test_the_package_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of ``fast_hadamard_transform``, which needs a GPU to be built."""
    calls: list[tuple[torch.dtype, float]] = []

    def hadamard_transform(x: Tensor, scale: float = 1.0) -> Tensor:
        calls.append((x.dtype, scale))
        return fwht_plain(x, False) * scale

    stub = SimpleNamespace(hadamard_transform=hadamard_transform, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "fast_hadamard_transform", stub)
    kernels._library.cache_clear()
    try:
        x = torch.randn(3, 16)
        torch.testing.assert_close(fwht(x), fwht_plain(x, True))
        assert calls == [(torch.float32, 0.25)]
        fwht(x.double())  # it has no float64
        fwht(torch.randn(3, 4))  # nor rows shorter than 8
        assert len(calls) == 1
    finally:
        kernels._library.cache_clear()
