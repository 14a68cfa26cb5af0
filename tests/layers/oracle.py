"""Dense float64 counterparts of structured layers, from explicit Hadamard matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.transforms.reference import signs
from whvi.layers import WHVILinear


def hadamard_matrix(size: int) -> Tensor:
    return torch.from_numpy(signs(size)).double() / size**0.5


def dense_weight(layer: WHVILinear, g: Tensor) -> Tensor:
    """``W`` of shape ``(out, in)`` by section 2 of the paper, word for word."""
    num_blocks, size = layer.matrix.plan.vector_shape
    s1, s2, g = (v.unflatten(-1, (num_blocks, size)) for v in (layer.matrix.s1, layer.matrix.s2, g))
    H = hadamard_matrix(size)
    blocks = [
        torch.diag(s1[k]) @ H @ torch.diag(g[k]) @ H @ torch.diag(s2[k]) for k in range(num_blocks)
    ]
    n, m = layer.in_features, layer.out_features
    if min(n, m) == 1 and max(n, m) > 1:
        return blocks[0].reshape(-1)[: n * m].reshape(m, n)
    return torch.cat(blocks)[:m, :n]


def jacobian_in_g(layer: WHVILinear) -> Tensor:
    """``∂ vec(W) / ∂ vec(g)``, shape ``(out·in, K·D)``, by differentiation of the oracle."""
    g = torch.zeros(layer.matrix.s1.shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda g: dense_weight(layer, g), g)
    return jacobian.reshape(layer.in_features * layer.out_features, -1).detach()


def covariance_of_g(layer: WHVILinear) -> Tensor:
    """Block-diagonal covariance of ``vec(g)``, shape ``(K·D, K·D)``."""
    return torch.block_diag(*layer.matrix.posterior.covariance()).detach()
