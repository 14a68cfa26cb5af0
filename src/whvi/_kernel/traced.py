"""The kernel's products and noise as operators of torch, for graphs that torch.compile makes.

A graph cannot hold a call of the kernel or a number taken from a generator; it can hold an
operator whose shapes are known (``register_fake``) and whose gradient is another operator. Values
are those of eager mode: seeds are tensors that the same generator fills when the graph runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from whvi._kernel.layout import BlockPlan, Shape
from whvi._kernel.noise import normal_from_seed
from whvi._kernel.product import PreparedProduct, prepare, product_backward, product_forward

_LIBRARY = torch.library.Library("whvi", "DEF")
_OPERANDS = "Tensor x, Tensor s1, Tensor g, Tensor s2, Tensor? scale, Tensor? bias"
_LIBRARY.define(f"product({_OPERANDS}, Tensor? seed, int out_features) -> Tensor")
_LIBRARY.define(
    f"product_backward(Tensor grad, {_OPERANDS}, Tensor? seed, int out_features, bool wants_x)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define("seed(Tensor(a!) order) -> Tensor")
_LIBRARY.define("normal(Tensor seed, SymInt[] shape, ScalarType dtype) -> Tensor")
_LIBRARY.define("randn(Tensor(a!) order, SymInt[] shape, ScalarType dtype) -> Tensor")
_LIBRARY.define("words(Tensor(a!) order, SymInt[] shape) -> Tensor")

_ORDER = torch.zeros(())  # said to be changed by every draw: none is moved or made from another


def draw_seed() -> Tensor:
    """Put a seed from torch's default generator into the graph."""
    seed: Tensor = torch.ops.whvi.seed(_ORDER)
    return seed


def randn(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Put ``torch.randn`` into the graph, as it is: the compiler has a generator of its own."""
    noise: Tensor = torch.ops.whvi.randn(_ORDER, shape, dtype)
    return noise


def words(shape: Sequence[int]) -> Tensor:
    """Put 31 random bits per entry into the graph."""
    found: Tensor = torch.ops.whvi.words(_ORDER, shape)
    return found


@lru_cache(maxsize=4096)
def _prepared(x: Shape, s1: Shape, g: Shape, out_features: int, noisy: bool) -> PreparedProduct:
    """Prepare the call of a layer, which always fits into the loops of the kernel."""
    plan = BlockPlan.for_shape(x[-1], out_features)
    return cast(PreparedProduct, prepare(x, s1, g, s1, plan, noisy))


def _forward(
    x: Tensor, s1: Tensor, g: Tensor, s2: Tensor, scale: Any, bias: Any, seed: Any, outputs: int
) -> Tensor:
    prepared = _prepared(x.shape, s1.shape, g.shape, outputs, scale is not None)
    operands, stream = (x, s1, g, s2, scale, bias), 0 if seed is None else int(seed)
    return product_forward(operands, prepared, stream, False)[0]


def _backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *operands, seed, outputs, wants_x = given
    x, s1, g = (t.shape for t in operands[:3])
    prepared = _prepared(x, s1, g, outputs, operands[4] is not None)
    stream = 0 if seed is None else int(seed)
    found = product_backward(operands, prepared, stream, None, grad, wants_x)
    return tuple(grad.new_empty(0) if g is None else g for g in found)


def _fake_forward(*given: Any) -> Tensor:
    y: Tensor = given[0].new_empty((*given[0].shape[:-1], given[-1]))
    return y


def _fake_backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *operands, _, _, wants_x = given
    wanted = [t if i or wants_x else None for i, t in enumerate(operands)]
    return tuple(grad.new_empty(0 if t is None else t.shape) for t in wanted)


def _randn(order: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.randn(tuple(shape), dtype=dtype)


def _words(order: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=torch.int32).random_()


def _empty(given: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype)


_EAGER: dict[str, Callable[..., Any]] = {
    "product": _forward,
    "product_backward": _backward,
    "seed": lambda order: torch.randint(2**63 - 1, ()),
    "normal": lambda seed, shape, dtype: normal_from_seed(tuple(shape), int(seed), dtype=dtype),
    "randn": _randn,
    "words": _words,
}
_FAKE: dict[str, Callable[..., Any]] = {
    "product": _fake_forward,
    "product_backward": _fake_backward,
    "seed": lambda order: torch.empty((), dtype=torch.int64),
    "normal": _empty,
    "randn": _empty,
    "words": _empty,
}
for _name, _function in _EAGER.items():
    _LIBRARY.impl(_name, _function, "CPU" if "product" in _name else "CompositeExplicitAutograd")
    torch.library.register_fake(f"whvi::{_name}", _FAKE[_name], lib=_LIBRARY)
