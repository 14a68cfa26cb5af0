"""``whvi.convert``: a posterior for a model one already has; ``whvi.unconvert``: the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from whvi._checks import check_module
from whvi.adapters.adapted import (
    Adapted,
    Trained,
    check_name,
    parts_of,
    residual_of,
    use_adapter,
)
from whvi.adapters.kinds import plain_of, plain_weight, twin_of
from whvi.adapters.select import Selection, check_names, find_layers, meets, rules_of, walk
from whvi.adapters.start import start_at
from whvi.errors import ConfigError
from whvi.layers import BayesianLayer
from whvi.layers.linear import RandomAffine

_OPTIONS = {"posterior", "prior", "scales", "transform", "num_blocks"}


def convert(
    model: nn.Module,
    *,
    mode: str = "adapt",
    layers: Selection = None,
    exclude: Selection = None,
    train: Selection = None,
    name: str = "default",
    inplace: bool = False,
    **options: Any,
) -> nn.Module:
    r"""Give linear layers and convolutions of a trained model a posterior.

    ``"adapt"``: ``W = W0 + diag(s1) H diag(g) H diag(s2)`` with ``W0`` frozen and ``E[g] = 0`` at
    the start, so that the model at mean weights is the given one to the bit. Everything else is
    frozen as well but for ``train``. ``"replace"``: Bayesian layers started at the given weights
    as well as least squares can (:mod:`whvi.adapters.start`); nothing is frozen.

    Args:
        model: Any module; embeddings and what is not listed in :mod:`whvi.adapters.kinds` stay.
        mode: ``"adapt"`` or ``"replace"``.
        layers: Which: a name or pattern (``"encoder.*.query"``; a name includes what is inside),
            a class, a function of name and module, or several of these; ``None``: all.
        exclude: Which not, in the same way.
        train: Modules that are trained as a whole with the adapter, such as a head or
            ``nn.BatchNorm2d``; Bayesian layers of the model always are. For ``"adapt"``.
        name: Of the adapter; another ``convert`` with another name adds one, with the same name
            other layers, which may have other options. For ``"adapt"``.
        inplace: Change ``model`` itself instead of a copy.
        options: ``posterior``, ``prior``, ``scales``, ``transform`` and ``num_blocks`` of
            :class:`whvi.WHVILinear`; for ``"adapt"`` also ``relative_scale`` (0.1), the standard
            deviation of the residual at the start in units of the root mean square of ``W0``.

    Returns:
        The model, with the same forward signature. :func:`whvi.kl`, ``elbo``, ``fit`` and
        ``linearize`` take it as any model with Bayesian layers.
    """
    check_module("model", model)
    if mode not in ("adapt", "replace"):
        raise ConfigError(f"mode must be 'adapt' or 'replace', got {mode!r}")
    if mode == "replace" and (train is not None or name != "default"):
        raise ConfigError("train and name are for mode='adapt'; 'replace' freezes nothing")
    known = _OPTIONS | ({"relative_scale"} if mode == "adapt" else set())
    if unknown := [*options.keys() - known]:
        raise ConfigError(f"mode={mode!r} has no options {unknown}; there are {sorted(known)}")
    check_name(name)
    model = model if inplace else copy.deepcopy(model)
    if mode == "adapt":
        return _adapt(model, layers, exclude, train, name, options)
    return _replace(model, find_layers(model, layers, exclude), options)


def _adapt(
    model: nn.Module, layers: Selection, exclude: Selection, train: Selection, name: str,
    options: dict[str, Any],
) -> nn.Module:  # fmt: skip
    trained = _trained_names(model, train)
    found = find_layers(model, layers, [*rules_of("exclude", exclude), *trained])
    twice = [each for each, module in found.items() if _has(module, name)]
    if twice:
        raise ConfigError(
            f"{twice[0] or 'the model'} has an adapter {name!r} already; choose other layers "
            "or another name"
        )
    return attach(model, dict.fromkeys(found, options), trained, name)


def _has(module: nn.Module, name: str) -> bool:
    return isinstance(module, Adapted | Trained) and name in parts_of(module)


def _trained_names(model: nn.Module, train: Selection) -> list[str]:
    """Return the outermost modules that are trained as a whole; of a list, what it holds."""
    rules, found = rules_of("train", train), list[str]()
    check_names("train", rules, model)
    for name, module in walk(model):
        if any(name.startswith(f"{outer}.") for outer in found):
            continue
        chosen = meets(rules, name, module) or isinstance(module, BayesianLayer | Trained)
        holder = isinstance(module, Adapted | nn.ModuleList | nn.ModuleDict)
        if chosen and not holder and any(True for _ in module.parameters()):
            found.append(name)
    if train is not None and not any(meets(rules, *pair) for pair in walk(model)):
        raise ConfigError(f"no module is selected by train={train!r}")
    return found


def attach(
    model: nn.Module, adapted: dict[str, dict[str, Any]], trained: Iterable[str], name: str
) -> nn.Module:
    """Add the adapter ``name`` to the given layers and modules, freeze the rest, and use it."""
    trained = [*trained]
    for each in trained:
        if any(isinstance(m, Adapted) for m in model.get_submodule(each).modules()):
            raise ConfigError(f"{each} has layers with adapters and cannot be trained as a whole")
    residuals = {each: _residual(model.get_submodule(each), o) for each, o in adapted.items()}
    model.requires_grad_(False)  # what can be refused has been
    for each in trained:
        model = _exchange(model, each, lambda m: m if isinstance(m, Trained) else Trained(m))
        whole = model.get_submodule(each)
        assert isinstance(whole, Trained)  # as the line before made it
        if not _has(whole, name):
            whole.add(name)
    for each, options in adapted.items():
        model = _exchange(model, each, lambda m: m if isinstance(m, Adapted) else Adapted(m))
        layer = model.get_submodule(each)
        assert isinstance(layer, Adapted)  # as the line before made it
        layer.add(name, residuals[each], {k: v for k, v in options.items() if k in _OPTIONS})
    use_adapter(model, name)
    return model


def _residual(layer: nn.Module, options: dict[str, Any]) -> RandomAffine:
    return residual_of(layer.base if isinstance(layer, Adapted) else layer, **options)


def _replace(model: nn.Module, found: dict[str, nn.Module], options: dict[str, Any]) -> nn.Module:
    for name, module in found.items():
        if isinstance(module, Adapted):
            raise ConfigError(f"{name or 'the model'} has adapters; use whvi.unconvert first")

    def twin(plain: Any) -> nn.Module:
        layer = twin_of(plain, bias=plain.bias is not None, **options)
        start_at(layer, plain_weight(plain).detach(), plain.bias)
        return layer.train(plain.training)

    twins = {module: twin(module) for module in found.values()}  # all, before any is exchanged
    for name in found:
        model = _exchange(model, name, twins.__getitem__)
    return model


def unconvert(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Put the mean weights back into plain layers: the model without a posterior.

    The active adapter is merged into its base, others are dropped; Bayesian layers become plain
    ones. After ``use_adapter(model, None)`` this is the base. ``requires_grad`` stays as it is.

    Args:
        model: A model made by :func:`convert`, or any with Bayesian layers without replicas.
        inplace: Change ``model`` itself instead of a copy.
    """
    check_module("model", model)
    model = model if inplace else copy.deepcopy(model)

    def plain(module: nn.Module) -> nn.Module:
        if isinstance(module, Trained):
            module = module.chosen
        if isinstance(module, Adapted):
            return module.merge()
        return plain_of(module) if isinstance(module, RandomAffine) else module

    kinds = (Adapted, Trained, RandomAffine)
    while found := [name for name, module in walk(model) if isinstance(module, kinds)]:
        for name in found:
            model = _exchange(model, name, plain)
    return model


def _exchange(model: nn.Module, name: str, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Put ``make(module)`` in the place of the module ``name``; return the model."""
    if not name:
        return make(model)
    parent_name, _, key = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    setattr(parent, key, make(parent.get_submodule(key)))
    return model
