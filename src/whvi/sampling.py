"""How stochastic layers draw their weights: an explicit sampler, set by a context.

A layer calls :func:`current_sampler` when it runs. There are three samplers:

- :class:`WeightDraws` (the default): a draw of the weights is one function, shared by all rows.
- :class:`LocalReparameterization`: fresh weights for every row, for low-variance gradients.
- :class:`MeanWeights`: the posterior mean, no noise.

``.train()`` and ``.eval()`` have no effect on them. Leading axes of a layer's input are
``(*batch_shape, *inner, features)``: replicas first, then draws and rows.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch.compiler import is_compiling
from torch.utils import checkpoint

from whvi._checks import check_positive_int
from whvi._kernel import traced
from whvi._kernel.backend import is_vmapped
from whvi._kernel.noise import normal_from_seed
from whvi.errors import ConfigError, ShapeError

_SEED_STEP = 0x1E3779B97F4A7C15  # odd: the steps visit every seed before one comes back
_NUM_SEEDS = 2**63


class RandomVector(Protocol):
    """What a sampler turns into a value: a posterior."""

    @property
    def mean(self) -> Tensor:
        """Return the mean, shape ``(*batch_shape, n)``."""

    def draw(self, inner_shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Return draws, shape ``(*batch_shape, *inner_shape, n)``."""


@final
class MeanWeights:
    """Use the posterior mean of every weight; nothing is random."""

    generator: torch.Generator | None = None
    sample_shape: tuple[int, ...] = ()

    def value(self, posterior: RandomVector, inner_shape: tuple[int, ...] = ()) -> Tensor:
        """Return the mean, for all rows."""
        return posterior.mean

    def copy(self) -> MeanWeights:
        """Return itself: it has no state."""
        return self


@final
class LocalReparameterization:
    """Draw fresh weights for every row (Kingma et al., 2015; equation 3 of the paper).

    Args:
        generator: Source of randomness; ``None`` is torch's default generator.
    """

    sample_shape: tuple[int, ...] = ()

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self._next_seed: int | Tensor | None = None  # a tensor under torch.compile

    @classmethod
    def starting_at(cls, seed: int) -> LocalReparameterization:
        """Return a sampler whose streams of noise begin with ``seed``: the same at every use."""
        sampler = cls()
        sampler._next_seed = seed
        return sampler

    def value(self, posterior: RandomVector, inner_shape: tuple[int, ...] = ()) -> Tensor:
        """Return a draw for every row of ``inner_shape``: ``(*batch_shape, *inner_shape, n)``."""
        return posterior.draw(inner_shape, self.generator)

    def copy(self) -> LocalReparameterization:
        """Return a sampler that draws what this one would draw from now on."""
        sampler = LocalReparameterization(_copied(self.generator))
        sampler._next_seed = self._next_seed
        return sampler

    def next_seed(self) -> int | Tensor:
        """Return a new seed for a stream of noise; the first one is taken from the generator.

        Later ones are steps of a fixed odd size from it, so that a pass through many layers asks
        the generator only once.
        """
        if is_compiling() or _len_torch_dispatch_stack() > 0:
            return self._next_traced()
        seed = draw_seed(self.generator) if self._next_seed is None else int(self._next_seed)
        self._next_seed = (seed + _SEED_STEP) % _NUM_SEEDS
        return seed

    def _next_traced(self) -> Tensor:
        """Return the same as a tensor, which is filled when the graph runs."""
        seed = self._next_seed
        if seed is None and not is_compiling():
            seed = torch.randint(_NUM_SEEDS - 1, (), generator=self.generator)
        elif seed is None and self.generator is not None:
            raise ConfigError(
                "torch.compile cannot trace a torch.Generator; leave the generator out and call "
                "torch.manual_seed before"
            )
        elif seed is None:
            seed = traced.draw_seed()
        elif not isinstance(seed, Tensor):
            seed = torch.full((), seed, dtype=torch.int64)
        self._next_seed = (seed + _SEED_STEP) & (_NUM_SEEDS - 1)
        return seed

    def noise(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return standard normals of ``shape``, of the data type and on the device of ``like``."""
        if is_vmapped():  # a seed would be one number for all entries of the map
            return torch.randn(
                shape, generator=self.generator, dtype=like.dtype, device=like.device
            )
        return normal_from_seed(shape, self.next_seed(), dtype=like.dtype, device=like.device)


@final
class WeightDraws:
    """Draw functions: within one sampler a layer keeps its drawn weights for every call.

    Args:
        num_draws: ``S``: inputs carry a draws axis of that size right after ``batch_shape``,
            and each of its entries has its own weights. ``None``: one draw, no such axis.
        generator: Source of randomness; ``None`` is torch's default generator.
    """

    def __init__(
        self, num_draws: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        if num_draws is not None:
            check_positive_int("num_draws", num_draws)
        self.num_draws = num_draws
        self.generator = generator
        self.sample_shape: tuple[int, ...] = () if num_draws is None else (num_draws,)
        self._draws: dict[object, Tensor] = {}
        self._states: dict[object, torch.Generator | None] = {}  # to draw the same again
        self.keeps_states = False

    def value(self, posterior: RandomVector, inner_shape: tuple[int, ...] = ()) -> Tensor:
        """Return the draws kept for this posterior, ``(*batch_shape, *sample_shape, n)``."""
        return self.draw_once(posterior, lambda source: posterior.draw(self.sample_shape, source))

    def draw_once(self, key: object, draw: Callable[[torch.Generator | None], Tensor]) -> Tensor:
        """Return what ``draw`` gave for ``key`` (a module) the first time it was asked."""
        if key not in self._draws:
            source = self.generator
            if key in self._states:
                source = _copied(self._states[key])
            elif self.keeps_states:
                self._states[key] = _copied(source or torch.default_generator)
            self._draws[key] = draw(source)
        return self._draws[key]

    def copy(self) -> WeightDraws:
        """Return a sampler that draws what this one drew, and then what it would draw.

        Draws with a graph are shared; those made without one are made again.
        """
        sampler = WeightDraws(self.num_draws, _copied(self.generator))
        sampler._draws = {k: v for k, v in self._draws.items() if k not in self._states}
        sampler._states = dict(self._states)
        return sampler


def _copied(generator: torch.Generator | None) -> torch.Generator | None:
    """Return a generator in the same state; torch's default one is checkpointing's to restore."""
    if generator is None:
        return None
    return torch.Generator(generator.device).set_state(generator.get_state())


Sampler = MeanWeights | LocalReparameterization | WeightDraws

_current: ContextVar[Sampler | None] = ContextVar("whvi_sampler", default=None)


class _Traced(threading.local):
    """The same where torch.compile can read it, which knows no context variables."""

    def __init__(self) -> None:
        self.sampler: Sampler | None = None


_traced = _Traced()


def current_sampler() -> Sampler:
    """Return the sampler in force: the innermost :func:`sampling`, else one new weight draw.

    When gradient checkpointing runs a layer again, it is the one of the first time, as it was.
    """
    if is_compiling():
        return _traced.sampler or WeightDraws()
    memory, again = _checkpoint_in_force()
    if again and memory is not None:
        return memory.next()
    sampler = _current.get() or WeightDraws()
    if memory is not None:
        if isinstance(sampler, WeightDraws) and not torch.is_grad_enabled():
            sampler.keeps_states = True
        memory.entries.append(sampler.copy())
    return sampler


@contextlib.contextmanager
def sampling(sampler: Sampler) -> Iterator[Sampler]:
    """Make ``sampler`` the one that stochastic layers use inside the ``with`` block."""
    before, _traced.sampler = _traced.sampler, sampler
    token = None if is_compiling() else _current.set(sampler)
    try:
        yield sampler
    finally:
        _traced.sampler = before
        if token is not None:
            _current.reset(token)


# ---- gradient checkpointing ----------------------------------------------------------------------


@final
class _Memory:
    """Samplers as they were when layers of a checkpointed function asked for them, in order."""

    def __init__(self) -> None:
        self.entries: list[Sampler] = []
        self._taken: dict[int, int] = {}  # by backward pass

    def next(self) -> Sampler:
        """Return a copy of the next one of this backward pass."""
        task = torch._C._current_graph_task_id()
        position = self._taken.get(task, 0)
        if position >= len(self.entries):
            raise ConfigError(
                "gradient checkpointing runs more stochastic layers in the backward pass than in "
                f"the forward pass ({len(self.entries)}); checkpoint blocks that do not contain "
                "checkpointed blocks themselves"
            )
        self._taken[task] = position + 1
        return self.entries[position].copy()


def _checkpoint_in_force() -> tuple[_Memory | None, bool]:
    """Return the memory of the checkpointed function around this call; is it running again?

    torch keeps no public record of it. Its frame (``use_reentrant=False``) is found in the hooks
    on saved tensors, its context (``use_reentrant=True``) on the stack of calls.
    """
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if torch._C._current_graph_task_id() != -1:
        place = _on_the_stack({"unpack_hook": "frame", "backward": "ctx"})
        return _memory_of(place), True
    if hooks is not None:
        cells = getattr(hooks[0], "__closure__", None) or ()
        found = (c.cell_contents for c in cells)
        return _memory_of(next((v for v in found if hasattr(v, "recompute_fn")), None)), False
    if not torch.is_grad_enabled():
        return _memory_of(_on_the_stack({"forward": "ctx"})), False
    return None, False


def _on_the_stack(names: dict[str, str]) -> object | None:
    """Return the variable of the innermost function of torch's checkpointing so named."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == checkpoint.__file__ and code.co_name in names:
            found: object = frame.f_locals[names[code.co_name]]
            return found
        frame = frame.f_back
    return None


def _memory_of(place: Any) -> _Memory | None:
    if place is None:
        return None
    if not hasattr(place, "whvi_memory"):
        place.whvi_memory = _Memory()
    memory: _Memory = place.whvi_memory
    return memory


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Take a seed from ``generator`` (``None``: torch's default), advancing it."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(_NUM_SEEDS - 1, (), generator=generator, device=device))


def check_draws_axis(x: Tensor, sampler: Sampler, batch_ndim: int, row_ndim: int = 1) -> None:
    """Refuse an input without the draws axis that the sampler announces.

    ``x`` is ``(*batch_shape, *inner, *row)`` with ``batch_ndim`` and ``row_ndim`` outer axes.
    """
    if sampler.sample_shape:
        inner = x.shape[batch_ndim : x.dim() - row_ndim]
        if inner[:1] != sampler.sample_shape:
            (num_draws,) = sampler.sample_shape
            raise ShapeError(
                f"with WeightDraws(num_draws={num_draws}) the input needs shape "
                f"(*batch_shape, {num_draws}, ..., features), got {tuple(x.shape)}"
            )


def insert_inner_axes(v: Tensor, batch_ndim: int, inner_ndim: int, own_ndim: int = 1) -> Tensor:
    """Insert axes of size 1 so that ``(*batch, *some_inner, *own)`` has ``inner_ndim`` of them."""
    missing = inner_ndim - (v.dim() - batch_ndim - own_ndim)
    split = v.dim() - own_ndim
    return v.reshape(*v.shape[:split], *(1,) * missing, *v.shape[split:]) if missing else v
