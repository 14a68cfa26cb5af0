r"""The map between the scales of a structured matrix, ``M(g) = T diag(g) Tᵀ``.

``W = diag(s1) M(g) diag(s2)``. For any orthonormal ``T``, ``M`` is linear in ``g`` and preserves
its norm, ``‖M(g)‖² = ‖g‖²`` (Frobenius), so that entries of ``W`` have the variance
``var(g) / D`` on average.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from whvi._checks import block_size_for
from whvi.errors import ConfigError
from whvi.transforms.fwht import fwht
from whvi.transforms.plain import hadamard_matrix

_TOLERANCE = 1e-4  # of the check of a user's object, in float32
_NUM_CHECKED = 8

Factors = list[tuple[Tensor, Tensor]]


class Mixing(ABC):
    """``M(g)``, ``D × D`` and linear in ``g``. Subclasses with parameters are modules as well."""

    name: str
    size: int  # D

    @abstractmethod
    def mix(self, v: Tensor, g: Tensor) -> Tensor:
        """Return ``M(g) v``; ``v`` and ``g`` have shapes ``(*batch_shape, ..., D)``."""

    @abstractmethod
    def factors(self, v: Tensor) -> Factors:
        """Return pairs of a matrix ``T`` and ``u`` with ``M(g) v = Σ T (u * g)``.

        Matrices have shape ``(*batch_shape, D, D)``, vectors that of ``v``.
        """

    def reset_parameters(self, *, generator: torch.Generator | None = None) -> None:
        """Draw a new starting point of what is learned; by default nothing is."""
        return


class MixingByHand(Mixing):
    """A mixing that knows its gradients, so that a layer can be one node of the autograd graph."""

    learned: tuple[Tensor, ...] = ()
    """Tensors beside ``v`` and ``g`` that have gradients."""

    def has_gradients_for(self, x: Tensor) -> bool:
        """Tell whether :meth:`run` and :meth:`gradients` take rows like ``x``, now."""
        return True

    @abstractmethod
    def mix(self, v: Tensor, g: Tensor, *learned: Tensor) -> Tensor:
        """Return ``M(g) v``, by other ``learned`` tensors if they are given."""

    @abstractmethod
    def run(
        self, v: Tensor, g: Tensor, *, owned: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return ``M(g) v`` and what :meth:`gradients` needs; ``v`` is overwritten if ``owned``."""

    @abstractmethod
    def gradients(
        self, kept: tuple[Tensor, ...], grad: Tensor, g_shape: torch.Size, *, owned: bool = False
    ) -> tuple[Tensor, ...]:
        """Return the gradients of ``v``, ``g`` and ``learned``.

        ``grad`` is overwritten if ``owned``.
        """


@final
@dataclass(eq=False)
class Hadamard(Mixing):
    """``M(g) = H diag(g) H``: the paper's. Layers run it in the compiled kernel."""

    size: int
    name = "hadamard"

    @staticmethod
    def round_up(size: int) -> int:
        """Return the size of a block that takes ``size`` entries."""
        return block_size_for(size)

    def mix(self, v: Tensor, g: Tensor) -> Tensor:
        """See :meth:`Mixing.mix`."""
        return fwht(g * fwht(v))

    def factors(self, v: Tensor) -> Factors:
        """See :meth:`Mixing.factors`."""
        return [(hadamard_matrix(self.size, dtype=v.dtype, device=v.device), fwht(v))]


class Transform(Protocol):
    """An orthonormal map ``T`` of the last axis, and its transpose: what a user may bring."""

    size: int

    def forward(self, x: Tensor) -> Tensor:
        """Return ``T x``."""

    def transpose(self, x: Tensor) -> Tensor:
        """Return ``Tᵀ x``."""


@final
class Given(nn.Module, Mixing):
    """``M(g) = T diag(g) Tᵀ`` for a user's object.

    Its parameters, if it is a module, are trained with the layer and shared by replicas.

    Args:
        transform: Has ``size``, ``forward`` and ``transpose``.

    Raises:
        ConfigError: ``T`` is not orthonormal, or ``transpose`` not its transpose.
    """

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform, self.size = transform, int(transform.size)
        self.name = type(transform).__name__
        self._check()

    @torch.no_grad()
    def _check(self) -> None:
        """Compare ``Tᵀ T x`` and ``T Tᵀ x`` with ``x`` for random ``x``."""
        generator = torch.Generator().manual_seed(0)
        parameter = next(self.parameters(), None)
        x = torch.randn(_NUM_CHECKED, self.size, generator=generator)
        x = x if parameter is None else x.to(parameter)
        forward, transpose = self.transform.forward, self.transform.transpose
        for name, y in (("TᵀT", transpose(forward(x))), ("TTᵀ", forward(transpose(x)))):
            if y.shape != x.shape:
                raise ConfigError(f"{self.name} maps {tuple(x.shape)} to {tuple(y.shape)}")
            deviation = float((y - x).abs().max())
            if not deviation <= _TOLERANCE:
                raise ConfigError(
                    f"{self.name} of size {self.size} is not orthonormal: {name} x deviates from "
                    f"x by up to {deviation:.3g} for random x; transpose(forward(x)) must be x"
                )

    def mix(self, v: Tensor, g: Tensor) -> Tensor:
        """See :meth:`Mixing.mix`."""
        y: Tensor = self.transform.forward(g * self.transform.transpose(v))
        return y

    def factors(self, v: Tensor) -> Factors:
        """See :meth:`Mixing.factors`."""
        unit = torch.eye(self.size, dtype=v.dtype, device=v.device)
        return [(self.transform.transpose(unit), self.transform.transpose(v))]
