"""``fwht`` against long double: every layout and data type and every size."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.reference import LONG, long_array, long_transform, norm_error, signs
from whvi.errors import ShapeError
from whvi.transforms import fwht, fwht_, hadamard_matrix
from whvi.transforms.plain import fwht_plain

DTYPES = (torch.float32, torch.float64)
NIGHTLY = settings.get_profile("nightly")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
POWERS = [1 << bits for bits in range(15)]
ORDERS = [order << bits for order in (12, 20, 28) for bits in range(10)]


def rows(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---- a dense reference of higher precision ------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 8, 64, 512, 12, 40, 224])
def test_the_reference_is_the_dense_matrix(size):
    x = np.random.default_rng(0).normal(size=(3, size)).astype(LONG)
    np.testing.assert_allclose(
        long_transform(x), x @ signs(size).astype(LONG) / np.sqrt(LONG(size)), atol=1e-16, rtol=0
    )


@st.composite
def layouts(draw):
    """A tensor of 0-4 leading axes whose memory has strides, an offset or a flip, and its values.

    The values are drawn by a generator from a seed: plain, zeros, sparse, subnormal or as large as
    the sums allow.
    """
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.sampled_from([*POWERS[:13], *(n for n in ORDERS if n <= 4096)]))
    room = max(1, (1 << 13) // size)
    leading = draw(st.lists(st.integers(0, 5), max_size=4))
    while np.prod(leading, dtype=int) > room:
        leading = leading[1:]
    seed = draw(st.integers(0, 2**32))
    shape = (*leading, size)
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)
    limits = torch.finfo(dtype)
    kind = draw(st.sampled_from(["plain", "zeros", "sparse", "mixed", "subnormal", "huge"]))
    if kind == "zeros":
        x = torch.zeros(shape, dtype=dtype)
    elif kind == "sparse":
        x = x * (torch.arange(size) % 7 == 0)
    elif kind == "mixed":
        x = x * 10.0 ** (torch.arange(size) % 13 - 6)
    elif kind == "subnormal":
        x = x * limits.smallest_normal / 8
    elif kind == "huge":
        x = x.clamp(-1, 1) * (limits.max / size)
    return _placed(draw, x)


def _placed(draw, x):
    """The same values in other memory."""
    layout = draw(st.sampled_from(["contiguous", "offset", "spread", "transposed", "padded"]))
    if layout == "offset":  # neither aligned to a vector nor at the start of its storage
        start = draw(st.integers(1, 9))
        memory = torch.empty(start + x.numel(), dtype=x.dtype)
        return memory[start:].view(x.shape).copy_(x)
    if layout == "spread":  # every second entry of a row
        return torch.empty(*x.shape, 2, dtype=x.dtype)[..., 0].copy_(x)
    if layout == "transposed":
        return x.movedim(-1, 0).contiguous().movedim(0, -1)
    if layout == "padded":  # rows with a gap between them
        gap = draw(st.integers(1, 5))
        return torch.empty(*x.shape[:-1], x.shape[-1] + gap, dtype=x.dtype)[..., :-gap].copy_(x)
    return x


def check_against_reference(x, normalize):
    before = x.clone()
    y = fwht(x, normalize=normalize)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.is_contiguous()
    assert torch.equal(x, before)
    assert norm_error(y, long_transform(long_array(x), normalize=normalize)) <= 4


@settings(max_examples=200)
@given(layouts(), st.booleans())
def test_equals_the_dense_matrix(x, normalize):
    check_against_reference(x, normalize)


@pytest.mark.nightly
@NIGHTLY
@given(layouts(), st.booleans())
def test_equals_the_dense_matrix_many(x, normalize):
    check_against_reference(x, normalize)


@dtypes
@pytest.mark.parametrize("size", POWERS + ORDERS)
def test_every_size_with_every_instruction_set(instruction_set, size, dtype):
    # an odd number of rows: tiny rows then end in the middle of a vector
    x = rows(3, size, dtype=dtype, seed=size)
    assert norm_error(fwht(x), long_transform(long_array(x))) <= 4


# ---- what the definition implies ----------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("size", POWERS + ORDERS)
def test_is_its_own_inverse_and_keeps_norms(size, dtype):
    x = rows(5, size, dtype=dtype, seed=size)
    y = fwht(x)
    assert norm_error(fwht(y), long_array(x)) <= 8
    norms = np.sqrt((long_array(y) ** 2).sum(-1)) / np.sqrt((long_array(x) ** 2).sum(-1))
    assert abs(norms - 1).max() <= 8 * torch.finfo(dtype).eps


@dtypes
@pytest.mark.parametrize("size", [1, 8, 64, 1024, 8192, 12, 24, 384, 1280, 3584])
def test_is_linear_and_symmetric(size, dtype):
    x, z = rows(2, 4, size, dtype=dtype, seed=size)
    assert norm_error(fwht(2 * x - 3 * z), long_array(2 * fwht(x) - 3 * fwht(z))) <= 8
    left, right = long_array(fwht(x)) * long_array(z), long_array(x) * long_array(fwht(z))
    scale = np.sqrt((long_array(x) ** 2).sum(-1) * (long_array(z) ** 2).sum(-1))
    assert (abs(left.sum(-1) - right.sum(-1)) / scale).max() <= 8 * torch.finfo(dtype).eps


@dtypes
@pytest.mark.parametrize("size", [*POWERS[:10], *(n for n in ORDERS if n <= 512)])
def test_unit_vectors_give_the_rows_of_the_matrix(size, dtype):
    identity = torch.eye(size, dtype=dtype)
    assert np.array_equal(fwht(identity, normalize=False).numpy(), signs(size))
    torch.testing.assert_close(
        fwht(identity), hadamard_matrix(size, dtype=dtype), rtol=8 * torch.finfo(dtype).eps, atol=0
    )


# ---- long rows ----------------------------------------------------------------------------------


@pytest.mark.nightly
@dtypes
@pytest.mark.parametrize("bits", range(25))
def test_long_rows_equal_plain_torch(kernel, bits, dtype, set_threads):
    x = rows(1, 1 << bits, dtype=dtype, seed=bits)
    for threads in (1, 2):
        set_threads(threads)
        y = fwht(x)
        # plain torch in float64 is exact enough to judge float32; float64 has two equal rounders
        expected = fwht_plain(x.double(), True)
        error = (y.double() - expected).norm() / expected.norm()
        assert error <= 4 * torch.finfo(dtype).eps


@pytest.mark.nightly
def test_a_row_of_two_to_the_thirty():
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < 12 << 30:
        pytest.skip(f"needs 12 GiB of free memory, {free >> 30} GiB are there")
    size = 1 << 30
    x = torch.zeros(size)
    places = torch.tensor([0, 1, 12_345, (1 << 29) + 7, size - 1])
    x[places] = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0])
    fwht_(x)  # in place: 4 GiB
    for k in (0, 1, 5, 77_777, (1 << 20) + 3, (1 << 29) + 1, size - 1):
        parities = [bin(k & int(place)).count("1") & 1 for place in places]
        exact = sum(v * (-1) ** p for v, p in zip((1, -2, 3, -4, 5), parities, strict=True))
        assert x[k].item() == pytest.approx(exact / 2**15, rel=1e-6)


# ---- what comes in ------------------------------------------------------------------------------

VIEWS = {
    "transposed": lambda: rows(16, 8).T,
    "every second": lambda: rows(4, 32)[:, ::2],
    "flipped": lambda: rows(4, 16).flip(-1),
    "expanded rows": lambda: rows(16).expand(5, 16),
    "expanded entries": lambda: rows(5, 1).expand(5, 16),
    "no rows": lambda: rows(0, 16),
    "no rows, three axes": lambda: rows(3, 0, 16),
    "one entry": lambda: rows(7, 1),
    "one row": lambda: rows(32),
    "permuted": lambda: rows(8, 3, 5).permute(1, 2, 0),
    "overlapping": lambda: rows(64).as_strided((5, 16), (1, 1)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    x = VIEWS[name]()
    before = x.clone()
    y = fwht(x)
    assert y.shape == x.shape
    assert torch.equal(x, before)
    assert norm_error(y, long_transform(long_array(x))) <= 4


def test_read_only_memory_is_read_only():
    array = np.frombuffer(rows(4, 16).numpy().tobytes())  # bytes cannot be written
    with pytest.warns(UserWarning, match="not writable"):
        x = torch.from_numpy(array).view(4, 16)
    assert norm_error(fwht(x), long_transform(array.reshape(4, 16))) <= 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype):
    x = rows(5, 64).to(dtype)
    y = fwht(x)
    assert y.dtype == dtype
    assert torch.equal(y, fwht(x.float()).to(dtype))
    assert norm_error(y, long_transform(long_array(x))) <= 1  # of its own, coarse eps


def test_half_types_are_converted_a_block_at_a_time():
    x = rows(300, 768).bfloat16().requires_grad_()  # three blocks, the last one short
    y = fwht(x)
    assert torch.equal(y, fwht(x.float()).bfloat16())
    grad = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, grad)
    assert torch.equal(found, fwht(grad.float()).bfloat16())
    with torch.no_grad():
        assert torch.equal(fwht_(x.clone()), y)
        assert torch.equal(fwht(x.mT, dim=0), y.mT)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.int64, torch.bool])
def test_other_data_types_are_refused(dtype):
    with pytest.raises(ShapeError, match="floating-point"):
        fwht(torch.ones(4, dtype=dtype))


@pytest.mark.parametrize("function", [fwht, fwht_])
@pytest.mark.parametrize(
    ("size", "nearest"),
    [(0, "1"), (3, "2 and 4"), (10, "8 and 12"), (36, "32 and 40"), (1000, "896 and 1024")],
)
def test_other_sizes_are_refused(function, size, nearest):
    with pytest.raises(ShapeError, match=rf"got size {size} \(nearest: {nearest}\)"):
        function(torch.ones(2, size))


@pytest.mark.parametrize("function", [fwht, fwht_])
def test_a_scalar_and_other_objects_are_refused(function):
    with pytest.raises(ShapeError, match="dim -1 is out of range"):
        function(torch.tensor(1.0))
    with pytest.raises(ShapeError, match="got list"):
        function([1.0, 2.0])
    with pytest.raises(ShapeError, match="got ndarray"):
        function(np.ones(4))


@pytest.mark.parametrize("dim", range(-3, 3))
def test_dim(dim):
    x = rows(4, 8, 2)
    expected = long_transform(np.moveaxis(long_array(x), dim, -1))
    for y in (
        fwht(x, dim=dim),
        fwht(x, dim=dim, out=torch.empty_like(x)),
        fwht_(x.clone(), dim=dim),
    ):
        assert norm_error(y.movedim(dim, -1), expected) <= 4


@pytest.mark.parametrize("dim", [-3, 2])
def test_dim_out_of_range_is_refused(dim):
    with pytest.raises(ShapeError, match=f"dim {dim} is out of range"):
        fwht(rows(2, 4), dim=dim)


def test_values_that_are_not_finite_stay_in_their_row():
    x = rows(3, 64)
    clean = fwht(x)
    x[1, 5] = torch.nan
    y = fwht(x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], clean[[0, 2]])


# ---- out= and in place --------------------------------------------------------------------------


@dtypes
def test_out_is_filled_and_returned(dtype):
    x = rows(5, 32, dtype=dtype)
    out = torch.full_like(x, torch.nan)
    assert fwht(x, out=out) is out
    assert torch.equal(out, fwht(x))


def test_out_writes_nothing_around_it():
    x = rows(5, 32)
    memory = torch.full((7, 32), 7.0, dtype=torch.float64)
    fwht(x, out=memory[1:6])
    assert torch.equal(memory[1:6], fwht(x))
    assert (memory[[0, 6]] == 7).all()


def test_out_of_any_layout():
    x = rows(8, 32)
    for out in (torch.empty(32, 8, dtype=x.dtype).T, torch.empty(8, 64, dtype=x.dtype)[:, ::2]):
        assert fwht(x, out=out) is out
        assert torch.equal(out, fwht(x))


@pytest.mark.parametrize("shift", [0, 1, 3, 4, 64, 100])
def test_out_may_overlap_the_input(shift):
    memory = rows(300)
    x, out = memory[:128].view(2, 64), memory[shift : shift + 128].view(2, 64)
    expected = fwht(x.clone())
    assert torch.equal(fwht(x, out=out), expected)


def test_a_transposed_out_may_be_the_input():
    x = rows(16, 16)
    expected = fwht(x)
    assert torch.equal(fwht(x, out=x.T), expected)


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(4, 8),
        torch.empty(8, 4, dtype=torch.float64),
        torch.empty(32, dtype=torch.float64),
    ],
)
def test_a_wrong_out_is_refused(out):
    with pytest.raises(ShapeError, match="out must be"):
        fwht(rows(4, 8), out=out)


def test_out_with_gradients_is_refused():
    x = rows(4, 8).requires_grad_()
    with pytest.raises(ShapeError, match="not differentiable"):
        fwht(x, out=torch.empty(4, 8, dtype=x.dtype))
    with torch.no_grad():
        assert torch.equal(fwht(x, out=torch.empty(4, 8, dtype=x.dtype)), fwht(x))


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in {"expanded rows", "overlapping"}])
def test_in_place(name):
    x = VIEWS[name]()
    if name.startswith("expanded"):
        with pytest.raises(RuntimeError, match="single memory location"):
            fwht_(x)
        return
    expected = fwht(x)
    assert fwht_(x) is x
    assert torch.equal(x, expected)


def test_in_place_on_a_leaf_is_refused_and_on_a_result_differentiated():
    leaf = rows(2, 8).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        fwht_(leaf)
    weight = rows(2, 8, seed=1)
    (fwht_(leaf * 1) * weight).sum().backward()
    torch.testing.assert_close(leaf.grad, fwht(weight))


def test_writing_in_place_is_noticed_by_autograd():
    x = rows(8).requires_grad_()
    y = rows(8, seed=1)
    product = x * y  # saves y
    fwht_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


# ---- threads ------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize(
    "shape",
    [(70_000, 1), (9_001, 8), (513, 128), (70, 1024), (5, 1 << 14), (1, 1 << 17), (3, 1 << 19)],
)
def test_the_number_of_threads_changes_no_bit(shape, dtype, set_threads):
    x = rows(*shape, dtype=dtype)
    set_threads(1)
    alone = fwht(x)
    set_threads(2)
    assert torch.equal(fwht(x), alone)
    assert torch.equal(fwht_(x.clone()), alone)


@dtypes
@pytest.mark.parametrize(
    "size",
    [4, 128, 4096, *(pytest.param(s, marks=pytest.mark.nightly) for s in (16, 64, 512, 1024))],
)
def test_outputs_written_around_the_cache(size, dtype, instruction_set):
    x = rows((26 << 20) // (size * dtype.itemsize), size, dtype=dtype)  # from 24 MiB on
    y = fwht(x)
    part = slice(500, 510)
    # in place goes through the cache
    assert torch.equal(y, fwht_(x.clone()))
    assert norm_error(y[part], long_transform(long_array(x[part]))) <= 4
