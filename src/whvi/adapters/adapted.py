r"""A frozen layer with Bayesian residuals: ``y = W0 x + b0 + ΔW x``, ``ΔW ~ q`` (structured).

Several adapters live on one base by name; at most one of them is active. :class:`Adapted` is a
layer with residuals, :class:`Trained` any module of which every adapter has a copy of its own.
"""

from __future__ import annotations

import copy
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from whvi._checks import check_module, check_tensor
from whvi.adapters.kinds import is_transposed, num_axes, plain_weight, twin_of
from whvi.adapters.start import start_at_zero
from whvi.errors import ConfigError
from whvi.layers import BayesianLayer
from whvi.layers.deferred import deferred
from whvi.layers.linear import RandomAffine
from whvi.layers.protocol import as_fx_leaf
from whvi.posteriors import Posterior
from whvi.priors import Prior


@final
class Adapted(BayesianLayer):
    """A plain layer whose weights are frozen, plus the residual of the active adapter.

    What is not defined here (``in_features``, ``stride``, …) is that of the plain layer;
    :func:`whvi.convert` freezes it.

    Args:
        base: ``nn.Linear``, ``nn.Conv1d/2d/3d``, or ``Conv1D`` of transformers.
    """

    batch_shape = ()
    active: str | None

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.adapters = nn.ModuleDict()
        self.options: dict[str, dict[str, Any]] = {}  # with which each adapter was made
        self.active = None
        self.training = base.training

    def add(self, name: str, residual: RandomAffine, options: dict[str, Any]) -> None:
        """Add a residual, and remember with which options of :func:`residual_of` it was made."""
        self.adapters[name] = residual.train(self.training)
        self.options[name] = options

    @property
    def residual(self) -> RandomAffine | None:
        """The layer of the active adapter, if there is one."""
        return None if self.active is None else cast(RandomAffine, self.adapters[self.active])

    def forward(self, x: Any) -> Tensor:
        """Return ``base(x) + residual(x)`` with weights as the sampler in force says."""
        if isinstance(x, Proxy):
            return cast(Tensor, as_fx_leaf(self, x))
        check_tensor("input", x)
        y, residual = self._base(x), self.residual
        if residual is None:
            return y
        change: Tensor = residual(x.to(residual.matrix.posterior.loc.dtype))
        return y + change.to(y.dtype)

    def _base(self, x: Tensor) -> Tensor:
        """Run the base; torch's convolutions take one leading axis only."""
        n = num_axes(self.base)
        if not n or x.dim() <= n + 2:
            return cast(Tensor, self.base(x))
        y = self.base(x.flatten(0, -2 - n))
        return cast(Tensor, y.unflatten(0, x.shape[: -1 - n]))

    def kl(self) -> Tensor:
        """Return the KL of the active residual in nats; zero without one."""
        return torch.zeros(()) if self.residual is None else self.residual.kl()

    def kl_terms(self) -> list[tuple[Posterior, Prior]] | None:
        """See :meth:`BayesianLayer.kl_terms`."""
        return [] if self.residual is None else self.residual.kl_terms()

    @property
    def weight(self) -> Tensor:
        """``W0 + ΔW`` under the active sampler, laid out as in the base; see ``WHVILinear``."""
        residual, base = self.residual, cast(Tensor, self.base.weight)
        if residual is None:
            return base
        change = residual.weight
        if is_transposed(self.base):
            return deferred(lambda: base + change.mT, (*change.shape[:-2], *base.shape), base)
        return deferred(lambda: base + change.to(base.dtype), tuple(change.shape), base)

    @property
    def num_dense(self) -> int:
        """Parameters of the plain layer, for :func:`whvi.summary`."""
        return sum(p.numel() for p in self.base.parameters())

    @torch.no_grad()
    def merge(self) -> nn.Module:
        """Add the mean residual to the weights of the base, in place, and return the base."""
        if self.residual is not None:
            weight = plain_weight(self.base)
            weight.add_(self.residual._shaped(self.residual.matrix.mean))
        return self.base

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            base = self.__dict__.get("_modules", {}).get("base")
            if base is None:
                raise
            return getattr(base, name)


def residual_of(base: nn.Module, *, relative_scale: float = 0.1, **options: Any) -> RandomAffine:
    """Make a residual of a plain layer that starts at zero; see :class:`whvi.WHVILinear`."""
    residual = twin_of(base, bias=False, **options)
    start_at_zero(residual, plain_weight(base), relative_scale)
    return residual


@final
class Trained(nn.Module):
    """A module of which every adapter trains a copy: a head, a norm.

    What is not defined here (``weight``, ``out_features``, …) is that of the copy that runs.
    Attributes have the names of peft's wrapper for the same purpose, by which the KL of copies
    that do not run is left out.
    """

    active: str | None

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original_module = original
        self.modules_to_save = nn.ModuleDict()
        self.active = None
        self.training = original.training

    def add(self, name: str) -> None:
        """Add a copy of the original."""
        self.modules_to_save[name] = copy.deepcopy(self.original_module)

    @property
    def active_adapters(self) -> list[str]:
        """The name of the copy that runs."""
        return [] if self.active is None else [self.active]

    @property
    def disable_adapters(self) -> bool:
        """Whether the original runs."""
        return self.active is None

    @property
    def chosen(self) -> nn.Module:
        """The module that runs."""
        return self.original_module if self.active is None else self.modules_to_save[self.active]

    def forward(self, *args: Any, **options: Any) -> Any:
        """Run the chosen module."""
        return self.chosen(*args, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "original_module" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.chosen, name)


def parts_of(wrapper: Adapted | Trained) -> nn.ModuleDict:
    """Return what a wrapper has for each adapter."""
    return wrapper.adapters if isinstance(wrapper, Adapted) else wrapper.modules_to_save


def wrappers(model: nn.Module) -> dict[str, Adapted | Trained]:
    """Return the wrappers of ``model`` by the names that the plain modules had."""
    check_module("model", model)
    return {n: m for n, m in model.named_modules() if isinstance(m, Adapted | Trained)}


def check_name(name: object) -> None:
    """Refuse what cannot be the name of an adapter: it is a key of :class:`torch.nn.ModuleDict`."""
    if not isinstance(name, str) or not name or "." in name or hasattr(nn.ModuleDict(), name):
        raise ConfigError(
            "name must be a text that is no attribute of torch.nn.ModuleDict ('train', 'keys', …) "
            f"and without '.', got {name!r}"
        )


def adapter_names(model: nn.Module) -> list[str]:
    """Return the names of all adapters of ``model``, in the order in which they came."""
    return list(dict.fromkeys(name for each in wrappers(model).values() for name in parts_of(each)))


def use_adapter(model: nn.Module, name: str | None) -> None:
    """Make the adapter ``name`` the one that runs and trains; ``None`` is the base alone.

    Parameters of the others are frozen. A layer that the adapter does not cover is its base.
    """
    names = adapter_names(model)
    if name is not None and name not in names:
        raise ConfigError(f"there is no adapter {name!r}; the model has {names}")
    for wrapper in wrappers(model).values():
        parts = parts_of(wrapper).requires_grad_(False)
        wrapper.active = None
        if name is not None and name in parts:
            wrapper.active = name
            parts[name].requires_grad_(True)
