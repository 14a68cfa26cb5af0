r"""Kernels of unit variance and unit lengthscale: in closed form, and what their features need.

A stationary kernel is the mean of a cosine over random frequencies (Bochner), an arc-cosine kernel
the mean of products of (rectified) signs (Cho and Saul, 2009):

.. math:: k(x, z) = \mathbb{E}_\omega \cos \omega^\top (x - z), \qquad
          k_n(x, z) = 2\, \mathbb{E}_\omega\, s_n(\omega^\top \tilde x)\, s_n(\omega^\top \tilde z)

| kernel | frequencies ω (z ~ N(0, I)) | waves of a phase p = ωᵀx |
|---|---|---|
| ``RBF``: exp(−r²/2) | z | cos p, sin p |
| ``Matern(ν)``, ν = 1/2, 3/2, 5/2 | z √(2ν / χ²_2ν): Student-t | cos p, sin p |
| ``ArcCosine(0)``: 1 − θ/π | z | [p > 0] |
| ``ArcCosine(1)``: ‖x̃‖‖z̃‖ (sin θ + (π − θ) cos θ)/π | z | max(p, 0) |

``r = ‖x − z‖``; ``θ`` is the angle between ``x̃ = (x, 1)`` and ``z̃ = (z, 1)``: the constant makes
the arc-cosine kernels able to represent functions that do not pass through the origin.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from whvi.errors import ConfigError
from whvi.gp.waves import cos_sin


class Kernel(ABC):
    """A kernel on inputs that are already divided by their lengthscales."""

    features_per_frequency: int
    num_extra_normals = 0  # standard normals per frequency, besides its direction
    has_constant = False  # whether a constant 1 is appended to the inputs

    @abstractmethod
    def matrix(self, x: Tensor, z: Tensor) -> Tensor:
        """Return ``k(x, z)`` for rows ``x (..., N, d)`` and ``z (..., P, d)``: ``(..., N, P)``."""

    @abstractmethod
    def waves(self, phases: Tensor) -> Tensor:
        """Map phases ``(..., J)`` to ``(..., M)``, ``M = J · features_per_frequency``.

        ``φ = (2/M)^{1/2} waves`` has ``φ(x)·φ(z) ≈ k(x, z)``.
        """

    def frequency_scale(self, normals: Tensor) -> Tensor:
        """Return what multiplies each frequency, ``(J,)``, from ``(J, num_extra_normals)``."""
        return normals.new_ones(len(normals))


class _Stationary(Kernel):
    """A function of the distance, with a cosine and a sine per frequency."""

    features_per_frequency = 2

    def matrix(self, x: Tensor, z: Tensor) -> Tensor:
        """See :meth:`Kernel.matrix`."""
        # differences, not |x|² + |z|² − 2xz: small distances keep their digits
        return self._of_distance(torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist"))

    def waves(self, phases: Tensor) -> Tensor:
        """Return ``[cos p, sin p]``."""
        return cos_sin(phases)

    @abstractmethod
    def _of_distance(self, r: Tensor) -> Tensor: ...


@final
@dataclass(frozen=True)
class RBF(_Stationary):
    """``exp(−r²/2)``: infinitely smooth functions."""

    def _of_distance(self, r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r.square())


@final
@dataclass(frozen=True)
class Matern(_Stationary):
    """Matérn kernels: functions with 0, 1 or 2 derivatives.

    Attributes:
        nu: Smoothness, 1/2, 3/2 or 5/2.
    """

    nu: float = 1.5

    def __post_init__(self) -> None:
        if self.nu not in (0.5, 1.5, 2.5):
            raise ConfigError(f"nu of a Matérn kernel must be 0.5, 1.5 or 2.5, got {self.nu!r}")

    @property
    def num_extra_normals(self) -> int:  # type: ignore[override]  # a constant elsewhere
        """``2ν`` normals make up a chi-square variable."""
        return round(2 * self.nu)

    def frequency_scale(self, normals: Tensor) -> Tensor:
        """Return ``√(2ν / χ²_2ν)``: Student-t frequencies."""
        return (2 * self.nu / normals.square().sum(-1)).sqrt()

    def _of_distance(self, r: Tensor) -> Tensor:
        t = math.sqrt(2 * self.nu) * r
        decay = torch.exp(-t)
        if self.nu == 0.5:
            return decay
        return decay * (1 + t if self.nu == 1.5 else 1 + t + t.square() / 3)


@final
@dataclass(frozen=True)
class ArcCosine(Kernel):
    """The kernel of an infinitely wide layer of steps (order 0) or of ReLUs (order 1).

    Attributes:
        order: 0 or 1.
    """

    order: int = 1
    features_per_frequency = 1
    has_constant = True

    def __post_init__(self) -> None:
        if self.order not in (0, 1):
            raise ConfigError(f"order of an arc-cosine kernel must be 0 or 1, got {self.order!r}")

    def matrix(self, x: Tensor, z: Tensor) -> Tensor:
        """See :meth:`Kernel.matrix`."""
        x, z = (functional.pad(v, (0, 1), value=1.0) for v in (x, z))
        x_norm, z_norm = (v.norm(dim=-1, keepdim=True) for v in (x, z))
        a, b = x / x_norm, z / z_norm
        # the angle from chord lengths: an arc cosine loses half the digits near 0
        theta = 2 * torch.atan2(
            torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist"),
            torch.cdist(a, -b, compute_mode="donot_use_mm_for_euclid_dist"),
        )
        if self.order == 0:
            return 1 - theta / math.pi
        angular = (theta.sin() + (math.pi - theta) * theta.cos()) / math.pi
        matrix: Tensor = x_norm * z_norm.mT * angular
        return matrix

    def waves(self, phases: Tensor) -> Tensor:
        """Return steps or ReLUs of the phases."""
        return (phases > 0).to(phases.dtype) if self.order == 0 else phases.relu()


KERNELS: dict[str, Kernel] = {
    "rbf": RBF(),
    "matern12": Matern(0.5),
    "matern32": Matern(1.5),
    "matern52": Matern(2.5),
    "arccos0": ArcCosine(0),
    "arccos1": ArcCosine(1),
}
"""The names that ``kernel=`` accepts."""


def make_kernel(kernel: str | Kernel) -> Kernel:
    """Return the kernel that a name or a kernel stands for."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel not in KERNELS:
        names = ", ".join(map(repr, KERNELS))
        raise ConfigError(f"kernel must be one of {names} or a Kernel, got {kernel!r}")
    return KERNELS[kernel]
