"""The KL of a model: non-negative, additive, the same for any nesting, batch or sampler."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.conformance.layer_suite import DTYPE, normal, run, scramble
from whvi.layers import MCDropout, MeanFieldLinear, WHVIConv2d, WHVILinear, kl, parameter_groups
from whvi.priors import LearnedPrior
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws

POSTERIORS = st.sampled_from(["diagonal", "low_rank", "full"])
PRIORS = st.sampled_from(["empirical_bayes", "learned", "standard_normal"])
WIDTHS = st.integers(1, 9)


@st.composite
def linear_layers(draw: st.DrawFn) -> nn.Module:
    sizes, prior, seed = (draw(WIDTHS), draw(WIDTHS)), draw(PRIORS), draw(st.integers(0, 99))
    if draw(st.booleans()):
        layer: nn.Module = MeanFieldLinear(*sizes, prior=prior, dtype=DTYPE)
    else:
        layer = WHVILinear(*sizes, posterior=draw(POSTERIORS), prior=prior, dtype=DTYPE)
    return scramble(layer, seed)


@given(layers=st.lists(linear_layers(), min_size=1, max_size=4))
def test_kl_is_the_sum_over_layers_for_any_nesting(layers: list[nn.Module]) -> None:
    terms = [layer.kl() for layer in layers]
    assert all(term >= 0 for term in terms)
    expected = sum(terms)
    nested: nn.Module = nn.Identity()
    for layer in layers:
        nested = nn.Sequential(nested, nn.ModuleDict({"inner": nn.Sequential(layer, nn.ReLU())}))
    for model in (nn.Sequential(*layers), nn.ModuleList(reversed(layers)), nested):
        torch.testing.assert_close(kl(model), expected, rtol=1e-13, atol=1e-13)
    parameters = [p for layer in layers for p in layer.parameters()]
    ours = torch.autograd.grad(kl(nested), parameters, allow_unused=True)
    theirs = torch.autograd.grad(expected, parameters, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_shared_module_counts_once() -> None:
    layer = scramble(WHVILinear(5, 5, dtype=DTYPE))
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Sequential(layer))
    torch.testing.assert_close(kl(model), layer.kl(), rtol=0, atol=0)


def test_kl_does_not_depend_on_rows_or_sampler() -> None:
    model = scramble(nn.Sequential(WHVILinear(5, 7), nn.ReLU(), MeanFieldLinear(7, 1)).double())
    before = kl(model)
    for sampler in (WeightDraws(), LocalReparameterization(), MeanWeights()):
        for rows in (1, 100):
            run(model, normal(rows, 5), sampler)
            assert torch.equal(kl(model), before)


def test_kl_of_a_model_with_replicas_is_per_replica() -> None:
    options = {"batch_shape": (3,), "dtype": DTYPE}
    model = nn.Sequential(
        WHVILinear(5, 7, **options), MCDropout(batch_shape=(3,)), MeanFieldLinear(7, 1, **options)
    )
    scramble(model)
    assert kl(model).shape == (3,)
    torch.testing.assert_close(kl(model), model[0].kl() + model[2].kl(), rtol=1e-14, atol=0)


def test_a_convolution_counts_as_much_as_its_matrix() -> None:
    """A kernel of 3 × 3 × 4 channels has 36 inputs: the KL of equal parameters is equal."""
    conv, linear = WHVIConv2d(4, 8, 3, bias=False).double(), WHVILinear(36, 8, bias=False).double()
    scramble(conv)
    linear.load_state_dict(conv.state_dict())
    torch.testing.assert_close(conv.kl(), linear.kl(), rtol=1e-14, atol=0)


def test_a_model_without_bayesian_layers_has_no_kl() -> None:
    assert kl(nn.Linear(3, 1)).item() == 0


@pytest.mark.parametrize("prior", ["empirical_bayes", "learned", "standard_normal"])
def test_gradient_of_the_kl_reaches_every_parameter_of_the_posterior(prior: str) -> None:
    model = scramble(WHVILinear(5, 7, prior=prior, posterior="full", dtype=DTYPE))
    kl(model).backward()
    for name, parameter in model.named_parameters():
        has_gradient = parameter.grad is not None and bool((parameter.grad != 0).any())
        assert has_gradient == (".posterior." in name or ".prior." in name), name


def test_a_shared_prior_gets_the_gradient_of_every_layer() -> None:
    shared = LearnedPrior(variance=0.3, dtype=DTYPE)
    first = scramble(WHVILinear(5, 7, prior=shared, dtype=DTYPE))
    second = scramble(MeanFieldLinear(7, 2, prior=shared, dtype=DTYPE), 1)
    target = shared.log_variance
    (both,) = torch.autograd.grad(kl(nn.Sequential(first, second)), target)
    parts = [torch.autograd.grad(layer.kl(), target)[0] for layer in (first, second)]
    torch.testing.assert_close(both, sum(parts), rtol=1e-13, atol=1e-13)


# --- copies that do not run ----------------------------------------------------------------------


class ModulesToSaveWrapper(nn.Module):
    """What peft makes of a module to be trained beside adapters; tests/clients has the real one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.original_module = module
        copies = {"one": scramble(WHVILinear(4, 4)), "other": scramble(WHVILinear(4, 4), seed=2)}
        self.modules_to_save = nn.ModuleDict(copies)
        self.active_adapters, self.disable_adapters = ["other"], False


def test_only_the_active_copy_counts() -> None:
    wrapper = ModulesToSaveWrapper(scramble(WHVILinear(4, 4), seed=3))
    model = nn.Sequential(wrapper)
    assert torch.equal(kl(model), wrapper.modules_to_save["other"].kl())
    wrapper.disable_adapters = True
    assert torch.equal(kl(model), wrapper.original_module.kl())


def test_an_average_beside_the_model_does_not_count() -> None:
    net = scramble(nn.Sequential(WHVILinear(4, 4), nn.ReLU(), WHVILinear(4, 2)))
    both = nn.ModuleDict({"net": net, "average": AveragedModel(net)})
    assert torch.equal(kl(both), kl(net))
    assert torch.equal(kl(AveragedModel(net)), kl(net))  # alone it is the model


def test_a_posterior_shared_by_layers_counts_once() -> None:
    one, other = scramble(WHVILinear(4, 4)), WHVILinear(4, 4)
    other.matrix = one.matrix
    assert torch.equal(kl(nn.Sequential(one, other)), one.kl())


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_wrappers_count_once() -> None:
    net = scramble(nn.Sequential(WHVILinear(4, 4)))
    both = nn.ModuleDict({"net": net, "compiled": torch.compile(net)})
    assert torch.equal(kl(both), kl(net))


# --- weight decay --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_shape", [(), (3,)])
def test_decay_is_for_matrices_of_deterministic_layers(batch_shape: tuple[int, ...]) -> None:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), WHVILinear(8, 8, batch_shape=batch_shape),
        MeanFieldLinear(8, 1, batch_shape=batch_shape),
    )  # fmt: skip
    model[0].bias.requires_grad_(False)
    decayed, others = parameter_groups(model, weight_decay=0.1)
    assert decayed == {"params": [model[0].weight], "weight_decay": 0.1}
    assert others["weight_decay"] == 0.0
    assert len(others["params"]) == len(list(model.parameters())) - 2
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW([decayed, others], lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old) != (parameter is model[0].weight)


def test_usual_recipes_leave_scales_alone() -> None:
    """ "Decay if dim ≥ 2" and Muon's "matrices only" look at shapes."""
    for layer in (WHVILinear(8, 8), MeanFieldLinear(8, 8), WHVIConv2d(4, 4, 3)):
        assert {p.dim() for p in layer.parameters()} == {1}
