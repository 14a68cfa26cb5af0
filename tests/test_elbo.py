from __future__ import annotations

import gc
import itertools
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tests.training.doubles import TinyMeanField, gaussian, tiny_data, tiny_net
from whvi._kernel.backend import kernel
from whvi.elbo import Elbo, elbo
from whvi.errors import ConfigError, DataError, ShapeError
from whvi.layers import WHVIConv1d, WHVILinear
from whvi.layers.protocol import kl
from whvi.likelihoods import Gaussian, HeteroscedasticGaussian, StudentT
from whvi.models.mlp import mlp
from whvi.priors import FixedPrior
from whvi.training import FitConfig, fit

DOUBLE = torch.float64
needs_kernel = pytest.mark.skipif(kernel is None, reason="needs the compiled kernel")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def noiseless_net(**options) -> nn.Sequential:
    net = tiny_net(dtype=DOUBLE, **options)
    for name, parameter in net.named_parameters():
        if name.endswith("log_scale"):
            parameter.data.fill_(-200.0)  # exp underflows far below one ulp of the output
    return net


def test_value_is_log_lik_minus_beta_times_kl():
    result = Elbo(torch.tensor(-3.0), torch.tensor(2.0), beta=0.5)
    assert result.value.item() == -4.0
    assert Elbo(torch.tensor(-3.0), torch.tensor(2.0)).value.item() == -5.0


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_minibatch_objective_is_unbiased_exactly(batch_size):
    """The mean over all batches of a size is the value on all data, without any noise."""
    x, y = tiny_data(6, dtype=DOUBLE)
    net, likelihood = noiseless_net(), gaussian(dtype=DOUBLE)
    full = elbo(net, likelihood, x, y, num_data=6)
    parts = [
        elbo(net, likelihood, x[list(rows)], y[list(rows)], num_data=6)
        for rows in itertools.combinations(range(6), batch_size)
    ]
    mean = torch.stack([part.value for part in parts]).mean()
    torch.testing.assert_close(mean, full.value, rtol=1e-13, atol=0)


def test_minibatch_gradients_are_unbiased():
    x, y = tiny_data(6, dtype=DOUBLE)
    net, likelihood = noiseless_net(), gaussian(dtype=DOUBLE)
    parameters = [*(p for n, p in net.named_parameters() if "scale" not in n)]

    def gradient(rows):
        value = elbo(net, likelihood, x[rows], y[rows], num_data=6).value
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters)])

    batches = [gradient(list(rows)) for rows in itertools.combinations(range(6), 2)]
    torch.testing.assert_close(torch.stack(batches).mean(0), gradient(list(range(6))))


def test_terms_against_a_direct_sum():
    x, y = tiny_data(5, dtype=DOUBLE)
    net, likelihood = noiseless_net(), gaussian(dtype=DOUBLE)
    result = elbo(net, likelihood, x, y, num_data=50)
    mean = x
    for layer in net:
        mean = (
            mean @ layer.mean.mT + layer.bias if isinstance(layer, TinyMeanField) else layer(mean)
        )
    noise = torch.distributions.Normal(mean.squeeze(-1), likelihood.noise_scale)
    torch.testing.assert_close(result.expected_log_lik, 10 * noise.log_prob(y).sum())
    torch.testing.assert_close(result.kl, net[0].kl() + net[2].kl(), rtol=0, atol=0)


def test_draws_are_averaged_within_the_expectation():
    x, y = tiny_data(5, dtype=DOUBLE)
    net, likelihood = tiny_net(dtype=DOUBLE, scale=0.3), gaussian(dtype=DOUBLE)
    generator = torch.Generator().manual_seed(0)
    many = elbo(net, likelihood, x, y, num_data=5, num_draws=20_000, generator=generator)
    single = torch.stack(
        [elbo(net, likelihood, x, y, num_data=5, generator=generator)[0] for _ in range(3000)]
    )
    error = single.std() / 3000**0.5
    # Both sides are Monte Carlo; that of 20,000 draws adds little to the standard error.
    assert abs(many.expected_log_lik - single.mean()) < 4.5 * error * (1 + 0.4) ** 0.5


def test_seeded_generator_decides_the_noise():
    x, y = tiny_data(5)
    net, likelihood = tiny_net(), gaussian()

    def value(seed):
        generator = torch.Generator().manual_seed(seed)
        return elbo(net, likelihood, x, y, num_data=5, generator=generator).value

    assert torch.equal(value(1), value(1))
    assert not torch.equal(value(1), value(2))


class TestReplicas:
    def test_shapes_and_equality_with_single_models(self):
        x, y = tiny_data(6, dtype=DOUBLE)
        net, likelihood = noiseless_net(batch_shape=(3,)), gaussian(batch_shape=(3,), dtype=DOUBLE)
        shared = elbo(net, likelihood, x, y, num_data=6, num_draws=2)
        assert shared.value.shape == shared.kl.shape == (3,)
        for r in range(3):
            single = noiseless_net()
            for own, all_ in zip(single.parameters(), net.parameters(), strict=True):
                own.data.copy_(all_[r])
            value = elbo(single, gaussian(dtype=DOUBLE), x, y, num_data=6).value
            torch.testing.assert_close(shared.value[r], value)

    def test_data_per_replica(self):
        sets = [tiny_data(6, seed=s, dtype=DOUBLE) for s in range(3)]
        x, y = (torch.stack(part) for part in zip(*sets, strict=True))
        net, likelihood = noiseless_net(batch_shape=(3,)), gaussian(batch_shape=(3,), dtype=DOUBLE)
        own = elbo(net, likelihood, x, y, num_data=6, num_draws=4).value
        for r in range(3):
            value = elbo(net, likelihood, *sets[r], num_data=6).value
            torch.testing.assert_close(own[r], value[r])

    def test_layers_must_agree(self):
        net = nn.Sequential(TinyMeanField(3, 2), TinyMeanField(2, 1, batch_shape=(3,)))
        with pytest.raises(ShapeError, match="one batch_shape"):
            elbo(net, gaussian(), *tiny_data(4), num_data=4)


class Pooled(nn.Module):
    """A net for images: plain torch modules that accept no further axis, then a Bayesian one."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.head = TinyMeanField(4, 1, scale=scale)

    def forward(self, x):
        assert x.dim() == 4
        return self.head(self.pool(x).flatten(1))


def test_images_are_looped_over_draws():
    x, y = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(5)
    one = elbo(Pooled(1e-20), gaussian(), x, y, num_data=5, num_draws=1)
    three = elbo(Pooled(1e-20), gaussian(), x, y, num_data=5, num_draws=3)
    torch.testing.assert_close(one.value, three.value)


def test_shared_module_counts_once_and_plain_models_have_no_kl():
    layer = TinyMeanField(3, 3)
    torch.testing.assert_close(kl(nn.Sequential(layer, layer)), layer.kl())
    result = elbo(nn.Linear(3, 1), gaussian(), *tiny_data(4), num_data=4)
    assert result.kl.item() == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_data": 0}, ConfigError),
        ({"num_data": 3}, ConfigError),
        ({"x": torch.zeros(0, 3), "y": torch.zeros(0)}, DataError),
        ({"y": [0.0] * 4}, ShapeError),
        ({"num_draws": 0}, ConfigError),
        ({"beta": -1.0}, ConfigError),
        ({"beta": float("nan")}, ConfigError),
        ({"beta": float("inf")}, ConfigError),
        ({"beta": "a"}, ConfigError),
        ({"model": None}, ConfigError),
        ({"likelihood": None}, ConfigError),
        ({"likelihood": Gaussian}, ConfigError),
        ({"y": torch.zeros(3)}, ShapeError),
        ({"x": torch.zeros(3)}, ShapeError),
    ],
)
def test_wrong_calls_are_refused(change, error):
    x, y = tiny_data(4)
    given = {"model": tiny_net(), "likelihood": gaussian(), "x": x, "y": y, "num_data": 4}
    with pytest.raises(error):
        elbo(**given | change)


def flow_net(seed: int = 0) -> nn.Sequential:
    net = nn.Sequential(
        WHVILinear(3, 8, posterior="flow"), nn.ReLU(),
        WHVIConv1d(8, 2, 1, groups=2, posterior="flow"), nn.Flatten(-2), WHVILinear(2, 1),
    )  # fmt: skip
    net.insert(2, nn.Unflatten(-1, (8, 1)))
    for layer in net:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters(generator=torch.Generator().manual_seed(seed))
    return net


def test_an_estimated_kl_takes_its_noise_from_the_generator():
    """Also that of a layer whose KL is no sum of pairs (groups)."""
    x, y = tiny_data(5)
    net, likelihood = flow_net(), gaussian()
    state = torch.get_rng_state()
    first, again, other = (
        elbo(net, likelihood, x, y, num_data=5, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.kl, again.kl)
    assert not torch.equal(first.kl, other.kl)


def test_two_fits_of_a_flow_with_one_seed_are_equal():
    x, y = tiny_data(20)
    states, histories = [], []
    global_state = torch.get_rng_state()
    for seed in (5, 6):  # of the global generator, which must not matter
        torch.manual_seed(seed)
        net, likelihood = flow_net(), gaussian()
        before = torch.get_rng_state()
        config = FitConfig(num_steps=6, batch_size=5, record_every=2, seed=3)
        histories.append(fit(net, likelihood, (x, y), config=config))
        assert torch.equal(torch.get_rng_state(), before)
        states.append(net.state_dict())
    torch.set_rng_state(global_state)
    assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())
    assert histories[0].kl == histories[1].kl
    assert histories[0].layer_kl == histories[1].layer_kl


# --- models that run as one node -----------------------------------------------------------------


@needs_kernel
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize(
    "likelihood", [Gaussian, partial(Gaussian, 2), HeteroscedasticGaussian, StudentT]
)
def test_one_node_gives_what_the_layers_give(likelihood, batch_shape) -> None:
    noise = likelihood(batch_shape=batch_shape)
    model = mlp(5, (16, 8), noise.num_features, batch_shape=batch_shape)
    x, y = torch.randn(7, 5), torch.randn(7, noise.num_outputs)
    parameters = [*model.parameters(), *noise.parameters()]

    def terms() -> tuple[Elbo, tuple[Tensor, ...]]:
        found = elbo(model, noise, x, y, num_data=70, num_draws=2, generator=seeded(), beta=0.5)
        return found, torch.autograd.grad(found.value.sum(), parameters)

    ours, gradients = terms()
    handle = model.register_forward_hook(lambda *_: None)  # now the layers have to run
    theirs, expected = terms()
    handle.remove()
    assert type(ours.kl.grad_fn).__name__ == "_CompiledElboBackward"
    assert type(theirs.kl.grad_fn).__name__ != "_CompiledElboBackward"
    assert torch.equal(ours.expected_log_lik, theirs.expected_log_lik)
    assert torch.equal(ours.kl, theirs.kl)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def _other_layer(model: nn.Sequential) -> None:
    model[2] = WHVILinear(16, 1)


def _other_prior(model: nn.Sequential) -> None:
    model[0].matrix.prior = FixedPrior(0.5)


def _other_variance(model: nn.Sequential) -> None:
    model[0].matrix.prior.fixed_variance = 0.25


def _other_parameter(model: nn.Sequential) -> None:
    model[0].matrix.s1 = nn.Parameter(torch.ones(16))


def _other_forward(model: nn.Sequential) -> None:
    model[1].forward = torch.tanh


@needs_kernel
@pytest.mark.parametrize(
    "change",
    [
        _other_layer,
        _other_prior,
        _other_variance,
        _other_parameter,
        _other_forward,
        nn.Module.double,
    ],
)
def test_a_model_that_changes_between_calls_is_seen_as_it_is(change) -> None:
    model = nn.Sequential(WHVILinear(5, 16, prior=FixedPrior(1.0)), nn.ReLU(), WHVILinear(16, 2))
    x, y = torch.randn(7, 5), torch.randn(7, 2)

    def value() -> Tensor:
        likelihood, dtype = Gaussian(2), next(model.parameters()).dtype
        if model[2].out_features == 1:
            likelihood, target = Gaussian(1), y[:, :1]
        else:
            target = y
        found = elbo(
            model, likelihood.to(dtype), x.to(dtype), target, num_data=70, generator=seeded()
        )
        return found.value

    value()
    change(model)
    changed = value()
    model[2].register_forward_hook(lambda *_: None)
    assert torch.equal(changed, value())


@needs_kernel
def test_one_node_refuses_parameters_changed_before_backward() -> None:
    model = mlp(5, (16,), 1)
    value = elbo(model, Gaussian(), torch.randn(7, 5), torch.randn(7), num_data=7).value
    with torch.no_grad():
        model[0].matrix.s1.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@needs_kernel
def test_one_node_has_gradients_of_gradients_and_keeps_its_graph() -> None:
    model, noise = mlp(5, (16,), 1, dtype=torch.float64), Gaussian(dtype=torch.float64)
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randn(7)
    parameters = [*model.parameters(), *noise.parameters()]

    def curvature() -> tuple[Tensor, ...]:
        value = elbo(model, noise, x, y, num_data=70, generator=seeded()).value
        first = torch.autograd.grad(value, parameters, retain_graph=True)
        again = torch.autograd.grad(value, parameters, create_graph=True)
        for one, other in zip(first, again, strict=True):
            torch.testing.assert_close(one, other)
        return torch.autograd.grad(sum(g.square().sum() for g in again), parameters)

    ours = curvature()
    model.register_forward_hook(lambda *_: None)
    for one, other in zip(ours, curvature(), strict=True):
        torch.testing.assert_close(one, other)


@needs_kernel
def test_one_node_lets_the_model_go() -> None:
    model = mlp(5, (16,), 1)
    elbo(model, Gaussian(), torch.randn(7, 5), torch.randn(7), num_data=7).value.backward()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class Remembering(nn.Module):
    """Keeps its last output, as user modules do."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach()
        return x


@needs_kernel
def test_modules_with_tensors_as_attributes() -> None:
    model = nn.Sequential(WHVILinear(5, 16), Remembering(), WHVILinear(16, 1))
    model[0].note = torch.ones(3)
    x, y = torch.randn(7, 5), torch.randn(7)
    for _ in range(3):
        elbo(model, Gaussian(), x, y, num_data=7).value.backward()
        model[0].note = torch.ones(3)
    gone = weakref.ref(model[1].last)
    del model[1].last
    assert gone() is None
    model = nn.Sequential(model[0], nn.ReLU(), model[2])
    for _ in range(3):
        elbo(model, Gaussian(), x, y, num_data=7).value.backward()
        model[0].note = torch.ones(3)
