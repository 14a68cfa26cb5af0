from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from whvi.errors import NumericalError
from whvi.linearized.triangular import cholesky, inverse_of_triangle


@pytest.mark.parametrize("size", [1, 5, 128, 129, 300])
def test_the_inverse_of_a_factor(size):
    half = torch.randn(size, 2 * size + 1, dtype=torch.float64)
    factor = cholesky(half @ half.mT)
    inverse = inverse_of_triangle(factor)
    unit = torch.eye(size, dtype=torch.float64)
    assert_close(inverse @ factor, unit, rtol=1e-8, atol=1e-8)
    assert torch.equal(inverse, inverse.tril())


def test_a_matrix_that_is_not_positive_is_named():
    with pytest.raises(NumericalError, match="precision of 2 values is not positive definite"):
        cholesky(-torch.eye(2))
