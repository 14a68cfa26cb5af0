r"""Random features: ``φ(x)·φ(z) ≈ σ_f² k(x/ℓ, z/ℓ)`` with an error of order ``1/√M``."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import check_last_dim, check_positive, check_positive_int
from whvi.errors import ShapeError
from whvi.gp.kernels import Kernel, make_kernel
from whvi.gp.projections import draw_frequencies


@final
class RandomFeatures(nn.Module):
    r"""``φ(x) = σ_f (2/M)^{1/2} s(x diag(1/ℓ) Ω)``, for example ``s(p) = [cos p, sin p]``.

    ``Ω`` is drawn once, from ``seed``, and kept; the lengthscales ``ℓ`` (one per input: ARD) and
    the variance ``σ_f²`` are parameters, so that they can be learned. These few numbers are
    float64, as second-order optimisers need them; inputs may have any floating dtype.

    Args:
        in_features: ``d``.
        num_features: ``M``. An odd one leaves out the last sine: a bias of order ``1/M``.
        kernel: A name of :data:`whvi.gp.kernels.KERNELS` or a kernel.
        projection: A name of :data:`whvi.gp.projections.PROJECTIONS`.
        lengthscale: Initial ``ℓ`` of every input.
        variance: Initial ``σ_f²``.
        seed: Decides the frequencies; the same for every dtype.
        dtype: Of phases and features; ``None`` is torch's default.
    """

    def __init__(
        self,
        in_features: int,
        num_features: int,
        *,
        kernel: str | Kernel = "rbf",
        projection: str = "orthogonal",
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
        self.projection_name = projection
        drawn = draw_frequencies(
            projection,
            in_features + self.kernel.has_constant,
            -(-num_features // self.kernel.features_per_frequency),
            num_extra=self.kernel.num_extra_normals,
            generator=torch.Generator().manual_seed(seed),
        )
        drawn.projection.rescale(self.kernel.frequency_scale(drawn.extra_normals))
        self.dtype = dtype or torch.get_default_dtype()
        self.projection = drawn.projection.to(self.dtype)
        lengths = torch.full((in_features,), math.log(lengthscale), dtype=torch.float64)
        self.log_lengthscale = nn.Parameter(lengths)
        self.log_variance = nn.Parameter(torch.tensor(math.log(variance), dtype=torch.float64))

    @property
    def lengthscale(self) -> Tensor:
        """``ℓ``, shape ``(d,)``."""
        return self.log_lengthscale.exp()

    @property
    def variance(self) -> Tensor:
        """``σ_f²``, the prior variance of the function (at the origin for arc-cosine kernels)."""
        return self.log_variance.exp()

    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``(..., d)`` to features ``(..., M)``."""
        return self.waves(x) * self.scale.to(self.dtype)

    @property
    def scale(self) -> Tensor:
        """``σ_f (2/M)^{1/2}``."""
        scale: Tensor = (0.5 * self.log_variance).exp() * (2 / self.num_features) ** 0.5
        return scale

    @property
    def inverse_lengthscale(self) -> Tensor:
        """``1/ℓ``, shape ``(d,)``."""
        return (-self.log_lengthscale).exp()

    def waves(self, x: Tensor, inverse_lengthscale: Tensor | None = None) -> Tensor:
        """Map rows ``(..., d)`` to ``φ(x) / scale``, shape ``(..., M)``; ``1/ℓ`` if known."""
        return self.kernel.waves(self.phases(x, inverse_lengthscale))[..., : self.num_features]

    def phases(self, x: Tensor, inverse_lengthscale: Tensor | None = None) -> Tensor:
        """Return ``x diag(1/ℓ) Ω``, shape ``(..., J)``, of rows ``(..., d)``; ``1/ℓ`` if known."""
        self._check(x)
        unit = self.inverse_lengthscale if inverse_lengthscale is None else inverse_lengthscale
        scaled = (x * unit).to(self.dtype)
        if self.kernel.has_constant:
            scaled = functional.pad(scaled, (0, 1), value=1.0)
        phases: Tensor = self.projection(scaled)
        return phases

    def kernel_matrix(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Return the kernel itself, ``σ_f² k(x/ℓ, z/ℓ)``, shape ``(..., N, P)``; ``z = x``."""
        self._check(x)
        unit = self.inverse_lengthscale
        other = x if z is None else z
        self._check(other)
        return self.kernel.matrix(x * unit, other * unit) * self.variance

    def extra_repr(self) -> str:
        """Show the map."""
        return (
            f"in_features={self.in_features}, num_features={self.num_features}, "
            f"kernel={self.kernel}, projection={self.projection_name!r}"
        )

    def _check(self, x: Tensor) -> None:
        check_last_dim("input", x, self.in_features)
        if not x.is_floating_point():
            raise ShapeError(f"input must have a floating dtype, got {x.dtype}; use x.float()")
