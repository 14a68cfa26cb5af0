"""What a model is made of: parameters against their dense counterpart, and KL, layer by layer."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from whvi._checks import check_module
from whvi.layers.linear import RandomAffine
from whvi.layers.protocol import BayesianLayer, kl_per_layer
from whvi.transforms import Mixing


class LayerSummary(NamedTuple):
    """One layer. Counts are for one replica; ``kl`` is in nats, averaged over replicas."""

    name: str
    kind: str
    num_parameters: int
    num_dense: int  # parameters of the deterministic dense layer it stands for
    kl: float


class Summary(NamedTuple):
    """The layers of a model; ``print`` it for a table."""

    layers: tuple[LayerSummary, ...]

    @property
    def num_parameters(self) -> int:
        """Parameters of one replica of the model."""
        return sum(layer.num_parameters for layer in self.layers)

    @property
    def num_dense(self) -> int:
        """Parameters of the deterministic dense model it stands for."""
        return sum(layer.num_dense for layer in self.layers)

    @property
    def kl(self) -> float:
        """Nats, summed over layers."""
        return sum(layer.kl for layer in self.layers)

    def __str__(self) -> str:
        total = LayerSummary("total", "", self.num_parameters, self.num_dense, self.kl)
        rows = [("layer", "kind", "parameters", "dense", "KL (nats)")]
        rows += [
            (n, k, f"{p:,}", f"{d:,}", f"{kl:,.1f}") for n, k, p, d, kl in (*self.layers, total)
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        form = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<>>>", widths, strict=True))
        return "\n".join(form.format(*row) for row in rows)


@torch.no_grad()
def summary(model: nn.Module) -> Summary:
    """Count parameters and KL of every layer of ``model`` that holds parameters itself.

    A Bayesian layer is one row, however many modules it contains; a shared module counts once.
    """
    check_module("model", model)
    rows: list[LayerSummary] = []
    kls = kl_per_layer(model)
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        if isinstance(module, BayesianLayer):
            inside.update(module.modules())
            rows.append(_bayesian_row(name, module, float(kls[name].mean())))
        elif own := sum(p.numel() for p in module.parameters(recurse=False)):
            rows.append(LayerSummary(name or "(model)", type(module).__name__, own, own, 0.0))
    return Summary(tuple(row for row in rows if row.num_parameters))


def _bayesian_row(name: str, layer: BayesianLayer, kl: float) -> LayerSummary:
    replicas = math.prod(layer.batch_shape)
    count = sum(p.numel() for p in layer.parameters()) // max(replicas, 1)
    return LayerSummary(name or "(model)", _kind(layer), count, _num_dense(layer), kl)


def _kind(layer: BayesianLayer) -> str:
    """Return the class, and the transform where it is not the default."""
    residual = getattr(layer, "residual", None)  # of an adapter
    mixing = getattr(getattr(residual or layer, "matrix", None), "mixing", None)
    if not isinstance(mixing, Mixing) or mixing.name == "hadamard":
        return type(layer).__name__
    return f"{type(layer).__name__} ({mixing.name})"


def _num_dense(layer: BayesianLayer) -> int:
    if not isinstance(layer, RandomAffine):
        return int(getattr(layer, "num_dense", 0))
    num_biases = layer.weight_shape[0] if layer.has_bias else 0
    return math.prod(layer.weight_shape) + num_biases
