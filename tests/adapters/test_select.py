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


@pytest.mark.parametrize(
    ("layers", "exclude", "message"),
    [
        (["conv1", "cnov2"], None, "no module is selected by layers='cnov2'"),
        (None, "lin", "no module is selected by exclude='lin'"),
        (3, None, "layers must be a name or pattern .* got int 3"),
        (None, ["linear", None], "exclude must be a name or pattern .* got NoneType None"),
        (nn.Linear(2, 2), None, "layers must be .* got Linear"),
    ],
)
def test_a_rule_that_selects_nothing_or_is_none_is_refused(layers, exclude, message) -> None:
    with pytest.raises(ConfigError, match=message):
        find_layers(ImageNet(), layers, exclude)


def test_names_inside_a_trained_module_are_known() -> None:
    net = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Sequential(nn.Linear(2, 2))})
    model = whvi.convert(net, train="head")
    assert set(find_layers(model, None, "head.0")) == {"body"}


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


def test_a_weight_that_is_a_view_of_another_is_refused() -> None:
    """Merging a residual into one would change the other."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = nn.Parameter(net[0].weight.T)
    with pytest.raises(ConfigError, match=r"0.weight and 1.weight"):
        whvi.convert(net, layers="0", inplace=True)


class Int8Linear(nn.Linear):
    """How packages for quantisation do it: a linear layer with integers for weights."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)


class Doubled(nn.Linear):
    """Twice a linear layer: a residual merged into its weights would count twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Doubled(4, 4), "its class has a forward of its own"),
        (nn.utils.spectral_norm(nn.Linear(4, 4)), "its weight is computed from others"),
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
