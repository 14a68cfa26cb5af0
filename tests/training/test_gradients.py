from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.training.doubles import (
    assert_bitwise,
    gaussian,
    tiny_config,
    tiny_data,
    tiny_net,
    weights_of,
)
from whvi.elbo import Elbo
from whvi.errors import NumericalError
from whvi.training import Checkpoints, fit
from whvi.training.checkpoint import CheckpointStore
from whvi.training.gradients import (
    Adam,
    all_finite,
    blame_objective,
    clip_per_replica,
    replica_norms,
)


@pytest.mark.parametrize("dtypes", [["float32"], ["float64"], ["float32", "float64"]])
def test_adam_is_bitwise_that_of_torch(dtypes):
    """With gradients that come and go, each parameter counts its own steps."""
    shapes = [(3, 4), (), (7,), (130,)]
    dtypes = [getattr(torch, name) for name in dtypes]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(s, generator=generator).to(d) for s in shapes for d in dtypes]
    ours, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    adam = Adam({str(i): p for i, p in enumerate(ours)})
    optimizer = torch.optim.Adam(theirs, fused=True)
    for step in range(60):
        for i, p in enumerate(theirs):
            present = step >= 10 * i and (i != 1 or step % 3)
            p.grad = torch.randn(p.shape, generator=generator).to(p) if present else None
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.step()
        adam.step([p.grad for p in theirs], 0.1 / (step + 1))
        assert_bitwise(ours, theirs)
        if step == 30:  # as after a crash
            tensors = {name: t.clone() for name, t in adam.tensors().items()}
            adam = Adam({str(i): p for i, p in enumerate(ours)})
            adam.restore(tensors)
    for i, p in enumerate(theirs):
        for moment, tensor in optimizer.state[p].items():
            assert torch.equal(adam.tensors()[f"{i}/{moment}"], tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_finite_check_sees_one_bad_value_and_changes_no_bit(dtype, bad):
    tensors = [torch.randn(5, dtype=dtype), torch.tensor([1e-40, 1e30, -0.0], dtype=dtype)]
    copies = [t.clone() for t in tensors]
    assert all_finite(tensors)
    assert_bitwise(tensors, copies)
    tensors[0][3] = bad
    assert not all_finite(tensors)
    assert all_finite(copies)


def test_clipping_equals_torch_for_each_replica():
    gradients = [torch.randn(3, 4, 2) * 5, torch.randn(3), torch.randn(3, 2) * 1e-3]
    gradients = [
        g * torch.tensor([1.0, 1e-3, 10.0]).reshape(3, *[1] * (g.dim() - 1)) for g in gradients
    ]
    expected = []
    for r in range(3):
        parameters = [nn.Parameter(torch.zeros_like(g[r])) for g in gradients]
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g[r].clone()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        expected.append([p.grad for p in parameters])
    clip_per_replica(gradients, replica_norms(gradients, (3,)), 1.0)
    for r in range(3):
        for g, e in zip(gradients, expected[r], strict=True):
            torch.testing.assert_close(g[r], e, rtol=1e-5, atol=1e-7)  # torch adds 1e-6 to the norm


def test_the_term_and_replica_at_fault_are_named():
    result = Elbo(torch.tensor([0.0, float("nan")]), torch.zeros(2))
    with pytest.raises(
        NumericalError, match=r"expected_log_lik \(replica \(1,\)\) became nan in step 7"
    ):
        blame_objective(result, 7)
    with pytest.raises(NumericalError, match="kl became inf"):
        blame_objective(Elbo(torch.tensor(0.0), torch.tensor(float("inf"))), 7)
    blame_objective(Elbo(torch.tensor(0.0), torch.tensor(1.0)), 7)


class Poison(torch.autograd.Function):
    """Passes values on, and NaN back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


class Poisoned(nn.Module):
    """A net whose gradient of the first layer is NaN from the given call on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.net = tiny_net()
        self.calls, self.at = 0, at

    def forward(self, x):
        self.calls += 1
        hidden = self.net[:2](x)
        return self.net[2](Poison.apply(hidden) if self.calls >= self.at else hidden)


def test_nan_in_a_gradient_stops_in_that_step_with_good_weights_and_checkpoint(tmp_path):
    config = tiny_config(record_every=5)
    likelihood = gaussian()
    net = Poisoned(at=18)
    with pytest.raises(
        NumericalError, match=r"gradient of model\.net\.0\.\w+ .* step 18.* step 14"
    ):
        fit(
            net,
            likelihood,
            tiny_data(),
            config=config,
            checkpoint=Checkpoints(tmp_path, every_steps=7),
        )
    # The weights with which step 15 was seen to be finite are those after 14 steps.
    tensors, metadata = CheckpointStore(tmp_path).load_latest()
    assert metadata["step"] == 14
    assert_bitwise(weights_of(net), [tensors[f"weights/model.{n}"] for n in net.state_dict()])
    assert all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())
    assert all(p.requires_grad for p in likelihood.parameters())


def test_nan_in_the_objective_names_the_term():
    net = tiny_net()
    before = weights_of(net)
    x, y = tiny_data()
    broken = [(x, torch.full_like(y, float("nan")))]
    with pytest.raises(NumericalError, match="expected_log_lik became nan in step 1"):
        fit(net, gaussian(), broken, num_data=40, config=tiny_config())
    assert_bitwise(weights_of(net), before)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("which", ["x", "y"])
def test_extreme_scales_train_or_are_refused_by_name(scale, which):
    x, y = tiny_data()
    data = (x * scale, y) if which == "x" else (x, y * scale)
    net, refusal = tiny_net(), None
    try:
        fit(net, gaussian(), data, config=tiny_config(num_steps=20))
    except NumericalError as error:
        refusal = str(error)
    assert refusal is None or any(n in refusal for n in ("expected_log_lik", "kl", "model."))
    assert all(bool(w.isfinite().all()) for w in weights_of(net))


def test_gradients_whose_squares_overflow_are_refused():
    """Adam's second moment would be infinite and its parameter never move again."""
    x, y = tiny_data()

    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x[..., :1] * 0 + self.slope * 1e25

    with pytest.raises(NumericalError, match=r"second moment of model\.slope"):
        fit(Steep(), gaussian(), (x, y + 1), config=tiny_config(record_every=1))
    with pytest.raises(NumericalError, match=r"gradient of model\.slope reaches"):
        fit(Steep(), gaussian(), (x, y + 1), config=tiny_config(max_grad_norm=1.0))


def test_weights_that_are_not_finite_never_reach_the_disk(tmp_path):
    class Saturated(nn.Module):
        """Objective and gradients are finite although the weight is not."""

        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.full((1,), float("inf")))

        def forward(self, x):
            return x[..., :1] * self.gate.clamp(max=1.0)

    config = tiny_config(num_steps=10)
    with pytest.raises(NumericalError, match=r"value of model\.gate is not finite"):
        fit(Saturated(), gaussian(), tiny_data(), config=config, checkpoint=tmp_path)
    assert not list(tmp_path.glob("step-*"))
