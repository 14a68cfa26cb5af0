r"""Random projections ``x ↦ xΩ``: the columns of ``Ω`` are frequencies, marginally ``N(0, I_d)``.

| name | Ω | cost per row of J frequencies |
|---|---|---|
| ``"iid"`` | independent columns | O(J d) |
| ``"orthogonal"`` | blocks of d orthogonal columns with χ_d lengths (Yu et al., 2016) | O(J d) |
| ``"quasi"`` | scrambled Sobol' points through the normal quantile function | O(J d) |
| ``"fastfood"`` | blocks ``S H G Π H B`` (Le et al., 2013) | O(J log d) |
| ``"structured"`` | blocks ``S H S1 H S2 H S3``, random signs (Yu et al., 2016) | O(J log d) |

All but the last give columns that are exactly normal, so that random features are unbiased. In a
Fastfood block every row of ``H G Π H B`` is ``‖G‖`` times a uniform direction, and ``S`` exchanges
that common length for independent χ_D lengths. Rows of ``H S1 H S2 H S3`` are normal only by a
central limit theorem over ``D`` signs; small inputs are therefore padded to ``D`` of at least 64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import next_power_of_two
from whvi.errors import ConfigError
from whvi.functional import structured_product
from whvi.transforms import fwht

_LEAST_SIGNS = 64  # block size from which sums of signs are normal enough


class Projection(nn.Module):
    """A linear map ``(..., d) → (..., J)``."""

    in_features: int
    num_frequencies: int

    def scaling(self, inverse_lengthscale: Tensor) -> Tensor:
        """Turn ``1/ℓ (d,)`` into what :meth:`phases` needs, once for all rows."""
        return inverse_lengthscale

    def phases(self, x: Tensor, scaling: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ``x diag(1/ℓ) Ω``, shape ``(..., J)``, in ``dtype``, given :meth:`scaling`."""
        phases: Tensor = self((x * scaling).to(dtype))
        return phases

    def learned_frequencies(self) -> list[nn.Parameter]:
        """``Ω`` if it is trained, else nothing."""
        return []

    def restart(self, generator: torch.Generator) -> None:
        """Draw new frequencies, if every start of a search has its own."""


@final
class DenseProjection(Projection):
    """``Ω`` as a matrix ``(d, J)``."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.in_features, self.num_frequencies = frequencies.shape
        self.frequencies = nn.Buffer(frequencies)

    def forward(self, x: Tensor) -> Tensor:
        """Return the phases ``xΩ``, shape ``(..., J)``, of rows ``(..., d)``."""
        return x @ self.frequencies

    def rescale(self, scale: Tensor) -> None:
        """Multiply every frequency by its entry of ``scale (J,)``, in place."""
        self.frequencies.mul_(scale)


class _BlockProjection(Projection, ABC):
    """``K`` blocks of ``D`` frequencies share the padded input; the last one is trimmed."""

    scale: Tensor  # S: (K, D)

    def __init__(self, in_features: int, num_frequencies: int, block_size: int) -> None:
        super().__init__()
        self.in_features, self.num_frequencies = in_features, num_frequencies
        self.block_size = block_size
        self.vector_shape = (-(-num_frequencies // block_size), block_size)

    def rescale(self, scale: Tensor) -> None:
        self.scale.view(-1)[: len(scale)].mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (0, self.block_size - self.in_features)).unsqueeze(-2)
        return self._blocks(padded).flatten(-2)[..., : self.num_frequencies]

    @abstractmethod
    def _blocks(self, x: Tensor) -> Tensor:
        """Map ``(..., 1, D)`` to ``(..., K, D)``."""


@final
class FastfoodProjection(_BlockProjection):
    """Blocks ``S H G Π H B`` in O(D log D) each: ``B`` signs, ``Π`` a permutation, ``G`` normal."""

    def __init__(
        self, in_features: int, num_frequencies: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(in_features, num_frequencies, next_power_of_two(in_features))
        K, D = self.vector_shape
        gaussian = _normals((K, D), generator)
        lengths = _chi_lengths((K, D), D, generator)
        self.signs = nn.Buffer(_signs((K, D), generator))
        self.permutation = nn.Buffer(_permutations(K, D, generator))
        self.gaussian = nn.Buffer(gaussian)
        # H is orthonormal: rows of √D H G Π H B have length ‖G‖
        common = gaussian.norm(dim=-1, keepdim=True)
        self.scale = nn.Buffer(lengths * D**0.5 / common)

    def _blocks(self, x: Tensor) -> Tensor:
        mixed = fwht(self.signs * x).flatten(-2)
        shuffled = mixed.index_select(-1, self.permutation).unflatten(-1, self.vector_shape)
        return self.scale * fwht(self.gaussian * shuffled)


@final
class StructuredProjection(_BlockProjection):
    """Blocks ``S H S1 H S2 H S3`` of random signs in O(D log D) each, ``S`` of χ_D lengths."""

    def __init__(
        self, in_features: int, num_frequencies: int, generator: torch.Generator | None = None
    ) -> None:
        size = max(_LEAST_SIGNS, next_power_of_two(in_features))
        super().__init__(in_features, num_frequencies, size)
        self.s1 = nn.Buffer(_signs(self.vector_shape, generator))
        self.s2 = nn.Buffer(_signs(self.vector_shape, generator))
        self.s3 = nn.Buffer(_signs(self.vector_shape, generator))
        self.scale = nn.Buffer(_chi_lengths(self.vector_shape, size, generator))

    def _blocks(self, x: Tensor) -> Tensor:
        return structured_product(fwht(self.s3 * x), self.scale, self.s1, self.s2)


PROJECTIONS = ("iid", "orthogonal", "quasi", "fastfood", "structured")
"""The names that ``projection=`` accepts; the first three are stored as a matrix."""


def draw_frequencies(
    name: str,
    in_features: int,
    num_frequencies: int,
    *,
    num_extra: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[DenseProjection | _BlockProjection, Tensor]:
    """Draw one of :data:`PROJECTIONS`, and normals ``(J, num_extra)`` for a kernel; float64.

    ``generator=None`` is torch's default generator.
    """
    if name not in PROJECTIONS:
        names = ", ".join(map(repr, PROJECTIONS))
        raise ConfigError(f"projection must be one of {names}, got {name!r}")
    d, J = in_features, num_frequencies
    if name == "quasi":
        points = _sobol_normals(J, d + num_extra, generator)
        return DenseProjection(points[:, :d].T.contiguous()), points[:, d:]
    projection: DenseProjection | _BlockProjection
    if name == "fastfood":
        projection = FastfoodProjection(d, J, generator)
    elif name == "structured":
        projection = StructuredProjection(d, J, generator)
    else:
        is_iid = name == "iid"
        columns = _normals((d, J), generator) if is_iid else _orthogonal(d, J, generator)
        projection = DenseProjection(columns)
    return projection, _normals((J, num_extra), generator)


def _normals(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _signs(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    signs: Tensor = 2.0 * torch.randint(2, shape, generator=generator).double() - 1.0
    return signs


def _chi_lengths(shape: tuple[int, ...], degrees: int, generator: torch.Generator | None) -> Tensor:
    """Lengths of normal vectors with so many entries."""
    lengths: Tensor = _normals((*shape, degrees), generator).norm(dim=-1)
    return lengths


def _permutations(num: int, size: int, generator: torch.Generator | None) -> Tensor:
    """One permutation per block, as indices into the flattened blocks, ``(num · size,)``."""
    ranks = torch.rand((num, size), generator=generator, dtype=torch.float64).argsort(-1)
    return (ranks + size * torch.arange(num).unsqueeze(-1)).flatten()


def _orthogonal(d: int, J: int, generator: torch.Generator | None) -> Tensor:
    num_blocks = -(-J // d)
    directions, triangle = torch.linalg.qr(_normals((num_blocks, d, d), generator))
    # signs make the factor unique and its columns uniform on the sphere
    directions = directions * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = _chi_lengths((num_blocks, 1, d), d, generator)
    columns: Tensor = (directions * lengths).permute(1, 0, 2).flatten(1)[:, :J]
    return columns.contiguous()


def _sobol_normals(num_points: int, dim: int, generator: torch.Generator | None) -> Tensor:
    """Scrambled Sobol' points in the cube, moved to the normal distribution, ``(J, dim)``."""
    seed = int(torch.randint(2**31, (), generator=generator))
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed)
    points = engine.draw(num_points, dtype=torch.float64)
    tiny = 2.0**-33  # the engine's points are multiples of 2**-30: move them to the middle
    normals: Tensor = torch.special.ndtri((points + tiny).clamp(tiny, 1 - tiny))
    return normals
