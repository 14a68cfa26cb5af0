from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.linearized.problems import (
    DOUBLE,
    column_network,
    network,
    randomized,
    rows,
    sine_network,
)
from whvi import MCDropout, MeanFieldLinear, WHVIConv2d, WHVILinear
from whvi.errors import ShapeError
from whvi.functions import mean_function
from whvi.linearized.chain import chain_of
from whvi.linearized.jacobians import jacobian, jacobian_by_transforms
from whvi.linearized.parameters import parameter_space
from whvi.priors import LearnedPrior

EPS = torch.finfo(torch.float64).eps


def by_differences(model, x, space, step=1e-6):
    """``J`` by central differences of the mean function, one parameter at a time."""
    columns = []
    for name, size in zip(space.names, space.sizes, strict=True):
        parameter = dict(model.named_parameters())[name]
        flat = parameter.data.view(*space.batch_shape, -1)
        for k in range(size):
            flat[..., k] += step
            above = mean_function(model, x)
            flat[..., k] -= 2 * step
            below = mean_function(model, x)
            flat[..., k] += step
            columns.append((above - below) / (2 * step))
    return torch.stack(columns, -1)


@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("make", [network, sine_network, column_network])
def test_a_chain_equals_jacrev(make, batch_shape):
    model = make(batch_shape)
    x = rows(5, 1 if make is column_network else 3, batch_shape=batch_shape)
    space = parameter_space(model)
    assert chain_of(model) is not None
    f, J = jacobian(model, x)
    expected_f, expected = jacobian_by_transforms(model, x, space)
    assert f.shape == (*batch_shape, 5, f.shape[-1])
    assert J.shape == (*f.shape, space.num_parameters)
    # sums of at most D terms in another order
    assert (f - expected_f).abs().max() <= 64 * EPS * expected_f.abs().max()
    assert (J - expected).abs().max() <= 64 * EPS * expected.abs().max()


@pytest.mark.parametrize("make", [network, sine_network, column_network])
def test_jacobians_are_slopes_of_the_mean_function(make):
    model = make((2,))
    x = rows(4, 1 if make is column_network else 3)
    expected = by_differences(model, x, parameter_space(model))
    assert_close(jacobian(model, x).derivatives, expected, rtol=1e-6, atol=1e-7)


def test_what_is_not_a_chain_takes_transforms():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = WHVILinear(4, 4, **DOUBLE)

        def forward(self, x):
            return x + torch.tanh(self.inner(x))

    model = randomized(nn.Sequential(Residual(), nn.Linear(4, 2, **DOUBLE)))
    assert chain_of(model) is None
    x = rows(3, 4)
    J = jacobian(model, x).derivatives
    assert_close(J, by_differences(model, x, parameter_space(model)), rtol=1e-6, atol=1e-7)


def test_token_ids_stay_integers():
    model = randomized(nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), WHVILinear(12, 2)).double())
    x = torch.randint(7, (5, 3), generator=torch.Generator().manual_seed(0))
    expected = by_differences(model, x, parameter_space(model))
    assert_close(jacobian(model, x).derivatives, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("last", [nn.Flatten(0), nn.Unflatten(-1, (2, 1))])
def test_other_values_than_one_row_per_row_are_refused(last):
    with pytest.raises(ShapeError, match=r"the model must return .* it returned \(.*\)$"):
        jacobian(nn.Sequential(network(out=2), last), rows(3))


def test_images_and_replicas_of_them():
    def make(batch_shape):
        conv = WHVIConv2d(1, 3, 2, batch_shape=batch_shape, **DOUBLE)
        last = MeanFieldLinear(12, 2, batch_shape=batch_shape, **DOUBLE)
        return randomized(nn.Sequential(conv, nn.Tanh(), nn.Flatten(-3), last))

    for batch_shape in ((), (2,)):
        model = make(batch_shape)
        x = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(0), **DOUBLE)
        expected = by_differences(model, x, parameter_space(model))
        assert_close(jacobian(model, x).derivatives, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.register_forward_hook(lambda *_: None),
        lambda model: model[2].register_forward_hook(lambda *_: None),
        lambda model: model.append(model[1]),
        lambda model: model.append(nn.Softplus()),
        lambda model: model.insert(0, WHVILinear(3, 3, posterior="flow", **DOUBLE)),
    ],
)
def test_what_the_chain_does_not_know_is_refused(change):
    model = network()
    change(model)
    assert chain_of(model) is None


def test_a_weight_of_two_layers_has_the_sum_of_both_jacobians():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), WHVILinear(3, 2)).double()
    model[2].weight = model[0].weight
    randomized(model)
    x, space = rows(4), parameter_space(model)
    assert [name for name in space.names if "weight" in name] == ["0.weight"]
    assert_close(
        jacobian(model, x).derivatives, by_differences(model, x, space), rtol=1e-6, atol=1e-7
    )


def test_layers_that_share_a_prior_are_a_chain():
    prior = LearnedPrior()
    model = nn.Sequential(WHVILinear(3, 4, prior=prior), nn.Tanh(), WHVILinear(4, 2, prior=prior))
    assert model[0].matrix.prior is model[2].matrix.prior
    assert chain_of(model) is not None


@pytest.mark.parametrize(("make", "given"), [(network, 4), (network, 2), (column_network, 2)])
def test_rows_with_too_many_or_too_few_features_are_refused(make, given):
    features = 1 if make is column_network else 3
    with pytest.raises(ShapeError, match=rf"shape \(\.\.\., {features}\), got \(5, {given}\)"):
        jacobian(make(), rows(5, given))


def test_frozen_tensors_are_left_out_of_the_chain():
    model = network()
    model[0].matrix.s2.requires_grad_(False)
    x, space = rows(3), parameter_space(model)
    assert "0.matrix.s2" not in space.names
    assert_close(jacobian(model, x).derivatives, jacobian_by_transforms(model, x, space)[1])


def test_only_the_last_layer():
    model = network(out=2)
    x = rows(4)
    last = parameter_space(model, last_layer=True)
    whole = jacobian(model, x).derivatives
    assert_close(jacobian(model, x, last).derivatives, whole[..., -last.num_parameters :])


def test_training_mode_is_ignored_and_put_back():
    model = network()
    model.insert(2, nn.Dropout(0.5))
    model.insert(3, MCDropout(0.5))
    model.train()
    model[4].eval()
    x = rows(6)
    first, again = jacobian(model, x), jacobian(model, x)
    assert torch.equal(first.derivatives, again.derivatives)
    assert model.training
    assert model[2].training
    assert not model[4].training
