r"""Mixing by the discrete cosine, Hartley and Fourier transforms: any ``D``, no padding.

With ``F = rfft(x)`` (orthonormal), ``m = ⌊D/2⌋ + 1`` complex numbers, and ``w`` of modulus ``√2``,
the real and imaginary parts of ``w F`` are coefficients ``k`` and ``D − k`` of

    Hartley:  T[k, n] = D^-½ (cos + sin)(2π k n / D),        w_k = √2 exp(iπ/4);
    DCT-II:   T[k, n] = (2/D)^½ cos(π k (n + ½) / D),        w_k = √2 exp(iπ k / 2D), w_0 = 1 + i,

the latter for rows in the order ``…, 3, 1, 0, 2, 4, …`` (Makhoul, 1980). So one real FFT of length
``D`` is a transform, and its inverse is ``x = irfft(w̄ (w F) / 2)``. In ``M(g) = T diag(g) Tᵀ`` the
order of what ``g`` multiplies does not matter, which saves reordering the rows. Rows of ``2^k``
entries have their own kernel, :mod:`whvi._kernel.hartley`.

A circulant matrix is ``C = F* diag(ĉ) F``, ``C[i, j] = c[(i − j) mod D]``. Here ``g`` is its
spectrum in the real Fourier basis: ``ĉ_0 = g_0``, ``ĉ_k = (g_{2k−1} + i g_{2k}) / √2``, and
``ĉ_{D/2} = g_{D−1}`` for even ``D``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from whvi._kernel.backend import (
    HALF_TYPES,
    PLAIN_TYPES,
    apart,
    differentiable_gradients,
    is_tracing,
    is_transformed,
    kept,
)
from whvi._kernel.hartley import hartley_levels, hartley_takes
from whvi.transforms.mixing import Factors, MixingByHand


class _Tables(NamedTuple):
    """Constants of a size. Packed means ``view_as_real`` of ``m`` complex numbers, flat."""

    twiddle: Tensor  # w / √D, complex (m,): an rfft that is not orthonormal is one pass less
    untwiddle: Tensor  # w̄ / 2√D
    pack: Tensor  # (2m,): which coefficient stands where
    unpack: Tensor  # (D,): where each stands; the first place of those that stand twice
    rows: Tensor  # (D,): order in which the rfft takes a row
    rows_back: Tensor  # its inverse


def _make_tables(angle: str, size: int, dtype: torch.dtype, device: torch.device) -> _Tables:
    k = torch.arange(size // 2 + 1, dtype=torch.float64)
    phase = torch.full_like(k, math.pi / 4)
    rows = torch.arange(size)
    if angle == "dct":
        phase[1:] = math.pi * k[1:] / (2 * size)
        rows = torch.cat([rows[::2], rows[1::2].flip(0)])
        rows = rows[-torch.arange(size) % size]  # the conjugate of F, and so signs are all plus
    size_of_w = math.sqrt(2 / size)
    real, imaginary = ((size_of_w * f(phase)).to(dtype) for f in (torch.cos, torch.sin))
    twiddle = torch.complex(real, imaginary)
    low = torch.arange(len(k))
    pack = torch.stack([low, -low % size], -1).flatten()
    unpack = torch.cat([2 * low, 2 * torch.arange(size - len(k), 0, -1) + 1])
    indices = (pack, unpack, rows, rows.argsort())
    return _Tables(*(t.to(device) for t in (twiddle, twiddle.conj().resolve_conj() / 2, *indices)))


_kept_tables = kept(_make_tables)


def _is_watched(*tensors: Tensor) -> bool:
    """Tell whether torch has to see every operation: in a trace, under torch.func."""
    return is_tracing() or is_transformed() or any(type(t) not in PLAIN_TYPES for t in tensors)


def _select(x: Tensor, index: Tensor) -> Tensor:
    """Return the entries ``index`` of the last axis; torch is fast at it for two axes only."""
    return x.reshape(-1, x.shape[-1]).index_select(1, index).view(*x.shape[:-1], len(index))


def _analyse(x: Tensor, tables: _Tables) -> Tensor:
    """Return the packed coefficients of rows ``x``."""
    return torch.view_as_real(torch.fft.rfft(x).mul_(tables.twiddle)).flatten(-2)


def _synthesise(packed: Tensor, tables: _Tables, size: int) -> Tensor:
    """Return the rows that have these packed coefficients, which are overwritten."""
    spectrum = torch.view_as_complex(packed.unflatten(-1, (-1, 2))).mul_(tables.untwiddle)
    rows: Tensor = torch.fft.irfft(spectrum, n=size, norm="forward")  # not scaled
    return rows


class FourierMixing(MixingByHand):
    """``M(g)`` by real FFTs: one node of autograd whose backward pass is as fast as its forward."""

    def __init__(self, size: int) -> None:
        self.size = size

    @staticmethod
    def round_up(size: int) -> int:
        """Return ``size``: every one is taken."""
        return size

    def mix(self, v: Tensor, g: Tensor, *learned: Tensor) -> Tensor:
        """See :meth:`Mixing.mix`."""
        if v.dtype in HALF_TYPES:
            return self.mix(v.float(), g.float()).to(v.dtype)
        if _is_watched(v, g):
            return self.run(v, g)[0]
        if not (v.numel() and g.numel()):
            return v * g  # MKL takes no empty batches
        if torch.is_grad_enabled() and (v.requires_grad or g.requires_grad):
            y: Tensor = _apply(self, v, g)
            return y
        return self.run(v, g)[0]


class _Mix(torch.autograd.Function):
    """``M(g) v`` under plain autograd; gradients of gradients are those of the operations."""

    @staticmethod
    def forward(ctx: Any, mixing: FourierMixing, v: Tensor, g: Tensor) -> Tensor:
        y, kept = mixing.run(v, g)
        ctx.mixing = mixing
        ctx.save_for_backward(v, g, *kept)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        v, g, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            v, g = apart((v, g))
            y = ctx.mixing.run(v, g)[0]
            to_v, to_g = differentiable_gradients(y, (v, g), grads[0])
            return None, to_v, to_g
        to_v, to_g = ctx.mixing.gradients(tuple(kept), grads[0], g.shape)
        return None, to_v.sum_to_size(v.shape), to_g


# Function.apply without its search for torch.func wrappers: _is_watched has excluded them
_apply: Any = super(torch.autograd.Function, _Mix).apply


class _Steps(NamedTuple):
    """The two halves of a mixing and the order of entries between them."""

    enter: Callable[[Tensor], Tensor]
    leave: Callable[[Tensor], Tensor]
    order: Tensor  # which entry stands where
    place: Tensor  # where each entry stands


class _Symmetric(FourierMixing):
    """``M(g) v = leave(hidden(g) * enter(v))``; ``hidden`` is the order of entries inside."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return ``T x`` along the last axis."""

    @abstractmethod
    def transpose(self, x: Tensor) -> Tensor:
        """Return ``Tᵀ x`` along the last axis."""

    @abstractmethod
    def _enter(self, v: Tensor) -> Tensor:
        """Return ``Tᵀ v`` in the hidden order."""

    @abstractmethod
    def _leave(self, u: Tensor) -> Tensor:
        """Return ``T u`` of a ``u`` in the hidden order, which may be overwritten."""

    @abstractmethod
    def _orders(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return which entry stands where, and where each entry stands."""

    def _steps(self, *tensors: Tensor, owned: bool) -> _Steps:
        like = tensors[0]
        if hartley_takes(self.size, *tensors) and (owned or not _is_watched(*tensors)):
            levels = hartley_levels(self.size, like.dtype, is_dct=self.name == "dct")
            enter = partial(levels.down, owned=owned)
            return _Steps(enter, levels.up, levels.order, levels.place)
        return _Steps(self._enter, self._leave, *self._orders(like))

    def run(
        self, v: Tensor, g: Tensor, *, owned: bool = False
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return ``M(g) v`` and what :meth:`gradients` needs."""
        steps = self._steps(v, g, owned=owned)
        gains, u = _select(g, steps.order), steps.enter(v)
        return steps.leave(gains * u), (gains, u)

    def gradients(
        self, kept: tuple[Tensor, ...], grad: Tensor, g_shape: torch.Size, *, owned: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of ``v`` and ``g``."""
        gains, u = kept
        steps = self._steps(u, gains, owned=owned)
        back = steps.enter(grad)
        to_gains = (back * u).sum_to_size(*g_shape[:-1], u.shape[-1])
        return steps.leave(back.mul_(gains)), _select(to_gains, steps.place)

    def factors(self, v: Tensor) -> Factors:
        """See :meth:`Mixing.factors`."""
        unit = torch.eye(self.size, dtype=v.dtype, device=v.device)
        return [(self.transpose(unit), self.transpose(v))]

    def _tables(self, like: Tensor) -> _Tables:
        make = _make_tables if _is_watched(like) else _kept_tables
        return make(self.name, self.size, like.dtype, like.device)


@final
class Hartley(_Symmetric):
    """``T`` is the orthonormal Hartley transform, which is symmetric."""

    name = "hartley"

    def forward(self, x: Tensor) -> Tensor:
        """Return ``T x`` along the last axis."""
        tables = self._tables(x)
        return _select(_analyse(x, tables), tables.unpack)

    transpose = forward

    def _enter(self, v: Tensor) -> Tensor:
        return _analyse(v, self._tables(v))

    def _leave(self, u: Tensor) -> Tensor:
        return _synthesise(u, self._tables(u), self.size)

    def _orders(self, like: Tensor) -> tuple[Tensor, Tensor]:
        tables = self._tables(like)
        return tables.pack, tables.unpack


@final
class Dct(_Symmetric):
    """``T`` is the orthonormal DCT-II, ``Tᵀ`` its inverse, the DCT-III."""

    name = "dct"

    def forward(self, x: Tensor) -> Tensor:
        """Return ``T x`` along the last axis."""
        return self._leave(_select(x, self._tables(x).rows))

    def transpose(self, x: Tensor) -> Tensor:
        """Return ``Tᵀ x`` along the last axis."""
        return _select(self._enter(x), self._tables(x).rows_back)

    def _enter(self, v: Tensor) -> Tensor:
        tables = self._tables(v)
        return _synthesise(_select(v, tables.pack), tables, self.size)

    def _leave(self, u: Tensor) -> Tensor:
        tables = self._tables(u)
        return _select(_analyse(u, tables), tables.unpack)

    def _orders(self, like: Tensor) -> tuple[Tensor, Tensor]:
        tables = self._tables(like)
        return tables.rows, tables.rows_back


class _CirculantTables(NamedTuple):
    """Constants of a size: how ``g`` and the packed spectrum ``ĉ`` become each other."""

    pack: Tensor  # (2m,): which entry of g stands where
    scale: Tensor  # (2m,): 1, 2**-½, or 0 where nothing stands
    unpack: Tensor  # (D,): where each entry stands
    weight: Tensor  # (D,): 1 or √2, twice the scale where a frequency stands for two


def _make_circulant(size: int, dtype: torch.dtype, device: torch.device) -> _CirculantTables:
    entry = torch.arange(size)
    unpack = entry + (entry > 0)
    is_single = (entry == 0) | ((entry == size - 1) & (size % 2 == 0))
    weight = (2.0 - is_single.double()).sqrt().to(dtype)
    num_places = 2 * (size // 2 + 1)
    pack = torch.zeros(num_places, dtype=torch.int64)
    scale = torch.zeros(num_places, dtype=dtype)
    pack[unpack], scale[unpack] = entry, 1 / weight
    return _CirculantTables(*(t.to(device) for t in (pack, scale, unpack, weight)))


_kept_circulant = kept(_make_circulant)


@final
class Circulant(FourierMixing):
    """``M(g) = F* diag(ĉ) F``, a real circulant matrix; ``g`` holds ``ĉ`` in the real basis.

    It is not symmetric, so ``M(g)`` is not ``T diag(g) Tᵀ`` with one real ``T``, but its columns
    as functions of ``g`` are orthonormal all the same: ``‖M(g)‖ = ‖g‖``.
    """

    name = "circulant"

    def _tables(self, like: Tensor) -> _CirculantTables:
        make = _make_circulant if _is_watched(like) else _kept_circulant
        return make(self.size, like.dtype, like.device)

    def run(
        self, v: Tensor, g: Tensor, *, owned: bool = False
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return ``M(g) v`` and what :meth:`gradients` needs."""
        tables = self._tables(g)
        packed = _select(g, tables.pack) * tables.scale
        spectrum = torch.view_as_complex(packed.unflatten(-1, (-1, 2)))
        u = torch.fft.rfft(v, norm="ortho")
        return torch.fft.irfft(spectrum * u, n=self.size, norm="ortho"), (spectrum, u)

    def gradients(
        self, kept: tuple[Tensor, ...], grad: Tensor, g_shape: torch.Size, *, owned: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of ``v`` and ``g``: ``Cᵀ`` has the conjugate spectrum."""
        (spectrum, u), tables = kept, self._tables(grad)
        back = torch.fft.rfft(grad, norm="ortho")
        to_spectrum = (back * u.conj()).sum_to_size(*g_shape[:-1], u.shape[-1])
        packed = torch.view_as_real(to_spectrum).flatten(-2)
        to_g = _select(packed, tables.unpack) * tables.weight
        to_v = torch.fft.irfft(back.mul_(spectrum.conj()), n=self.size, norm="ortho")
        return to_v, to_g

    def factors(self, v: Tensor) -> Factors:
        """See :meth:`Mixing.factors`: one for each part of the spectrum of ``v``, real, imaginary.

        A pulse has the spectrum one, so ``M(g)`` of it is the basis; times ``i`` it is ``turned``.
        """
        tables = self._tables(v)
        unit = torch.eye(self.size, dtype=v.dtype, device=v.device)
        basis = self.run(unit[0] * math.sqrt(self.size), unit)[0].mT
        entry = torch.arange(self.size, device=v.device)
        is_real = entry % 2 == 1
        turned = torch.where(is_real, entry + 1, entry - 1).clamp(0, self.size - 1)
        sign = torch.where(tables.weight == 1, 0.0, torch.where(is_real, 1.0, -1.0)).to(v)
        parts = torch.view_as_real(torch.fft.rfft(v, norm="ortho"))
        real, imaginary = parts.index_select(-2, tables.unpack // 2).unbind(-1)
        return [(basis, real), (_select(basis, turned), sign * imaginary)]
