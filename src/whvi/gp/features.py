r"""Kernels and their random features: ``φ(x)·φ(z) ≈ σ_f² k(x/ℓ, z/ℓ)``, error of order ``1/√M``.

A stationary kernel is the mean of a cosine over random frequencies (Bochner), an arc-cosine kernel
the mean of products of (rectified) signs (Cho and Saul, 2009), so ``M`` features are

.. math:: \varphi(x) = \sigma_f \sqrt{2/M}\; s(x\, \mathrm{diag}(1/\ell)\, \Omega)

| kernel of unit variance and lengthscale | frequencies ω (z ~ N(0, I)) | waves s(p), p = ωᵀx |
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
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import check_last_dim, check_positive, check_positive_int
from whvi._kernel.backend import is_tracing, is_transformed
from whvi.errors import ConfigError, ShapeError
from whvi.gp.projections import Projection, draw_frequencies


class Kernel(ABC):
    """A kernel on inputs that are already divided by their lengthscales."""

    features_per_frequency = 2
    degrees = 0  # of freedom of Student-t frequencies; 0: normal ones
    has_constant = False  # whether a constant 1 is appended to the inputs

    def projection_shape(self, in_features: int, num_features: int) -> tuple[int, int]:
        """Return the shape of ``Ω`` for ``M`` features of ``d`` inputs."""
        return in_features + self.has_constant, -(-num_features // self.features_per_frequency)

    @abstractmethod
    def matrix(self, x: Tensor, z: Tensor) -> Tensor:
        """Return ``k(x, z)`` for rows ``x (..., N, d)`` and ``z (..., P, d)``: ``(..., N, P)``."""

    def waves(self, phases: Tensor) -> Tensor:
        """Map phases ``(..., J)`` to ``s(p) (..., J · features_per_frequency)``: cosines, sines."""
        return cos_sin(phases)


def _distances(x: Tensor, z: Tensor) -> Tensor:
    # differences, not |x|² + |z|² − 2xz: small distances keep their digits
    return torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist")


@final
@dataclass(frozen=True)
class RBF(Kernel):
    """``exp(−r²/2)``: infinitely smooth functions."""

    def matrix(self, x: Tensor, z: Tensor) -> Tensor:
        """See :meth:`Kernel.matrix`."""
        return torch.exp(-0.5 * _distances(x, z).square())


@final
@dataclass(frozen=True)
class Matern(Kernel):
    """Matérn kernels of smoothness ``nu``, 1/2, 3/2 or 5/2: 0, 1 or 2 derivatives."""

    nu: float = 1.5

    def __post_init__(self) -> None:
        if self.nu not in (0.5, 1.5, 2.5):
            raise ConfigError(f"nu of a Matérn kernel must be 0.5, 1.5 or 2.5, got {self.nu!r}")

    @property
    def degrees(self) -> int:  # type: ignore[override]  # a constant elsewhere
        """``2ν``."""
        return round(2 * self.nu)

    def matrix(self, x: Tensor, z: Tensor) -> Tensor:
        """See :meth:`Kernel.matrix`."""
        t = math.sqrt(2 * self.nu) * _distances(x, z)
        decay = torch.exp(-t)
        if self.nu == 0.5:
            return decay
        return decay * (1 + t if self.nu == 1.5 else 1 + t + t.square() / 3)


@final
@dataclass(frozen=True)
class ArcCosine(Kernel):
    """The kernel of an infinitely wide layer of steps (order 0) or of ReLUs (order 1)."""

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
        theta = 2 * torch.atan2(_distances(a, b), _distances(a, -b))
        if self.order == 0:
            return 1 - theta / math.pi
        angular = (theta.sin() + (math.pi - theta) * theta.cos()) / math.pi
        matrix: Tensor = x_norm * z_norm.mT * angular
        return matrix

    def waves(self, phases: Tensor) -> Tensor:
        """Return steps (whose gradient is zero) or ReLUs of the phases."""
        return phases.sign().relu() if self.order == 0 else phases.relu()


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
    """Return the kernel of a name; a kernel is returned unchanged."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel not in KERNELS:
        names = ", ".join(map(repr, KERNELS))
        raise ConfigError(f"kernel must be one of {names} or a Kernel, got {kernel!r}")
    return KERNELS[kernel]


@final
class RandomFeatures(nn.Module):
    r"""``φ(x) = σ_f (2/M)^{1/2} s(x diag(1/ℓ) Ω)``, for example ``s(p) = [cos p, sin p]``.

    ``Ω`` is drawn once, from ``seed``, and kept; the lengthscales ``ℓ`` (one per input: ARD) and
    the variance ``σ_f²`` are parameters, so that they can be learned. These few numbers are
    float64, as second-order optimisers need them; inputs may have any floating dtype.

    Args:
        in_features: ``d``.
        num_features: ``M``. An odd one leaves out the last sine: a bias of order ``1/M``.
        kernel: A name of :data:`KERNELS` or a kernel.
        projection: A name of :data:`whvi.gp.projections.PROJECTIONS`, or a projection: then its
            frequencies are used unchanged, for every kernel.
        lengthscale, variance: Initial ``ℓ`` of every input, and ``σ_f²``.
        seed: Decides the frequencies; the same for every dtype.
        dtype: Of phases and features; ``None`` is torch's default.
    """

    def __init__(
        self,
        in_features: int,
        num_features: int,
        *,
        kernel: str | Kernel = "rbf",
        projection: str | Projection = "orthogonal",
        lengthscale: float = 1.0,
        variance: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("in_features", in_features)
        check_positive_int("num_features", num_features)
        check_positive("lengthscale", lengthscale)
        check_positive("variance", variance)
        self.kernel = make_kernel(kernel)
        self.in_features, self.num_features = in_features, num_features
        self.dtype = dtype or torch.get_default_dtype()
        self.projection = self._make_projection(projection, seed)
        lengths = torch.full((in_features,), math.log(lengthscale), dtype=torch.float64)
        self.log_lengthscale = nn.Parameter(lengths)
        self.log_variance = nn.Parameter(torch.tensor(math.log(variance), dtype=torch.float64))

    def _make_projection(self, projection: str | Projection, seed: int) -> Projection:
        d, J = self.kernel.projection_shape(self.in_features, self.num_features)
        if isinstance(projection, Projection):
            if (found := (projection.in_features, projection.num_frequencies)) != (d, J):
                raise ConfigError(f"a projection of shape {(d, J)} is needed, got {found}")
            return projection
        degrees, generator = self.kernel.degrees, torch.Generator().manual_seed(seed)
        drawn, extra = draw_frequencies(projection, d, J, num_extra=degrees, generator=generator)
        if degrees:
            drawn.rescale((degrees / extra.square().sum(-1)).sqrt())
        return drawn.to(self.dtype)

    @property
    def lengthscale(self) -> Tensor:
        """``ℓ``, shape ``(d,)``."""
        return self.log_lengthscale.exp()

    @property
    def inverse_lengthscale(self) -> Tensor:
        """``1/ℓ``, shape ``(d,)``."""
        return (-self.log_lengthscale).exp()

    @property
    def variance(self) -> Tensor:
        """``σ_f²``, the prior variance of the function (at the origin for arc-cosine kernels)."""
        return self.log_variance.exp()

    @property
    def scale(self) -> Tensor:
        """``σ_f (2/M)^{1/2}``."""
        scale: Tensor = (0.5 * self.log_variance).exp() * (2 / self.num_features) ** 0.5
        return scale

    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``(..., d)`` to features ``(..., M)``."""
        return self.waves(x) * self.scale.to(self.dtype)

    def waves(self, x: Tensor, scaling: Tensor | None = None) -> Tensor:
        """Map rows ``(..., d)`` to ``φ(x) / scale (..., M)``; :meth:`scaling`, if known."""
        return self.kernel.waves(self.phases(x, scaling))[..., : self.num_features]

    def phases(self, x: Tensor, scaling: Tensor | None = None) -> Tensor:
        """Return ``x diag(1/ℓ) Ω``, shape ``(..., J)``; :meth:`scaling`, if known."""
        check_last_dim("input", x, self.in_features)
        if not x.is_floating_point():
            raise ShapeError(f"input must have a floating dtype, got {x.dtype}; use x.float()")
        scaling = self.scaling() if scaling is None else scaling
        if self.kernel.has_constant:
            x = functional.pad(x, (0, 1), value=1.0)
        return self.projection.phases(x, scaling, self.dtype)

    def scaling(self) -> Tensor:
        """Return what the lengthscales are turned into before they meet rows, float64."""
        unit = self.inverse_lengthscale
        if self.kernel.has_constant:
            unit = functional.pad(unit, (0, 1), value=1.0)
        return self.projection.scaling(unit)

    @torch.no_grad()
    def jacobian(self, x: Tensor, weights: Tensor, scaling: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``waves (n, M)`` and ``∂(waves·weights)/∂(Ω or log ℓ) (n, P)``, float64."""
        rows = x.detach().requires_grad_()
        with torch.enable_grad():
            phases = self.phases(rows, scaling)
            waves = self.kernel.waves(phases)[..., : self.num_features]
        of = phases if self.projection.learned_frequencies() else rows
        (slopes,) = torch.autograd.grad(waves, of, weights.expand_as(waves))
        if of is rows:
            return waves.detach(), (-x * slopes).double()  # only x / ℓ enters
        unit = (x * self.inverse_lengthscale).unsqueeze(-1)
        return waves.detach(), (unit * slopes.double().unsqueeze(-2)).flatten(-2)

    def kernel_matrix(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Return the kernel itself, ``σ_f² k(x/ℓ, z/ℓ)``, shape ``(..., N, P)``; ``z = x``."""
        z = x if z is None else z
        unit = self.inverse_lengthscale
        return self.kernel.matrix(x * unit, z * unit) * self.variance

    def extra_repr(self) -> str:
        """Show the map."""
        return f"{self.in_features} → {self.num_features}, kernel={self.kernel}"


def cos_sin(phases: Tensor) -> Tensor:
    """Return ``[cos p, sin p]`` of phases ``(..., J)``, shape ``(..., 2J)``."""
    if is_tracing() or is_transformed():
        return torch.cat([phases.cos(), phases.sin()], -1)
    # apply() is not annotated in torch.
    return cast(Tensor, _CosSin.apply(phases))  # type: ignore[no-untyped-call]


class _CosSin(torch.autograd.Function):
    """The derivative of each half is the other half: no sine is computed twice."""

    @staticmethod
    def forward(ctx: Any, phases: Tensor) -> Tensor:
        half = phases.shape[-1]
        out = phases.new_empty(*phases.shape[:-1], 2 * half)
        torch.cos(phases, out=out[..., :half])
        torch.sin(phases, out=out[..., half:])
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        cos, sin = ctx.saved_tensors[0].chunk(2, -1)
        to_cos, to_sin = gradient.chunk(2, -1)
        return torch.addcmul(cos * to_sin, sin, to_cos, value=-1)
