"""The plain torch path and the matrix: also the reference that long rows are compared with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.transforms.reference import long_array, long_transform, norm_error, signs
from whvi.errors import ShapeError
from whvi.transforms import hadamard_matrix
from whvi.transforms.plain import fwht_plain


@pytest.mark.parametrize("size", [1, 2, 4, 16, 128, 12, 20, 28, 24, 160])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64, torch.bfloat16])
def test_matrix_entries(size, dtype):
    H = hadamard_matrix(size, normalize=False, dtype=dtype)
    assert H.dtype == (dtype or torch.get_default_dtype())
    assert np.array_equal(H.float().numpy(), signs(size))
    normalized = hadamard_matrix(size, dtype=dtype)
    # one rounding of the factor, one of the product
    limit = 2 * torch.finfo(normalized.dtype).eps
    torch.testing.assert_close(normalized, H * size**-0.5, rtol=limit, atol=0)


@pytest.mark.parametrize("size", [64, 12, 20, 28, 48, 320])
def test_matrix_is_symmetric_and_its_own_inverse(size):
    signs = hadamard_matrix(size, normalize=False, dtype=torch.float64)
    assert torch.equal(signs, signs.T)
    assert torch.equal(signs.abs(), torch.ones_like(signs))
    assert torch.equal(signs @ signs, size * torch.eye(size, dtype=torch.float64))
    H = hadamard_matrix(size, dtype=torch.float64)
    torch.testing.assert_close(H @ H, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [0, -1, -4, 3, 6, 14, 36, 1000])
def test_matrix_of_other_sizes_is_refused(size):
    with pytest.raises(ShapeError, match=f"12, 20 or 28, got size {size} "):
        hadamard_matrix(size)


@pytest.mark.parametrize("size", [1 << bits for bits in range(15)] + [12, 40, 384, 3584, 10240])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_transform(size, normalize, dtype):
    # matrix products sum in an order of their own: up to 64 terms a side, one to three sides
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(2, 3, size, dtype=dtype, generator=generator)
    y = fwht_plain(x, normalize)
    assert norm_error(y, long_transform(long_array(x), normalize=normalize)) <= 4


def test_plain_transform_of_no_rows():
    assert fwht_plain(torch.ones(3, 0, 8), True).shape == (3, 0, 8)
