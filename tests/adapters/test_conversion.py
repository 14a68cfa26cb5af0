"""``convert``: the same function at the start, gradients, training; ``unconvert``: the way back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import whvi
from tests.adapters.nets import ImageNet, mlp, rows
from tests.conformance.layer_suite import normal, seeded
from whvi import LocalReparameterization, MeanWeights, WeightDraws, WHVILinear, sampling
from whvi.adapters import Adapted, adapter_names, use_adapter
from whvi.adapters.adapted import Trained
from whvi.errors import ConfigError, ShapeError
from whvi.likelihoods import Categorical


def at_mean(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), sampling(MeanWeights()):
        return model(x)


def images(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return ImageNet().to(dtype).eval(), normal(5, 3, 6, 6).to(dtype)


def moved(model: nn.Module, seed: int = 0) -> nn.Module:
    """Move what trains to another point."""
    generator = seeded(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=generator).to(p.dtype))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_blocks": 3}, {"posterior": "low_rank"}, {"transform": "dct"}],
    ids=str,
)
def test_an_adapted_model_starts_as_the_given_one_to_the_bit(dtype, options) -> None:
    net = mlp().to(dtype)
    x = rows()[0].to(dtype)
    converted = whvi.convert(net, **options)
    assert torch.equal(at_mean(converted, x), net(x))
    net, x = images(dtype)
    converted = whvi.convert(net, **options)
    assert torch.equal(at_mean(converted, x), net(x))
    assert not torch.equal(converted(x), net(x))


def test_only_the_adapter_trains_and_all_of_it_does() -> None:
    net, x = images()
    converted = whvi.convert(net, train="linear")
    trained = {name for name, p in converted.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in trained} == {"conv1", "conv2", "linear"}
    assert all("adapters.default" in n or n.startswith("linear.modules_to_save") for n in trained)
    with sampling(LocalReparameterization(seeded())):
        (converted(x).square().sum() + whvi.kl(converted)).backward()
    gradients = {n: p.grad for n, p in converted.named_parameters()}
    assert all((gradients[name] is not None) is (name in trained) for name in gradients)
    # padded inputs and trimmed outputs apart, every vector has a gradient at the start
    assert all(gradients[name].any() for name in trained)
    assert all(p.requires_grad for p in net.parameters())  # a copy was converted


def test_mean_weights_move_by_g_at_first() -> None:
    net, (x, _) = mlp(), rows()
    converted = whvi.convert(net)
    with sampling(MeanWeights()):
        converted(x).square().sum().backward()
    for name, p in converted.named_parameters():
        if name.endswith("loc"):
            assert p.grad.any()


def test_a_draw_is_the_base_plus_the_dense_residual() -> None:
    net, (x, _) = mlp(), rows()
    converted = moved(whvi.convert(net, num_blocks=2))
    layer = converted[0]
    with torch.no_grad(), sampling(WeightDraws(generator=seeded())):
        y, weight = layer(x), layer.weight.clone()
    torch.testing.assert_close(y, nn.functional.linear(x, weight, net[0].bias))
    assert not torch.allclose(weight, net[0].weight, atol=1e-3)
    assert (layer.in_features, layer.out_features) == (6, 12)


def test_draws_have_an_axis() -> None:
    net, x = images()
    converted = moved(whvi.convert(net))
    conv = converted.conv1
    with torch.no_grad(), sampling(WeightDraws(3, seeded())) as sampler:
        whole = conv(x.expand(3, *x.shape))
        again = conv(x.expand(3, *x.shape)[:, :2])
    assert whole.shape[0] == 3
    assert not torch.equal(whole[0], whole[1])
    torch.testing.assert_close(again, whole[:, :2])
    assert sampler.num_draws == 3
    f = whvi.draw_functions(converted, x, num_draws=4, generator=seeded())
    assert f.shape == (4, 5, 4)


def test_a_summary_counts_base_and_adapters() -> None:
    found = whvi.summary(whvi.convert(mlp(), layers="2")).layers
    assert [row.num_dense for row in found] == [6 * 12 + 12, 12 * 12 + 12, 12 * 3 + 3]
    assert [row.num_parameters - row.num_dense for row in found] == [0, 4 * 16, 0]


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_has_the_same_values_and_gradients(backend) -> None:
    model, (x, _) = moved(whvi.convert(mlp(), layers=["0", "2"], num_blocks=2)), rows()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    both = []
    for each in (model, compiled):
        model.zero_grad()
        with sampling(MeanWeights()):
            y = each(x)
        y.square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        both.append([y.detach(), *gradients])
    assert len(both[0]) == 1 + 2 * 3
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


def test_autocast_gives_what_the_plain_layer_gives() -> None:
    net, (x, _) = mlp(), rows()
    model = whvi.convert(net)
    with torch.autocast("cpu", torch.bfloat16), sampling(MeanWeights()):
        assert torch.equal(model(x), net(x))
        with sampling(LocalReparameterization()):
            y = model(x)
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert model[0].adapters["default"].matrix.s1.grad.dtype is torch.float32


def test_torch_fx_takes_an_adapted_layer_for_a_leaf() -> None:
    model, (x, _) = whvi.convert(mlp()), rows()
    traced = torch.fx.symbolic_trace(model)
    with sampling(MeanWeights()):
        assert torch.equal(traced(x), model(x))


def test_attention_of_torch_reads_the_weight() -> None:
    """It never calls its output projection, but multiplies by ``out_proj.weight``."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    model, x = whvi.convert(layer, relative_scale=0.5), torch.randn(2, 5, 8)
    # the plain layer has a fused path, so that only rounding is the same
    torch.testing.assert_close(at_mean(model, x), layer(x), rtol=1e-5, atol=1e-6)
    for each in ("linear1", "self_attn.out_proj"):
        moved(model.get_submodule(each))
    expected = whvi.unconvert(model)(x)
    torch.testing.assert_close(at_mean(model, x), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, layer(x), atol=1e-3)


@pytest.mark.parametrize("inplace", [False, True])
def test_unconvert_merges_the_mean(inplace) -> None:
    for net, x in (images(torch.float64), (mlp().double(), rows()[0].double())):
        kinds = [type(m) for m in net.modules()]
        converted = moved(whvi.convert(net, train=nn.BatchNorm2d if x.dim() == 4 else "4"))
        expected = at_mean(converted, x)
        plain = whvi.unconvert(converted, inplace=inplace)
        assert [type(m) for m in plain.modules()] == kinds
        torch.testing.assert_close(plain(x), expected, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(expected, net(x), atol=1e-3)
        if not inplace:
            assert torch.equal(at_mean(converted, x), expected)


def test_the_base_comes_back_to_the_bit() -> None:
    net, x = images()
    state = copy.deepcopy(net.state_dict())
    converted = moved(whvi.convert(net, train=nn.BatchNorm2d))
    use_adapter(converted, None)
    assert torch.equal(converted(x), net(x))
    assert float(whvi.kl(converted)) == 0
    back = whvi.unconvert(converted).state_dict()
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_adapters_are_switched_by_name() -> None:
    net, (x, _) = mlp(), rows()
    model = moved(whvi.convert(net, name="a", train="4"), 1)
    moved(whvi.convert(model, name="b", layers="0", num_blocks=2, inplace=True), 2)
    assert adapter_names(model) == ["a", "b"]
    values = {}
    for name in ("a", "b", None, "a"):
        use_adapter(model, name)
        value = at_mean(model, x)
        assert name not in values or torch.equal(values[name], value)
        values[name] = value
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        assert all(f".{name}." in n for n in trained)
        assert bool(trained) is (name is not None)
    assert torch.equal(values[None], net(x))
    assert not torch.allclose(values["a"], values["b"], atol=1e-3)
    with pytest.raises(ConfigError, match=r"no adapter 'c'; the model has \['a', 'b'\]"):
        use_adapter(model, "c")


def test_a_bayesian_head_trains_with_the_adapter_and_counts_once() -> None:
    net = mlp()
    net[4] = WHVILinear(12, 3, num_blocks=3)
    model = whvi.convert(net)
    head = model[4].modules_to_save["default"]
    assert isinstance(head, WHVILinear)
    assert head.matrix.s1.requires_grad
    total = head.kl() + model[0].kl() + model[2].kl()
    torch.testing.assert_close(whvi.kl(model), total)
    assert isinstance(whvi.unconvert(model)[4], nn.Linear)


def test_a_single_layer_is_a_model_too() -> None:
    layer, x = nn.Linear(6, 4), rows()[0]
    model = whvi.convert(layer)
    assert isinstance(model, Adapted)
    assert torch.equal(at_mean(model, x), layer(x))
    assert isinstance(whvi.unconvert(model), nn.Linear)


def test_replaced_layers_start_near_the_given_ones_and_everything_trains() -> None:
    net = mlp()
    model = whvi.convert(net, mode="replace", layers=["0", "2"], num_blocks=3)
    assert [type(m).__name__ for m in model] == [
        "WHVILinear",
        "Tanh",
        "WHVILinear",
        "Tanh",
        "Linear",
    ]
    assert all(p.requires_grad for p in model.parameters())
    for i in (0, 2):
        weight, error = net[i].weight, model[i].matrix.mean - net[i].weight
        share = min(2.5 / model[i].matrix.plan.block_size, 0.9)  # explained at the least
        assert error.square().sum() < (1 - share) * weight.square().sum()
        assert torch.equal(model[i].bias, net[i].bias)
    images_net, pictures = images()
    model = whvi.convert(images_net, mode="replace")
    assert at_mean(model, pictures).shape == images_net(pictures).shape
    plain = whvi.unconvert(model)
    torch.testing.assert_close(plain(pictures), at_mean(model, pictures))


def test_elbo_fit_and_linearize_take_an_adapted_model() -> None:
    torch.manual_seed(0)
    x, y = rows(200)
    likelihood, model = Categorical(3), whvi.convert(mlp(), num_blocks=3)
    before = whvi.elbo(model, likelihood, x, y, num_data=200, generator=seeded()).value
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    config = whvi.FitConfig(num_steps=150, batch_size=50, learning_rate=0.02)
    whvi.fit(model, likelihood, (x, y), config=config)
    after = whvi.elbo(model, likelihood, x, y, num_data=200, generator=seeded()).value
    assert after > before + 50
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
    posterior = whvi.linearize(model, likelihood, (x, y))
    assert posterior.function_moments(x[:5]).variance.min() > 0
    assert all("adapters.default" in name for name in posterior.space.names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, "mode must be 'adapt' or 'replace', got 'both'"),
        ({"mode": "replace", "train": "0"}, "are for mode='adapt'"),
        ({"name": "a.b"}, "without '.', got 'a.b'"),
        ({"rank": 3}, r"no options \['rank'\]"),
        ({"mode": "replace", "relative_scale": 0.1}, "no options"),
        ({"train": "head"}, "no module is selected by train='head'"),
        ({"layers": "encoder"}, "no layer is selected by layers='encoder'.*: 0, 2, 4"),
        ({"posterior": "flow"}, "mean of a flow"),
    ],
)
def test_what_cannot_be_is_refused(options, message) -> None:
    net = mlp()
    with pytest.raises(ConfigError, match=message):
        whvi.convert(net, **options)
    assert all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("function", [whvi.convert, whvi.unconvert])
def test_what_is_no_model_is_refused(function) -> None:
    with pytest.raises(ConfigError, match=r"model must be a torch\.nn\.Module, got NoneType"):
        function(None)


def test_an_adapter_takes_further_layers_with_options_of_their_own() -> None:
    x, _ = rows()
    model = whvi.convert(mlp(), layers="0", num_blocks=3, train="4")
    with torch.no_grad():
        model[4].chosen.weight.add_(1.0)
    more = whvi.convert(model, layers="2")
    assert torch.equal(at_mean(more, x), at_mean(model, x))  # the trained copy is kept
    assert adapter_names(more) == ["default"]
    assert [more[k].options["default"] for k in (0, 2)] == [{"num_blocks": 3}, {}]
    assert all(p.requires_grad for p in more[0].residual.parameters())
    assert all(p.requires_grad for p in more[4].chosen.parameters())


def test_a_layer_is_adapted_once_by_a_name_and_adapters_are_not_replaced() -> None:
    model = whvi.convert(mlp())
    with pytest.raises(ConfigError, match=r"^0 has an adapter 'default' already; choose other"):
        whvi.convert(model)
    with pytest.raises(ConfigError, match=r"use whvi\.unconvert first"):
        whvi.convert(model, mode="replace")


@pytest.mark.parametrize("name", ["keys", "train", "training", 3])
def test_names_that_a_module_dict_cannot_take_are_refused(name) -> None:
    with pytest.raises(ConfigError, match=f"name must be a text .* got {name!r}"):
        whvi.convert(mlp(), name=name)


@pytest.mark.parametrize("mode", ["adapt", "replace"])
def test_a_refused_conversion_in_place_leaves_the_model_as_it_was(mode) -> None:
    """Twelve inputs can be cut into ten slices, the six of the first layer cannot."""
    net = nn.Sequential(nn.Linear(12, 6), nn.Linear(6, 3))
    with pytest.raises(ConfigError, match="num_blocks cuts the input into slices"):
        whvi.convert(net, mode=mode, num_blocks=10, inplace=True)
    assert [type(layer) for layer in net] == [nn.Linear, nn.Linear]
    assert all(p.requires_grad for p in net.parameters())


def test_of_a_list_of_modules_each_is_trained() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 8)
            self.heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 3)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([head(self.body(x)) for head in self.heads], -1)

    net, (x, _) = Heads(), rows()
    model = whvi.convert(net, train="heads")
    assert all(isinstance(head, Trained) for head in model.heads)
    with sampling(MeanWeights()):
        assert torch.equal(model(x), net(x))


def test_a_trained_module_has_the_attributes_of_the_copy_that_runs() -> None:
    model = whvi.convert(mlp(), layers="0", train="4")
    assert model[4].out_features == 3
    assert model[4].weight is model[4].modules_to_save["default"].weight
    use_adapter(model, None)
    assert model[4].weight is model[4].original_module.weight
    with pytest.raises(AttributeError, match="nothing"):
        _ = model[4].nothing
    copy.deepcopy(model)


def test_an_adapted_layer_names_what_is_no_tensor() -> None:
    with pytest.raises(ShapeError, match=r"input must be a torch.Tensor, got list"):
        whvi.convert(nn.Linear(2, 2))([[1.0, 2.0]])
