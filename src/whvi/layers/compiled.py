r"""A plain network as a list of kernel calls: what ``whvi.fit`` and ``whvi.elbo`` run for layers.

At the paper's sizes (width 128, batch 64) a training step spends more time between operations than
in them. For an ``nn.Sequential`` of linear layers and activations, :func:`compile_model` makes a
:class:`CompiledModel`: every module becomes a *link* with a forward and a backward pass by hand,
which call the kernels that the layers call, with the same noise.

    forward:    f = link_L(… link_1(x)),   kl = Σ_l KL(q_l ‖ p_l)
    backward:   the links in reverse order; the gradients of the KL are added to theirs

Values are those of the layers bit by bit; gradients agree to rounding. A model is compiled only if
nothing can be missed that way: :func:`why_not_compiled` names what stands against it, such as a
hook. ``FitConfig(compiled=False)`` always runs the layers. :func:`compiled_now` is for a
model that its owner may change at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, cast, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from whvi._kernel.backend import backend, is_tracing, is_transformed, kernel_takes
from whvi._kernel.dense import local_backward, local_forward
from whvi._kernel.kl import add_kl_gradients, kl_forward
from whvi._kernel.noise import fill_with_normals
from whvi._kernel.product import PreparedProduct, prepare, product_backward, product_forward
from whvi.layers.linear import MeanFieldLinear, WHVILinear
from whvi.layers.matrix import DenseGaussianMatrix
from whvi.layers.sines import Sine, Tile
from whvi.layers.structured import StructuredMatrix
from whvi.posteriors import DiagonalGaussian
from whvi.priors import EmpiricalBayesPrior, FixedPrior
from whvi.sampling import LocalReparameterization

Kept = tuple[Any, ...]
Gradients = list[Tensor | None]  # of the input, then of the parameters of a link

# exact types: a subclass or a parametrization may do anything
_MATRICES: dict[type, type] = {WHVILinear: StructuredMatrix, MeanFieldLinear: DenseGaussianMatrix}
_MASK = torch.ops.aten.threshold_backward.grad_input  # named here: to find it takes time
_DISTRIBUTIONS = (DiagonalGaussian, EmpiricalBayesPrior, FixedPrior)


def compile_model(model: nn.Module, *, reuse: bool = False) -> CompiledModel | None:
    """Return ``model`` as kernel calls; ``None`` where :func:`why_not_compiled` has a reason.

    With ``reuse`` every call writes over the tensors that the call before it returned.
    """
    if why_not_compiled(model):
        return None
    return CompiledModel(cast(nn.Sequential, model), reuse=reuse)


def why_not_compiled(model: nn.Module) -> str | None:
    """Return why ``model`` has to run by its layers; ``None`` if it can be compiled."""
    return next((reason for applies, reason in _obstacles(model) if applies), None)


def _hooks(owner: object, prefix: str = "") -> list[dict[int, Any]]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [getattr(owner, prefix + kind) for kind in kinds]


def _obstacles(model: Any) -> Iterator[tuple[bool, str]]:
    """Yield conditions and reasons; each relies on those before it not being met."""
    yield backend.kernel is None, f"the compiled kernel is off: {backend.reason}"
    plain = type(model) is nn.Sequential and len(model) > 0
    yield not plain, f"only a plain nn.Sequential with modules is compiled, not {_kind(model)}"
    yield any(_hooks(nn_module, "_global")), "there are hooks on all modules"
    for name, module in model.named_modules():
        yield any(_hooks(module)), f"module {name!r} has hooks"
        replaced = "forward" in vars(module) or module._compiled_call_impl is not None
        yield replaced, f"module {name!r} has a forward of its own"
    modules = list(model)[type(model[0]) is Tile :]
    for module in modules:
        yield type(module) not in _LINKS, f"{_kind(module)} is not among the compiled modules"
    layers = [module for module in modules if type(module) in _MATRICES]
    for layer in layers:
        yield layer.bias_posterior is not None, "a random bias is not compiled"
        matrix, expected = layer.matrix, _MATRICES[type(layer)]
        yield type(matrix) is not expected, f"{_kind(layer)} of {_kind(matrix)} is not compiled"
        for part in (matrix.posterior, matrix.prior):
            yield type(part) not in _DISTRIBUTIONS, f"{_kind(part)} is not compiled"
        if type(layer) is WHVILinear:
            other = matrix.mixing.name != "hadamard"
            yield other, f"the transform {matrix.mixing.name} is not compiled"
        is_column = type(layer) is WHVILinear and matrix.plan.is_column
        yield is_column, "WHVILinear with one input or output is not compiled"
    # an activation writes over what the layer before it gave, and over gradients from behind
    enclosed = layers and modules[0] is layers[0] and modules[-1] is layers[-1]
    yield not enclosed, "the first and the last module must be linear layers"
    yield len(set(layers)) < len(layers), "a layer occurs twice"
    for one, other in pairwise(layers):  # left to the layers to refuse
        fits = one.out_features == other.in_features and one.batch_shape == other.batch_shape
        yield not fits, "the sizes of its layers do not fit"
    parameters = [p for p in CompiledModel(model).parameters if p is not None]
    yield len(set(parameters)) < len(parameters), "a parameter is used twice"
    for p in parameters:
        yield bool(p._backward_hooks or p._post_accumulate_grad_hooks), "a parameter has hooks"
        fits = kernel_takes(p) and p.dtype is parameters[0].dtype and p.is_contiguous()
        yield not fits, "parameters must be contiguous, on the CPU, of one type, float32 or float64"


def _kind(part: object) -> str:
    return type(part).__name__


@final
class _Memory:
    """Tensors that a link has made, to be written over by its next call of the same kind.

    A step of a small network makes twenty; each takes as long as an addition.
    """

    def __init__(self, reuse: bool) -> None:
        self._reuse = reuse
        self._kind: object = None
        self._results: Any = None
        self.gradients: Any = None

    def results_of(self, kind: object) -> Any:
        """Return what was kept if the call is of the ``kind`` of the last one, else forget it."""
        if kind != self._kind:
            self._kind, self._results, self.gradients = kind, None, None
        return self._results

    def keep(self, *, results: Any = None, gradients: Any = None) -> None:
        """Keep the results of a forward or the gradients of a backward pass."""
        if self._reuse and results is not None:
            self._results = results
        elif self._reuse:
            self.gradients = gradients


@final
class _StructuredLink:
    """``WHVILinear`` with a diagonal posterior and a deterministic bias, or none."""

    def __init__(self, layer: WHVILinear, reuse: bool) -> None:
        matrix = layer.matrix
        q = cast(DiagonalGaussian, matrix.posterior)
        self._plan, self._shape = matrix.plan, matrix.s1.shape
        # in the order of the operands after x
        self.parameters = [matrix.s1, q.loc, matrix.s2, q.log_scale, layer.bias]
        self.random = (1, 3)  # where loc and log_scale stand among them
        self.kl_term = q.kl_term(matrix.prior)
        self._memory = _Memory(reuse)

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        shape, seed = self._shape, int(sampler.next_seed())
        # layers always fit into the loops of the kernel
        prepared = cast(PreparedProduct, prepare(x.shape, shape, shape, shape, self._plan, True))
        into = self._memory.results_of(prepared)
        y, noise = made = product_forward((x, *self.parameters), prepared, seed, True, into)
        self._memory.keep(results=made)
        return y, (x, prepared, seed, noise)

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> Gradients:
        x, prepared, seed, noise = kept
        given, into = (x, *self.parameters), self._memory.gradients
        made = product_backward(given, prepared, seed, noise, grad, wants_x, into)
        self._memory.keep(gradients=made)
        return made


@final
class _DenseLink:
    """``MeanFieldLinear`` with a deterministic bias, or none."""

    def __init__(self, layer: MeanFieldLinear, reuse: bool) -> None:
        q = layer.matrix.posterior
        self.parameters = [q.loc, q.log_scale, layer.bias]
        self.random = (0, 1)
        self.kl_term = q.kl_term(layer.matrix.prior)
        self._out_features = layer.out_features
        self._memory = _Memory(reuse)

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        shape = (*x.shape[:-1], self._out_features)
        into = self._memory.results_of(shape)
        noise = x.new_empty(shape) if into is None else into[0]
        fill_with_normals(noise, int(sampler.next_seed()))
        loc, log_scale, bias = self.parameters
        given = (x, cast(Tensor, loc), cast(Tensor, log_scale), bias, noise)
        y, kept = local_forward(*given, into and into[1:])
        self._memory.keep(results=(noise, y, *kept[5:]))
        return y, kept

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> Gradients:
        made = list(local_backward(kept, grad, wants_x, self._memory.gradients))
        self._memory.keep(gradients=made)
        return made


@final
class _ReluLink:
    """``max(x, 0)``, written over the output of the layer before it."""

    parameters: tuple[()] = ()

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        return x.clamp_min_(0), (x,)

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> Gradients:
        """Mask ``grad``, writing over it: it came from the link behind, nobody else has it."""
        return [_MASK(grad, kept[0], 0, grad_input=grad)]


@final
class _SineLink:
    """:class:`Sine`, whose derivative is written over the gradient."""

    parameters: tuple[()] = ()

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        return torch.sin(x).mul_(Sine.SCALE), (x,)

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> Gradients:
        return [grad.mul_(torch.cos(kept[0])).mul_(Sine.SCALE)]


_LINKS: dict[type, Any] = {
    WHVILinear: _StructuredLink,
    MeanFieldLinear: _DenseLink,
    nn.ReLU: lambda module, reuse: _ReluLink(),
    Sine: lambda module, reuse: _SineLink(),
}


@final
class CompiledModel:
    """Function values and KL of a model, and their gradients; see :func:`compile_model`.

    ``parameters`` lists what :meth:`backward` gives gradients of, ``None`` for a missing bias.
    """

    def __init__(self, model: nn.Sequential, *, reuse: bool = False) -> None:
        modules = list(model)
        self._tile = modules.pop(0) if type(modules[0]) is Tile else None
        self._first = cast(WHVILinear | MeanFieldLinear, modules[0])
        self.batch_shape = self._first.batch_shape
        self._links = [_LINKS[type(module)](module, reuse) for module in modules]
        self._hooks = [hooks for module in model.modules() for hooks in _hooks(module)]
        self._kl_terms = [link.kl_term for link in self._links if link.parameters]
        self.parameters: list[nn.Parameter | None] = []
        for link in self._links:
            self.parameters += link.parameters

    @property
    def is_current(self) -> bool:
        """Whether the model still has no hooks; a callback may have added some."""
        return not any(self._hooks)

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Tensor, Kept]:
        """Return ``model(x)``, ``kl(model)`` and what :meth:`backward` needs, outside autograd.

        ``x`` is ``(*batch_shape, *inner, in_features)``; call it under ``torch.no_grad()``.
        """
        if self._tile is not None:
            x = self._tile(x)
        self._first._check(x)
        links: list[Kept] = []
        for link in self._links:
            x, kept = link.forward(x, sampler)
            links.append(kept)
        kl, variances = kl_forward(self._kl_terms, self.batch_shape)
        return x, kl, (links, variances)

    def backward(self, kept: Kept, grad: Tensor, grad_kl: Tensor) -> Gradients:
        """Return the gradients of ``parameters``, given those of the two values of forward."""
        links, variances = kept
        gradients: list[Gradients] = []
        into: list[tuple[Any, Any]] = []
        for i in reversed(range(len(self._links))):
            link = self._links[i]
            grad, *to_parameters = link.backward(links[i], grad, i > 0)
            gradients.append(to_parameters)
            if link.parameters:
                loc, log_scale = link.random
                into.append((to_parameters[loc], to_parameters[log_scale]))
        add_kl_gradients(grad_kl, self._kl_terms, variances, into[::-1])
        return [g for link in reversed(gradients) for g in link]


# ---- for a model that may change between calls ---------------------------------------------------

_VALUES: Any = dict.values
_DTYPE = attrgetter("dtype")
_KINDS = frozenset([*_LINKS, Tile])


@final
class _Snapshot:
    """What a verdict of :func:`why_not_compiled` rests on, to see whether it has changed.

    It is taken at every call of ``whvi.elbo``, hence loops that run without Python code.
    """

    def __init__(self, model: nn.Module) -> None:
        self.compiled = compile_model(model)
        modules = list(model.modules())
        self._below = modules[1:]  # not the model: it must not be kept alive from here
        self._attributes = [vars(module) for module in modules]
        self._seen_attributes = [dict(attributes) for attributes in self._attributes]
        self._members: list[dict[str, Any]] = []
        for module in modules:
            self._members += [module._modules, module._parameters]
        self._parameters = list(model.parameters())
        self._kept = self._contents()  # so that no identity comes back
        self._seen = self._state()

    def _contents(self) -> list[Any]:
        return list(chain.from_iterable(map(_VALUES, self._members)))

    def _state(self) -> tuple[Any, ...]:
        ps = self._parameters
        seen = (type, self._below), (id, self._contents()), (Tensor.data_ptr, ps), (Tensor.size, ps)
        return tuple([list(map(*pair)) for pair in (*seen, (_DTYPE, ps))])

    @property
    def is_current(self) -> bool:
        """Whether modules, their attributes and their parameters are those that were seen."""
        try:
            same = self._attributes == self._seen_attributes
        except (RuntimeError, ValueError):  # other arrays than before, which have no truth value
            same = False
        return (
            same
            and self._state() == self._seen
            and (self.compiled is None or self.compiled.is_current)
            and not any(_hooks(nn_module, "_global"))
        )


_SNAPSHOTS: WeakKeyDictionary[nn.Module, _Snapshot] = WeakKeyDictionary()


def compiled_now(model: nn.Module) -> CompiledModel | None:
    """Return :func:`compile_model` of ``model``, made again only if something has changed.

    ``None`` also where something watches single operations, and has to see those of the layers: a
    trace, a transform, autocast, hooks on saved tensors.
    """
    if (
        type(model) is not nn.Sequential
        or not _KINDS.issuperset(map(type, model._modules.values()))
        or is_tracing()
        or is_transformed()
        or torch.is_autocast_enabled("cpu")
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    ):
        return None
    snapshot = _SNAPSHOTS.get(model)
    if snapshot is None or not snapshot.is_current:
        snapshot = _SNAPSHOTS[model] = _Snapshot(model)
    return snapshot.compiled
