"""Variants: widths at equal parameters, products of two factors, starting points."""

from __future__ import annotations

import pytest
import torch

import whvi
from reproduction.transforms.variants import (
    REFERENCE,
    VARIANTS,
    build,
    num_parameters,
    reset,
    widths_of,
)
from whvi.sampling import MeanWeights, sampling
from whvi.training.config import seeded_generator

SIZES = [(4, (128, 128), 1), (8, (128, 128), 1), (13, (128, 128), 1), (784, (512,), 10)]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_counts_and_matched_widths(name, sizes) -> None:
    variant = VARIANTS[name]
    widths = widths_of(variant, *sizes)
    found = sum(p.numel() for p in build(variant, *sizes).parameters())
    assert found == num_parameters(variant, sizes[0], widths, sizes[2])
    if variant.is_matched:
        assert abs(found / num_parameters(VARIANTS[REFERENCE], *sizes) - 1) <= 0.1
    else:
        assert widths == sizes[1]


def test_a_product_is_two_factors_with_both_kls() -> None:
    model = build(VARIANTS["dct-depth2"], 5, (8,), 1)
    reset(model, seeded_generator("start", 0))
    first, second = model[0]
    with sampling(MeanWeights()):
        x = torch.randn(3, 5)
        W = second.weight @ first.weight
        torch.testing.assert_close(model[0](x), x @ W.mT)
    torch.testing.assert_close(whvi.kl(model), first.kl() + second.kl() + model[2].kl())


@pytest.mark.parametrize("name", [v.name for v in VARIANTS.values() if not v.is_matched])
def test_starts_have_the_same_size(name) -> None:
    """Outputs of the first layer have variance 2 for standard inputs: He, in every variant."""
    model = build(VARIANTS[name], 64, (256,), 1, batch_shape=(30,))
    reset(model, seeded_generator("start", 0))
    with sampling(MeanWeights()), torch.no_grad():
        y = model[0](torch.randn(30, 200, 64, generator=seeded_generator("x", 0)))
    assert 1.7 < y.var() < 2.3
