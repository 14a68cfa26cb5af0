"""DCT, Hartley and circulant mixings against scipy and against dense matrices, at any size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import torch
from torch import Tensor

from whvi.transforms.fourier import Circulant, Dct, FourierMixing, Hartley

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 31, 64, 100, 128]
EPS = torch.finfo(torch.float64).eps
KINDS = [Dct, Hartley, Circulant]
sizes = pytest.mark.parametrize("size", SIZES)
kinds = pytest.mark.parametrize("kind", KINDS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual: Tensor, expected: object, size: int) -> None:
    """Compare up to rounding: sums of ``size`` terms of size one."""
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=32 * math.sqrt(size) * EPS)


def hartley_matrix(size: int) -> np.ndarray:
    angle = 2 * np.pi * (np.outer(np.arange(size), np.arange(size)) % size) / size
    return (np.cos(angle) + np.sin(angle)) / np.sqrt(size)


def spectrum(g: Tensor) -> np.ndarray:
    """The half spectrum of a circulant matrix, from the words of the module."""
    values, size = g.numpy(), len(g)
    found = np.zeros(size // 2 + 1, dtype=complex)
    found[0] = values[0]
    for k in range(1, (size - 1) // 2 + 1):
        found[k] = (values[2 * k - 1] + 1j * values[2 * k]) / np.sqrt(2)
    if size % 2 == 0:
        found[size // 2] = values[-1]
    return found


def dense(kind: type[FourierMixing], g: Tensor) -> Tensor:
    """``M(g)`` without any of the code under test."""
    size = len(g)
    if kind is Circulant:
        column = scipy.fft.irfft(spectrum(g), n=size) if size > 1 else g.numpy()
        return torch.from_numpy(scipy.linalg.circulant(column))
    T = (
        hartley_matrix(size)
        if kind is Hartley
        else scipy.fft.dct(np.eye(size), axis=0, norm="ortho")
    )
    return torch.from_numpy(T @ np.diag(g.numpy()) @ T.T)


@sizes
def test_dct_is_scipys(size: int) -> None:
    x, dct = normal(3, 2, size), Dct(size)
    close(dct.forward(x), scipy.fft.dct(x.numpy(), norm="ortho"), size)
    close(dct.transpose(x), scipy.fft.idct(x.numpy(), norm="ortho"), size)
    close(dct.transpose(dct.forward(x)), x, size)


@sizes
def test_hartley_is_symmetric_and_its_own_inverse(size: int) -> None:
    x, hartley = normal(3, size), Hartley(size)
    close(hartley.forward(x), x.numpy() @ hartley_matrix(size), size)
    close(hartley.transpose(hartley.forward(x)), x, size)


@sizes
@kinds
def test_mixing_is_that_of_the_dense_matrix(kind: type[FourierMixing], size: int) -> None:
    v, g = normal(4, size), normal(size, seed=1)
    M = dense(kind, g)
    close(kind(size).mix(v, g), v @ M.mT, size)
    torch.testing.assert_close(M.norm(), g.norm(), rtol=64 * EPS, atol=0)


@sizes
@kinds
def test_factors_add_up_to_the_mixing(kind: type[FourierMixing], size: int) -> None:
    v, g, mixing = normal(4, size), normal(size, seed=1), kind(size)
    total = sum((g * u) @ T.mT for T, u in mixing.factors(v))
    close(total, mixing.mix(v, g), size)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("shapes", [((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (2, 3))])
@kinds
def test_gradients(
    kind: type[FourierMixing], size: int, shapes: tuple[tuple[int, ...], ...]
) -> None:
    v, g = (normal(*shape, size, seed=k).requires_grad_() for k, shape in enumerate(shapes))
    assert torch.autograd.gradcheck(kind(size).mix, (v, g))
    assert torch.autograd.gradgradcheck(kind(size).mix, (v, g))


@kinds
def test_torch_func_and_single_precision(kind: type[FourierMixing]) -> None:
    v, g, mixing = normal(4, 6), normal(6, seed=1), kind(6)
    each = torch.func.vmap(mixing.mix, (0, None))(v, g)
    close(each, mixing.mix(v, g), 6)
    jacobian = torch.func.jacrev(lambda g: mixing.mix(v, g))(g)
    close(jacobian @ g, mixing.mix(v, g), 6)
    single = mixing.mix(v.float(), g.float())
    assert single.dtype is torch.float32
    torch.testing.assert_close(single.double(), mixing.mix(v, g), rtol=0, atol=1e-5)
    half = mixing.mix(v.bfloat16(), g.bfloat16())
    assert half.dtype is torch.bfloat16


@kinds
def test_no_rows(kind: type[FourierMixing]) -> None:
    assert kind(5).mix(torch.zeros(0, 5), torch.ones(5)).shape == (0, 5)
