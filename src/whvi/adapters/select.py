"""Which layers are meant, and which cannot be converted, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from whvi.adapters.adapted import Adapted, Trained
from whvi.adapters.kinds import has_plain_forward, is_plain
from whvi.errors import ConfigError
from whvi.layers import BayesianLayer

Rule = str | type[nn.Module] | Callable[[str, nn.Module], bool]
Selection = Rule | Iterable[Rule] | None
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rules_of(option: str, selection: Selection) -> list[Rule]:
    """Return the rules of a selection, of which there may be one or several."""
    given: Any = selection
    if given is None:
        return []
    several = isinstance(given, Iterable) and not isinstance(given, str | type | nn.Module)
    rules = [*given] if several else [given]
    for rule in rules:
        if isinstance(rule, nn.Module) or not (isinstance(rule, str) or callable(rule)):
            raise ConfigError(
                f"{option} must be a name or pattern of modules, a class, a function of name and "
                f"module, or several of these, got {type(rule).__name__} {rule!r}"
            )
    return rules


def check_names(option: str, rules: Iterable[Rule], model: nn.Module) -> None:
    """Refuse a name or pattern that no module has: a typo would leave out what was meant."""
    names = [name for name, _ in walk(model, inside=True)]
    for rule in rules:
        if isinstance(rule, str) and not any(fnmatchcase(name, rule) for name in names):
            raise ConfigError(f"no module is selected by {option}={rule!r}; leave it out")


def meets(rules: Iterable[Rule], name: str, module: nn.Module) -> bool:
    """Tell whether a module is selected by one of several rules.

    A text is the name of a module, a pattern of names (``*`` is any text) or what one of both
    contains; a class means its instances; any other callable is asked.
    """
    return any(_meets(rule, name, module) for rule in rules)


def _meets(rule: Rule, name: str, module: nn.Module) -> bool:
    if isinstance(rule, str):
        return any(fnmatchcase(part, rule) for part in _prefixes(name))
    if isinstance(rule, type):
        return isinstance(module, rule)
    return bool(rule(name, module))


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def walk(
    model: nn.Module, name: str = "", *, inside: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules outside in, under their names in the plain model.

    What wrappers hold is left out, but for the modules of a trained one if ``inside`` is set.
    """
    yield name, model
    if inside and isinstance(model, Trained):
        model = model.original_module
    if not isinstance(model, BayesianLayer | Trained):
        for key, child in model._modules.items():
            if child is not None:
                yield from walk(child, f"{name}.{key}" if name else key, inside=inside)


def find_layers(model: nn.Module, layers: Selection, exclude: Selection) -> dict[str, nn.Module]:
    """Return the layers to convert by name; ``layers=None`` means all that can be.

    Raises:
        ConfigError: Nothing is selected, or a layer that cannot be converted is.
    """
    chosen, left_out = rules_of("layers", layers), rules_of("exclude", exclude)
    candidates = {n: m for n, m in walk(model) if isinstance(m, Adapted) or is_plain(m)}
    found = {
        name: module
        for name, module in candidates.items()
        if (layers is None or meets(chosen, name, module)) and not meets(left_out, name, module)
    }
    if not found:
        raise ConfigError(
            f"no layer is selected by layers={layers!r}, exclude={exclude!r}; linear layers and "
            f"convolutions of the model: {_some(list(candidates))}"
        )
    check_names("layers", chosen, model)
    check_names("exclude", left_out, model)
    owners = _owners(model)
    for name, module in found.items():
        if not isinstance(module, Adapted):
            _refuse(name, module, owners)
    return found


def _some(names: list[str]) -> str:
    shown = ", ".join(name or "(the model itself)" for name in names[:8])
    return shown + (f", … ({len(names)} in all)" if len(names) > 8 else "") or "none"


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """Return the names of every parameter, by where its numbers are: a view is tied as well."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(_place(parameter), []).append(name)
    return owners


def _place(parameter: nn.Parameter) -> int:
    has_numbers = not (nn.parameter.is_lazy(parameter) or parameter.is_meta)
    return (parameter.data_ptr() if has_numbers else 0) or id(parameter)


def _refuse(name: str, module: nn.Module, owners: dict[int, list[str]]) -> None:
    """Refuse a layer whose weights are not its own, or not plain numbers."""
    weight: Any = module._parameters.get("weight")
    reason = None
    if parametrize.is_parametrized(module, "weight") or (weight is None and module._parameters):
        reason = "its weight is computed from others; use remove_parametrizations first"
    elif not has_plain_forward(module):
        reason = "its class has a forward of its own, which may not be linear in these weights"
    elif nn.parameter.is_lazy(weight):
        reason = "its weight has no shape yet; run the model once first"
    elif weight is None or type(weight) is not nn.Parameter or weight.dtype not in _DTYPES:
        kind = (
            type(weight).__name__ if weight is None else f"{type(weight).__name__}, {weight.dtype}"
        )
        reason = f"its weight is quantised or not a plain parameter ({kind}); load it in full"
    elif weight.is_meta:
        reason = "its weight is on the meta device; load the model's weights first"
    elif len(names := owners[_place(weight)]) > 1:
        reason = (
            f"its weight is tied: it is {' and '.join(names)}, and a change here would not reach "
            "the others"
        )
    if reason is not None:
        label = name or "the model"
        raise ConfigError(
            f"{label} ({type(module).__name__}) cannot be converted: {reason}; or leave the layer "
            f"out by exclude={label!r}"
        )
