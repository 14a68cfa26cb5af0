"""Layers with posteriors over their weights, behind one protocol."""

from whvi.layers.conv import (
    MeanFieldConv1d,
    MeanFieldConv2d,
    MeanFieldConv3d,
    WHVIConv1d,
    WHVIConv2d,
    WHVIConv3d,
)
from whvi.layers.dropout import MCDropout
from whvi.layers.linear import MeanFieldLinear, WHVILinear
from whvi.layers.protocol import BayesianLayer, kl, parameter_groups
from whvi.layers.summary import Summary, summary

__all__ = [
    "BayesianLayer",
    "MCDropout",
    "MeanFieldConv1d",
    "MeanFieldConv2d",
    "MeanFieldConv3d",
    "MeanFieldLinear",
    "Summary",
    "WHVIConv1d",
    "WHVIConv2d",
    "WHVIConv3d",
    "WHVILinear",
    "kl",
    "parameter_groups",
    "summary",
]
