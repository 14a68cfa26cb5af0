"""Draws from the posterior over functions: each is a function, wherever and however often asked."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from whvi._checks import check_last_dim
from whvi.errors import ShapeError
from whvi.gp.evaluation import InputScaling, block_rows, map_blocks
from whvi.gp.layer import FeatureLayer


@final
class FunctionDraws:
    """``S`` functions ``x ↦ ψ(x)·a_s``, with coefficients that were drawn once.

    They read the features of the model, so refitting the model ends their life.

    Args:
        layer, scaling: Of the model.
        coefficients: ``a``, shape ``(S, O, K)``.
        shift, unit: Mean and scale of the targets, ``(1,)`` each; ``None`` leaves function values
            in their own units, with an axis for outputs.
    """

    def __init__(
        self,
        layer: FeatureLayer,
        scaling: InputScaling,
        coefficients: Tensor,
        shift: Tensor | None = None,
        unit: Tensor | None = None,
    ) -> None:
        self._layer, self._scaling = layer, scaling
        self._coefficients = coefficients
        self._shift, self._unit = shift, unit

    def __len__(self) -> int:
        return len(self._coefficients)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate all functions at ``x (N, d)``: ``(S, N)``, or ``(S, N, O)`` without units.

        Float64. With ``x.requires_grad`` the result can be differentiated.
        """
        if x.dim() != 2:
            expected = self._scaling.mean.numel()
            raise ShapeError(f"x must have shape (N, {expected}), got {tuple(x.shape)}")
        check_last_dim("x", x, self._scaling.mean.numel())
        basis = self._layer.basis_function()
        (values,) = map_blocks(
            self._layer, self._scaling, x, lambda w: (self._combine(basis(w)),), row_axis=1
        )
        if self._unit is None or self._shift is None:
            return values
        return (values * self._unit + self._shift).squeeze(-1)

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradients at ``x (N, d)``: ``(S, N, d)``, or ``(S, N, O, d)``, float64."""
        size = block_rows(self._layer.features.num_features)
        blocks = x.detach().double().split(size) if len(x) else (x.detach().double(),)
        return torch.cat([self._gradient(block) for block in blocks], dim=1)

    def _gradient(self, rows: Tensor) -> Tensor:
        rows.requires_grad_()
        with torch.enable_grad():
            values = self(rows)
            flat = values.transpose(0, 1).flatten(1)  # rows do not depend on each other
            columns = [
                torch.autograd.grad(column.sum(), rows, retain_graph=True)[0]
                for column in flat.unbind(1)
            ]
        stacked = torch.stack(columns).view(len(self), *values.shape[2:], *rows.shape)
        return stacked if values.dim() == 2 else stacked.transpose(1, 2)

    def _combine(self, psi: Tensor) -> Tensor:
        num_outputs = self._coefficients.shape[1]
        shared = psi.double().expand(-1, num_outputs, -1)
        return torch.einsum("nok,sok->sno", shared, self._coefficients)
