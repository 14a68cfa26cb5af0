"""Which layers are meant, and the reasons for those that are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import whvi
from tests.adapters.nets import ImageNet, Tied, mlp
from whvi.adapters.select import find_layers
from whvi.errors import ConfigError


@pytest.mark.parametrize(
    ("layers", "exclude", "expected"),
    [
        (None, None, {"conv1", "conv2", "linear"}),
        ("conv*", None, {"conv1", "conv2"}),
        ("conv1", None, {"conv1"}),
        (nn.Conv2d, "conv1", {"conv2"}),
        (["linear", nn.Conv2d], None, {"conv1", "conv2", "linear"}),
        (lambda name, module: getattr(module, "groups", 1) == 2, None, {"conv2"}),
        (None, [nn.Linear, "*1"], {"conv2"}),
    ],
)
def test_rules(layers, exclude, expected) -> None:
    assert set(find_layers(ImageNet(), layers, exclude)) == expected


def test_a_name_includes_what_is_inside() -> None:
    net = nn.ModuleDict({"encoder": mlp(), "encoder2": nn.Linear(2, 2)})
    assert set(find_layers(net, "encoder", None)) == {"encoder.0", "encoder.2", "encoder.4"}
    assert set(find_layers(net, "*.2", None)) == {"encoder.2"}


def test_tied_weights_are_refused_with_the_other_name() -> None:
    with pytest.raises(ConfigError, match=r"head \(Linear\).*embedding.weight and head.weight"):
        whvi.convert(Tied())
    ids = torch.arange(4)
    net = Tied()
    model = whvi.convert(net, exclude="head")
    with whvi.sampling(whvi.MeanWeights()):
        assert torch.equal(model(ids), net(ids))


def test_a_layer_under_two_names_is_refused() -> None:
    layer = nn.Linear(3, 3)
    with pytest.raises(ConfigError, match=r"0.weight and 1.weight"):
        whvi.convert(nn.Sequential(layer, layer))


class Int8Linear(nn.Linear):
    """How packages for quantisation do it: a linear layer with integers for weights."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Int8Linear(), r"quantised or not a plain parameter \(Parameter, torch.int8\)"),
        (parametrizations.weight_norm(nn.Linear(4, 4)), "remove_parametrizations first"),
        (nn.LazyLinear(4), "run the model once first"),
        (nn.Linear(4, 4, device="meta"), "on the meta device"),
    ],
)
def test_weights_that_are_not_plain_numbers_are_refused(layer, reason) -> None:
    with pytest.raises(ConfigError, match=rf"0 \(.*{reason}.*exclude='0'"):
        find_layers(nn.Sequential(layer, nn.Linear(4, 4)), None, None)
    assert set(find_layers(nn.Sequential(layer, nn.Linear(4, 4)), None, "0")) == {"1"}
