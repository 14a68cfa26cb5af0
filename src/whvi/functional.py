r"""The structured product ``y = s1 * H(g * H(s2 * x))`` of equation 2, and what follows from it.

``W = diag(s1) H diag(g) H diag(s2)`` is never formed: the cost is O(D log D). The public functions
broadcast their operands' leading axes like any torch operation. With another ``transform`` the
middle is ``M(g) = T diag(g) Tᵀ`` (:mod:`whvi.transforms.mixing`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from whvi._checks import is_power_of_two
from whvi._kernel.column import xor_table
from whvi._kernel.layout import broadcast_views
from whvi._kernel.noise import normal_from_seed
from whvi._kernel.product import product
from whvi.errors import ShapeError
from whvi.sampling import draw_seed
from whvi.transforms import Hadamard, Mixing, TransformLike, fwht, hadamard_matrix, make_mixing


def structured_product(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, *, transform: TransformLike = "hadamard"
) -> Tensor:
    r"""Multiply every row of ``x`` by ``W = diag(s1) H diag(g) H diag(s2)``.

    Args:
        x: Rows, shape ``(..., D)``; ``D`` is a size that the transform takes.
        s1, s2: Scales, shape ``(..., D)``.
        g: The variational vector, shape ``(..., D)``: one for all, per block, draw or row.
        transform: Replaces ``H``; see :func:`whvi.transforms.make_mixing`.

    Returns:
        ``s1 * fwht(g * fwht(s2 * x))``, leading axes broadcast. One node in the autograd graph.
    """
    mixing = _mixing_of(transform, x)
    if mixing is None:
        return product((x, s1, g, s2, None, None), None)
    return s1 * mixing.mix(s2 * x, g)


def _mixing_of(transform: TransformLike, like: Tensor) -> Mixing | None:
    """Return the mixing for rows like ``like``; ``None`` for that of the kernel."""
    if isinstance(transform, str) and transform == "hadamard":
        return None
    size = like.shape[-1]
    mixing = make_mixing(transform, size, device=like.device, dtype=like.dtype)
    if mixing.size != size:
        raise ShapeError(
            f"the transform {mixing.name} takes size {mixing.size}, got {size} in rows of shape "
            f"{tuple(like.shape)}; pad with zeros"
        )
    return None if isinstance(mixing, Hadamard) else mixing


def noisy_structured_product(
    x: Tensor,
    s1: Tensor,
    mean: Tensor,
    scale: Tensor,
    s2: Tensor,
    *,
    generator: torch.Generator | None = None,
    transform: TransformLike = "hadamard",
) -> Tensor:
    r"""Multiply every row of ``x`` by its own draw of ``W``: local reparameterization.

    ``y_n = s1 * H((mean + scale * eps_n) * H(s2 * x_n))`` with a standard normal ``eps_n`` for
    every row of the broadcast result. By linearity this is equation 3 of the paper at the cost of
    one product.

    Args:
        x, s1, s2: As in :func:`structured_product`.
        mean, scale: Mean and standard deviation of ``g``, one shape ``(..., D)``.
        generator: Source of the noise; ``None`` is torch's default generator.
        transform: As in :func:`structured_product`.
    """
    if mean.shape != scale.shape:
        raise ShapeError(
            f"mean and scale need one shape, got {tuple(mean.shape)} and {tuple(scale.shape)}"
        )
    mixing, seed = _mixing_of(transform, x), draw_seed(generator)
    if mixing is None:
        return product((x, s1, mean, s2, scale, None), None, seed)
    shape = torch.broadcast_shapes(x.shape, s1.shape, mean.shape, s2.shape)
    noise = normal_from_seed(tuple(shape), seed, dtype=x.dtype, device=x.device)
    return s1 * mixing.mix(s2 * x, mean + scale * noise)


def dense_matrix(
    s1: Tensor, g: Tensor, s2: Tensor, *, transform: TransformLike = "hadamard"
) -> Tensor:
    r"""Return ``W = diag(s1) H diag(g) H diag(s2)``, shape ``(..., D, D)``.

    For a power of two, ``H[i,k] H[j,k] = D**-0.5 H[i^j,k]`` gives ``W[i,j] = s1[i] s2[j] c[i^j]``,
    ``c = D**-0.5 H g``, in O(D²). With other sizes or another transform the columns are products of
    unit vectors, in O(D² log D).
    """
    mixing = _mixing_of(transform, g)
    if mixing is not None:
        unit = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
        columns = s1.unsqueeze(-2) * mixing.mix(s2.unsqueeze(-2) * unit, g.unsqueeze(-2))
        return columns.mT
    broadcast_views(s1.shape, s1.shape, g.shape, s2.shape)  # refuses what does not fit
    size = g.shape[-1]
    if not is_power_of_two(size):
        unit = torch.eye(size, dtype=g.dtype, device=g.device)
        return structured_product(unit, *(v.unsqueeze(-2) for v in (s2, g, s1)))
    c = fwht(g) * size**-0.5
    entries: Tensor = c[..., xor_table(size, g.device)]
    return s1.unsqueeze(-1) * entries * s2.unsqueeze(-2)


def column_features(x: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
    r"""Return ``ψ(x)`` with ``x · vec(W) = ψ(x) · g``, shape ``(..., D)``, for ``x`` of ``D²``.

    With ``X`` the ``D × D`` reshape of ``x`` this is the diagonal of ``H diag(s1) X diag(s2) H``;
    for a power of two, ``ψ = D**-0.5 H b`` with ``b[d] = Σ_i s1[i] s2[i^d] X[i, i^d]``.
    """
    size = s1.shape[-1]
    if x.shape[-1] != size**2:
        raise ShapeError(f"x must have shape (..., {size**2}), got {tuple(x.shape)}")
    square: Tensor = x.unflatten(-1, (size, size)) * s1.unsqueeze(-1) * s2.unsqueeze(-2)
    if not is_power_of_two(size):
        H = hadamard_matrix(size, dtype=x.dtype, device=x.device)
        return (H * fwht(square)).sum(-2)
    # entry (i, d) of the gathered square is X[i, i^d]: sum it over i
    index = xor_table(size, x.device).expand(square.shape)
    gathered: Tensor = square.gather(-1, index)
    features: Tensor = fwht(gathered.sum(-2)) * size**-0.5
    return features
