from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.linearized.problems import DOUBLE, network, sine_network
from whvi import WHVILinear
from whvi.errors import ConfigError, ShapeError
from whvi.linearized.parameters import parameter_space


def test_spreads_of_posteriors_and_priors_do_not_count():
    model = nn.Sequential(WHVILinear(4, 4, posterior="low_rank", prior="learned"), nn.Linear(4, 1))
    assert parameter_space(model).names == (
        "0.bias", "0.matrix.s1", "0.matrix.s2", "0.matrix.posterior.loc", "1.weight", "1.bias",
    )  # fmt: skip


def test_the_default_network_of_a_small_table_has_1153():
    from whvi.tabular.networks import build_network

    assert parameter_space(build_network(8, (128, 128), batch_shape=(2,))).num_parameters == 1153


def test_the_vector_holds_the_tensors_of_every_replica():
    model = sine_network((2,))
    space = parameter_space(model)
    vector = space.vector(model)
    assert vector.shape == (2, space.num_parameters)
    for name, part in space.slices.items():
        assert torch.equal(vector[:, part], dict(model.named_parameters())[name].flatten(1))


def test_values_per_tensor():
    space = parameter_space(network())
    values = torch.arange(len(space.names)).double()
    spread = space.spread(values)
    assert spread.shape == (space.num_parameters,)
    assert_close(space.sums(spread), values * torch.tensor(space.sizes))
    assert all((spread[part] == values[k]).all() for k, part in enumerate(space.slices.values()))


def test_the_last_layer_is_the_last_module_with_parameters():
    model = network()
    model.append(nn.Tanh())
    assert parameter_space(model, last_layer=True).names == ("4.bias", "4.matrix.posterior.loc")
    single = nn.Linear(3, 2)
    assert parameter_space(single, last_layer=True).names == ("weight", "bias")
    nested = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    assert parameter_space(nested, last_layer=True).names == ("1.1.weight", "1.1.bias")


def test_nothing_to_train_and_shared_parameters_are_refused():
    with pytest.raises(ConfigError, match="no trainable parameters"):
        parameter_space(nn.Tanh())
    mixed = nn.Sequential(WHVILinear(3, 4, batch_shape=(2,), **DOUBLE), nn.Linear(4, 1, **DOUBLE))
    with pytest.raises(ShapeError, match=r"parameter 1.weight has shape \(1, 4\)"):
        parameter_space(mixed)
