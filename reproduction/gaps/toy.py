r"""The toy with a gap: a structured network 1–32–32–1 whose posterior NUTS can sample.

.. math::
    W_l = \mathrm{diag}(s_1) H \mathrm{diag}(g) H \mathrm{diag}(s_2), \qquad
    f(x) = W_3 \, \mathrm{relu}(W_2 \, \mathrm{relu}(W_1 x + b_1) + b_2) + b_3

Prior: ``s1, s2, b ~ N(0, 1)`` and ``g ~ N(0, λ I)`` with ``λ = 2 D / in_features``. The default
prior of a layer is empirical Bayes, ``λ = E‖g‖² / n``; this is its value before any data, for which
``var(W) = 2 / in_features`` (He). The noise is the true one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whvi._kernel.layout import BlockPlan

NOISE = 0.1  # standard deviation
WIDTHS = (1, 32, 32, 1)
PLANS = tuple(BlockPlan.for_shape(*pair) for pair in itertools.pairwise(WIDTHS))
GRID = np.linspace(-3, 3, 121)

Parameters = Mapping[str, Any]
"""Vectors ``s1_1, g_1, s2_1, b_1, s1_2, …`` of NumPy or JAX."""


def toy_data(seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the 120 rows of ``examples/toy_regression.py``: none between −0.8 and 0.8."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.8 + 1.2 * torch.rand(120, 1, generator=generator, dtype=torch.float32)
    x[::2] *= -1
    noise = NOISE * torch.randn(120, generator=generator, dtype=torch.float32)
    y = torch.sin(2.5 * x[:, 0]) + 0.3 * x[:, 0] + noise
    return x.double().numpy(), y.double().numpy()


def parameter_sizes() -> dict[str, int]:
    """Return the length of every vector of the network, by name."""
    sizes: dict[str, int] = {}
    for layer, plan in enumerate(PLANS, start=1):
        sizes |= {f"{name}_{layer}": plan.vector_size for name in ("s1", "g", "s2")}
        sizes[f"b_{layer}"] = plan.out_features
    return sizes


def prior_variance(plan: BlockPlan) -> float:
    """Return ``λ``, the prior variance of the entries of ``g``."""
    return 2 * plan.block_size / plan.in_features


def hadamard(size: int) -> NDArray[np.float64]:
    """Return the orthonormal Walsh-Hadamard matrix."""
    matrix: NDArray[np.float64] = np.full((1, 1), size**-0.5)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def network(parameters: Parameters, x: Any, xp: ModuleType = np) -> Any:
    """Return ``f`` at rows ``x (N, 1)``, shape ``(N,)``.

    Args:
        parameters: The vectors of the network.
        x: Rows.
        xp: ``numpy`` or ``jax.numpy``.
    """
    h = x
    for layer, plan in enumerate(PLANS, start=1):
        s1, g, s2, b = (parameters[f"{name}_{layer}"] for name in ("s1", "g", "s2", "b"))
        h = h @ _weights(plan, s1, g, s2).T + b
        h = h if layer == len(PLANS) else xp.maximum(h, 0)
    return h[:, 0]


def _weights(plan: BlockPlan, s1: Any, g: Any, s2: Any) -> Any:
    """Return the dense ``W``; a single row or column is the leading part of ``vec`` of a block."""
    H = hadamard(plan.block_size)
    W = s1[:, None] * ((H * g) @ H) * s2
    if plan.is_column:
        W = W.reshape(-1)[: plan.num_weights]
    return W.reshape(plan.out_features, plan.in_features)
