"""torch's own: attention with replaced linears, averages of weights, mixed precision, threads."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint_sequential

from tests.clients.task import network, table
from whvi import (
    LocalReparameterization,
    MeanFieldLinear,
    MeanWeights,
    WHVIConv2d,
    WHVILinear,
    draw_functions,
    elbo,
    kl,
    sampling,
)
from whvi.errors import ConfigError
from whvi.likelihoods import Gaussian


def encoder() -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.linear1, layer.linear2 = WHVILinear(8, 16), WHVILinear(16, 8)
    layer.self_attn.out_proj = WHVILinear(8, 8)
    return layer


@pytest.mark.filterwarnings("ignore")  # of the fast path
def test_a_transformer_layer_with_replaced_linears() -> None:
    """In eval mode torch reads ``layer.weight`` of them all, for one fused operation."""
    layer, x = encoder(), torch.randn(2, 3, 8)
    with sampling(MeanWeights()):
        slow = layer.train()(x)
        with torch.no_grad():
            fast = layer.eval()(x)
    torch.testing.assert_close(fast, slow.detach(), rtol=1e-5, atol=1e-5)
    layer.train()(x).sum().backward()
    assert layer.self_attn.out_proj.matrix.s1.grad is not None


@pytest.mark.filterwarnings("ignore")  # of torch: nested tensors
def test_an_encoder_of_such_layers() -> None:
    model = nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False)
    f = draw_functions(model.eval(), torch.randn(4, 3, 8), num_draws=2)
    assert f.shape == (2, 4, 3, 8)
    assert not torch.equal(f[0], f[1])


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("layer", [WHVILinear(4, 4), WHVIConv2d(2, 2, 3)])
def test_norms_of_weights_are_refused(name: str, layer: nn.Module) -> None:
    with pytest.raises(ValueError, match="does not have a parameter"):
        getattr(nn.utils.parametrizations, name)(layer)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("layer", [WHVILinear(4, 4), MeanFieldLinear(4, 4), WHVIConv2d(2, 2, 3)])
def test_older_norms_of_weights_are_refused(name: str, layer: nn.Module) -> None:
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    with pytest.raises(ConfigError, match="no parameter 'weight' to normalise"):
        getattr(nn.utils, name)(layer)
    assert layer.state_dict().keys() == before.keys()
    again = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    assert all(torch.equal(again.state_dict()[key], before[key]) for key in before)


def test_averages_of_weights() -> None:
    model, (x, y) = network(), table()
    average = AveragedModel(model)
    with torch.no_grad():
        model[0].matrix.s1.add_(1)
    average.update_parameters(model)
    assert torch.equal(kl(average), kl(average.module))
    assert draw_functions(average, x, num_draws=2).shape == (2, 64, 1)
    elbo(average, Gaussian(), x, y, num_data=64).value.backward()


def test_checkpointed_segments() -> None:
    model, x = network(), table()[0].requires_grad_()
    found = []
    for run in (model, lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False)):
        torch.manual_seed(3)
        with sampling(LocalReparameterization()):
            y = run(x)
        found.append(torch.autograd.grad(y.square().sum(), list(model.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_scaler_of_gradients_in_half_precision() -> None:
    model, likelihood, (x, y) = network(), Gaussian(), table()
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.02)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for _ in range(60):
        with torch.autocast("cpu", torch.float16):
            loss = -elbo(model, likelihood, x, y, num_data=64).value / 64
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


def test_threads_have_samplers_of_their_own() -> None:
    """A ``with sampling(...)`` block holds for its thread; a new thread draws by default."""
    model, (x, _) = network(), table()

    def mean() -> torch.Tensor:
        with sampling(MeanWeights()), torch.no_grad():
            return model(x)

    with ThreadPoolExecutor(4) as pool, sampling(MeanWeights()), torch.no_grad():
        expected = model(x)
        drawn = pool.submit(model, x).result().detach()
        found = [task.result() for task in [pool.submit(mean) for _ in range(16)]]
    assert not torch.equal(drawn, expected)
    assert all(torch.equal(each, expected) for each in found)
