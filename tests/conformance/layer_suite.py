"""What every Bayesian layer must do. A member joins with one :class:`Case`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whvi.errors import ShapeError
from whvi.layers import BayesianLayer
from whvi.sampling import (
    LocalReparameterization,
    MeanWeights,
    Sampler,
    WeightDraws,
    sampling,
)

DTYPE = torch.float64
EPS = torch.finfo(DTYPE).eps


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=dtype)


def scramble(module: nn.Module, seed: int = 0) -> nn.Module:
    """Move every parameter to a generic point: nothing zero, nothing symmetric."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(0.5 * noise)
    return module


def run(layer: nn.Module, x: Tensor, sampler: Sampler) -> Tensor:
    with sampling(sampler):
        return layer(x)


@dataclass(frozen=True)
class Case:
    """A member and what it promises.

    Attributes:
        build: Takes ``batch_shape`` as its only argument.
        row: Shape of one row of the input; the first entry is what the layer checks.
        out: Shape of one row of the output.
        is_bitwise: Whether a draw is a function to the last bit. Products of rows with a dense
            matrix are not: a BLAS sums in an order that depends on the number of rows.
        is_random: Whether two draws differ.
        has_kl: Whether ``kl()`` is a closed-form KL, hence non-negative and always the same.
        any_width: Whether every width of the input is right.
    """

    build: Callable[..., BayesianLayer]
    row: tuple[int, ...]
    out: tuple[int, ...]
    is_bitwise: bool = True
    is_random: bool = True
    has_kl: bool = True
    any_width: bool = False


def replica(layer: BayesianLayer, case: Case, index: int) -> BayesianLayer:
    """Return replica ``index`` as a layer of its own."""
    alone = case.build(batch_shape=()).to(DTYPE)
    alone.load_state_dict({name: t[index] for name, t in layer.state_dict().items()})
    return alone


def own_draw(layer: BayesianLayer, alone: BayesianLayer, drawn: WeightDraws, index: int) -> Sampler:
    """A sampler in which ``alone`` has the weights that replica ``index`` has in ``drawn``."""

    def never(source: torch.Generator | None) -> Tensor:
        raise LookupError

    sampler = WeightDraws()
    for module, twin in zip(layer.modules(), alone.modules(), strict=True):
        try:
            draw = drawn.draw_once(module, never)
        except LookupError:
            continue
        sampler.draw_once(twin, lambda _, draw=draw: draw[index])
    return sampler


class LayerSuite:
    """Join with ``class TestX(LayerSuite): case = Case(partial(X, 5, 7), (5,), (7,))``."""

    case: Case

    def make(
        self, batch_shape: tuple[int, ...] = (), *, dtype: torch.dtype = DTYPE
    ) -> BayesianLayer:
        return scramble(self.case.build(batch_shape=batch_shape).to(dtype))

    def rows(self, *leading: int, seed: int = 1, dtype: torch.dtype = DTYPE) -> Tensor:
        return normal(*leading, *self.case.row, seed=seed, dtype=dtype)

    def assert_same(self, actual: Tensor, expected: Tensor) -> None:
        """Bitwise for members that promise it, else up to the rounding of a dot product."""
        if self.case.is_bitwise:
            assert torch.equal(actual, expected)
        else:
            eps = torch.finfo(expected.dtype).eps
            torch.testing.assert_close(actual, expected, rtol=0, atol=64 * eps)

    # --- shapes ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("batch_shape", [(), (3,), (2, 3)])
    @pytest.mark.parametrize("inner", [(), (4,), (2, 4), (1, 2, 3), (0,), (2, 0)])
    def test_shape_for_any_leading_axes(
        self, batch_shape: tuple[int, ...], inner: tuple[int, ...]
    ) -> None:
        layer, x = self.make(batch_shape), self.rows(*batch_shape, *inner)
        for sampler in (WeightDraws(), LocalReparameterization(), MeanWeights()):
            assert run(layer, x, sampler).shape == (*batch_shape, *inner, *self.case.out)
        if inner:
            draws = WeightDraws(inner[0]) if inner[0] else WeightDraws()
            assert run(layer, x, draws).shape == (*batch_shape, *inner, *self.case.out)

    def test_a_wrong_width_is_refused_by_shape(self) -> None:
        if self.case.any_width:
            pytest.skip("takes every width")
        x = normal(4, self.case.row[0] + 1, *self.case.row[1:])
        for batch_shape in [(), (4,)]:
            with pytest.raises(ShapeError) as refused:
                self.make(batch_shape)(x)
            assert str(tuple(x.shape)) in str(refused.value)
            assert str(self.case.row[0]) in str(refused.value)

    def test_what_is_no_tensor_is_refused(self) -> None:
        for given in (self.rows(4).numpy(), self.rows(4).tolist(), None):
            with pytest.raises(
                ShapeError, match=f"got {type(given).__name__}; use torch.as_tensor"
            ):
                self.make()(given)

    @pytest.mark.parametrize(
        "sampler", [WeightDraws(), LocalReparameterization()], ids=["draws", "local"]
    )
    def test_a_wrong_number_of_replicas_is_refused_by_shape(self, sampler: Sampler) -> None:
        layer, x = self.make((3,)), self.rows(4, 5)
        with pytest.raises(ShapeError) as refused:
            run(layer, x, sampler)
        assert str(tuple(x.shape)) in str(refused.value)
        assert "(3,)" in str(refused.value) or "(3, " in str(refused.value)

    def test_a_missing_draws_axis_is_refused(self) -> None:
        layer = self.make()
        for x in (self.rows(6, 4), self.rows()):
            with pytest.raises(ShapeError, match="num_draws=5"):
                run(layer, x, WeightDraws(5))

    # --- forward leaves nothing behind -----------------------------------------------------------

    def test_forward_leaves_nothing_on_the_layer(self) -> None:
        layer = self.make()
        before = [dict(vars(module)) for module in layer.modules()]
        state = {name: t.clone() for name, t in layer.state_dict().items()}
        for sampler in (WeightDraws(), WeightDraws(4), LocalReparameterization(), MeanWeights()):
            run(layer, self.rows(4, 2), sampler)
        layer(self.rows(2))
        for module, then in zip(layer.modules(), before, strict=True):
            now = vars(module)
            assert now.keys() == then.keys()
            assert all(now[name] is then[name] for name in now)
        assert layer.state_dict().keys() == state.keys()
        assert all(torch.equal(t, state[name]) for name, t in layer.state_dict().items())

    def test_train_and_eval_change_nothing(self) -> None:
        layer, x = self.make(), self.rows(4)
        for make in (WeightDraws, LocalReparameterization):
            outputs = [
                run(layer.train(mode), x, make(generator=seeded(3))) for mode in (True, False)
            ]
            assert torch.equal(*outputs)

    def test_the_input_is_not_modified(self) -> None:
        layer, x = self.make(), self.rows(4)
        before = x.clone()
        for sampler in (WeightDraws(), LocalReparameterization(), MeanWeights()):
            y = run(layer, x, sampler)
            (y * 2).add_(1)
        assert torch.equal(x, before)

    # --- KL --------------------------------------------------------------------------------------

    def test_kl_needs_no_forward_and_has_one_value_per_replica(self) -> None:
        for batch_shape in [(), (3,), (2, 3)]:
            layer = self.case.build(batch_shape=batch_shape)
            value = layer.kl()
            assert value.shape == batch_shape
            assert value.isfinite().all()
            if self.case.has_kl:
                assert (value >= 0).all()
                layer(self.rows(*batch_shape, 2, dtype=torch.float32))
                assert torch.equal(layer.kl(), value)

    def test_kl_of_replicas_is_that_of_separate_layers(self) -> None:
        if not self.case.has_kl:
            pytest.skip("an estimate, or not a KL")
        layer = self.make((3,))
        for index in range(3):
            alone = replica(layer, self.case, index).kl()
            torch.testing.assert_close(layer.kl()[index], alone, rtol=1e-13, atol=1e-13)

    # --- samplers --------------------------------------------------------------------------------

    def test_default_is_one_new_weight_draw_per_call(self) -> None:
        layer, x = self.make(), self.rows().expand(5, *self.case.row)
        first, second = layer(x), layer(x)
        self.assert_same(first, first[:1].expand_as(first))
        assert torch.equal(first, second) is not self.case.is_random

    def test_weight_draws_have_an_axis_of_different_functions(self) -> None:
        layer, x = self.make(), self.rows(3)
        y = run(layer, x.expand(6, *x.shape), WeightDraws(6, seeded()))
        if self.case.is_random:
            pairs = torch.combinations(torch.arange(6))
            assert all(not torch.equal(y[i], y[j]) for i, j in pairs.tolist())

    def test_local_reparameterization_draws_for_every_row(self) -> None:
        if not self.case.is_random:
            pytest.skip("nothing is drawn")
        layer, x = self.make(), self.rows().expand(2000, *self.case.row)
        y = run(layer, x, LocalReparameterization(seeded(4))).flatten(1)
        spread = y.std(0)
        assert (spread > 0).all()
        standard = (y - y.mean(0)) / spread
        # The lag-1 correlation of n independent rows is normal with standard deviation n^-½.
        z = (standard[1:] * standard[:-1]).mean(0) * len(y) ** 0.5
        assert z.abs().max() < 5

    def test_replicas_have_noise_of_their_own(self) -> None:
        if not self.case.is_random:
            pytest.skip("nothing is drawn")
        layer = self.make((2,))
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter[1] = parameter[0]
        x = self.rows(1).expand(2, 50, *self.case.row)
        for sampler in (WeightDraws(generator=seeded()), LocalReparameterization(seeded())):
            y = run(layer, x, sampler)
            assert not torch.equal(y[0], y[1])

    def test_mean_weights_are_deterministic(self) -> None:
        layer, x = self.make(), self.rows(4)
        state = torch.get_rng_state()
        assert torch.equal(run(layer, x, MeanWeights()), run(layer, x, MeanWeights()))
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("make", [WeightDraws, LocalReparameterization])
    def test_the_generator_alone_decides(self, make: Callable[..., Sampler]) -> None:
        layer, x = self.make(), self.rows(4)
        state = torch.get_rng_state()
        first, again, other = (run(layer, x, make(generator=seeded(s))) for s in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(first, again)
        assert torch.equal(first, other) is not self.case.is_random

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("num_draws", [None, 3])
    def test_a_draw_is_a_function(self, dtype: torch.dtype, num_draws: int | None) -> None:
        """Other rows, their order, the batch size and chunks do not change a value."""
        layer, x = self.make(dtype=dtype), self.rows(37, dtype=dtype)
        sampler = WeightDraws(num_draws, seeded())
        axis = len(sampler.sample_shape)

        def value(rows: Tensor) -> Tensor:
            with torch.no_grad():
                return run(layer, rows.expand(*sampler.sample_shape, *rows.shape), sampler)

        whole = value(x)
        order = torch.randperm(37, generator=seeded())
        self.assert_same(value(x[order]), whole.index_select(axis, order))
        for size in (1, 2, 5, 16):
            chunks = torch.cat([value(part) for part in x.split(size)], dim=axis)
            self.assert_same(chunks, whole)
        self.assert_same(value(x[7]), whole.select(axis, 7))  # a row without a batch axis
        two_axes = value(x[:36].unflatten(0, (4, 9))).flatten(axis, axis + 1)
        self.assert_same(two_axes, whole.narrow(axis, 0, 36))

    # --- gradients and replicas ------------------------------------------------------------------

    @pytest.mark.parametrize("kind", ["mean", "draw", "draws", "local"])
    def test_gradients_are_right(self, kind: str) -> None:
        layer, x = self.make((2,)), self.rows(2, 3, 2).requires_grad_()
        names = [name for name, _ in layer.named_parameters()]

        def forward(x: Tensor, *parameters: Tensor) -> Tensor:
            call = dict(zip(names, parameters, strict=True))
            samplers = {
                "mean": MeanWeights(),
                "draw": WeightDraws(generator=seeded()),
                "draws": WeightDraws(3, seeded()),
                "local": LocalReparameterization(seeded()),
            }
            with torch.nn.utils.stateless._reparametrize_module(layer, call):
                return run(layer, x, samplers[kind])

        inputs = (x, *(p.detach().requires_grad_() for p in layer.parameters()))
        assert torch.autograd.gradcheck(forward, inputs, fast_mode=True)

    def test_replicas_are_separate_layers(self) -> None:
        """Values and gradients of R replicas are those of R layers with their parameters."""
        layer, x = self.make((3,)), self.rows(3, 4).requires_grad_()
        weight = normal(3, 4, *self.case.out, seed=8)
        drawn = WeightDraws(generator=seeded())
        run(layer, x, drawn)
        for kind in ("mean", "draw"):
            layer.zero_grad()
            x.grad = None
            y = run(layer, x, MeanWeights() if kind == "mean" else drawn)
            (y * weight).sum().backward(retain_graph=True)
            for index in range(3):
                alone = replica(layer, self.case, index)
                row = x[index].detach().requires_grad_()
                own = own_draw(layer, alone, drawn, index) if kind == "draw" else MeanWeights()
                expected = run(alone, row, own)
                if expected.requires_grad:
                    (expected * weight[index]).sum().backward(retain_graph=True)
                # dot products of up to some dozen terms of size one
                torch.testing.assert_close(y[index], expected, rtol=0, atol=64 * EPS)
                torch.testing.assert_close(x.grad[index], row.grad, rtol=0, atol=256 * EPS)
                for (name, p), q in zip(layer.named_parameters(), alone.parameters(), strict=True):
                    if q.grad is not None:
                        torch.testing.assert_close(
                            p.grad[index], q.grad, rtol=0, atol=1024 * EPS, msg=name
                        )

    # --- modules ---------------------------------------------------------------------------------

    def test_state_dict_is_plain_and_round_trips(self) -> None:
        layer, x = self.make((2,)), self.rows(2, 4)
        state = layer.state_dict()
        assert all(type(t) is Tensor for t in state.values())
        storages = {t.untyped_storage().data_ptr() for t in state.values()}
        assert len(storages) == len(state)
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in state.values())
        other = scramble(self.case.build(batch_shape=(2,)).to(DTYPE), seed=5)
        other.load_state_dict(state)
        for make in (WeightDraws, LocalReparameterization):
            values = [run(each, x, make(generator=seeded())) for each in (layer, other)]
            assert torch.equal(*values)

    def test_deepcopy_is_equal_and_independent(self) -> None:
        layer, x = self.make(), self.rows(4)
        twin = copy.deepcopy(layer)
        values = [run(each, x, WeightDraws(generator=seeded())) for each in (layer, twin)]
        assert torch.equal(*values)
        before = {name: t.clone() for name, t in layer.state_dict().items()}
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        assert all(torch.equal(t, before[name]) for name, t in layer.state_dict().items())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_to_dtype(self, dtype: torch.dtype) -> None:
        layer = self.make().to(dtype)
        assert {p.dtype for p in layer.parameters()} <= {dtype}
        for sampler in (WeightDraws(), LocalReparameterization(), MeanWeights()):
            assert run(layer, self.rows(4, dtype=dtype), sampler).dtype == dtype
        assert layer.kl().dtype == dtype

    def test_repr_shows_the_sizes(self) -> None:
        shown = repr(self.make())
        assert type(self.make()).__name__ in shown
        assert self.case.any_width or str(self.case.row[0]) in shown

    def test_reset_is_reproducible(self) -> None:
        layer: Any = self.make()
        if not list(layer.parameters()):
            pytest.skip("has no parameters")
        states = []
        for _ in range(2):
            layer.reset_parameters(generator=seeded(2))
            states.append({name: t.clone() for name, t in layer.state_dict().items()})
        assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())
