r"""What a model that is linear in its coefficients is to the optimiser: ``f(x) = ψ(x)·a``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from whvi.gp.collapsed import check_covariance

Operands = tuple[Tensor, ...]
Tangent = Callable[[Tensor], tuple[Tensor, Tensor]]


class Basis(nn.Module, ABC):
    """A map ``ψ`` with parameters; the function is ``ψ(x)·a`` with ``a ~ N(0, I)``."""

    @property
    @abstractmethod
    def num_coefficients(self) -> int:
        """``K``, the length of ``a``."""

    @property
    @abstractmethod
    def row_elements(self) -> int:
        """Numbers that one row takes while ``ψ`` is computed: decides the size of chunks."""

    @abstractmethod
    def operands(self) -> Operands:
        """Return what the parameters are turned into before they meet rows, float64."""

    @abstractmethod
    def evaluate(self, x: Tensor, operands: Operands) -> Tensor:
        """Map rows ``(n, d)`` to ``ψ (n, K)``, given :meth:`operands`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``(n, d)`` to ``ψ (n, K)``."""
        return self.evaluate(x, self.operands())

    @abstractmethod
    def restart(self, x: Tensor, generator: torch.Generator) -> None:
        """Move to a new random start; ``x`` are training rows."""

    @abstractmethod
    def num_shape_parameters(self, *, count_inducing: bool = True) -> int:
        """Trained numbers besides ``q(a)`` and the hyper-parameters that every model has."""

    def prior_variance(self) -> Tensor | None:
        """``k(x, x)`` if ``ψ·a`` is only a part of the process; ``None`` if it is all of it."""
        return None

    def num_parameters(self, covariance: str, *, count_inducing: bool = True) -> int:
        """Count ``q(a)`` and what shapes ``ψ``; not lengthscales, variance and noise.

        Args:
            covariance: ``q(a)`` has ``2K`` numbers if diagonal, ``K + K(K+1)/2`` if full.
            count_inducing: Whether the locations of inducing points count.
        """
        check_covariance(covariance)
        size = self.num_coefficients
        posterior = 2 * size if covariance == "diagonal" else size + size * (size + 1) // 2
        return posterior + self.num_shape_parameters(count_inducing=count_inducing)
