"""Adapters as files: kilobytes of safetensors that know the model they belong to.

A file is sealed (:mod:`whvi._files`). Its tensors are those of the adapter under the names of the
plain model's modules; its document has the options of every layer, the modules trained as a whole,
and the fingerprint of the base: two SHA-256 digests, of the names, shapes and data types of all its
parameters and buffers, and of their values. What is trained as a whole is not part of the base.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whvi._checks import check_module
from whvi._files import atomic_write, seal, unseal
from whvi.adapters.adapted import (
    Adapted,
    Trained,
    adapter_names,
    check_name,
    parts_of,
    use_adapter,
    wrappers,
)
from whvi.adapters.conversion import attach
from whvi.adapters.select import find_layers, walk
from whvi.errors import ConfigError, ModelFileError

_FORMAT, _VERSION = "whvi adapter", 1
_GIVEN_AGAIN = {"given": "again"}  # stands for an option that is not a plain value

Path_ = str | os.PathLike[str]


def save_adapter(model: nn.Module, path: Path_, *, name: str = "default") -> None:
    """Write the adapter ``name`` of ``model``, and only that, to a file.

    Options that are not plain values (a partial, a prior) are not written; they have to be given
    to :func:`load_adapter` again.
    """
    if name not in adapter_names(model):
        raise ConfigError(f"there is no adapter {name!r}; the model has {adapter_names(model)}")
    own = {each: w for each, w in wrappers(model).items() if name in parts_of(w)}
    tensors = {
        f"{each}|{key}": tensor
        for each, wrapper in own.items()
        for key, tensor in parts_of(wrapper)[name].state_dict().items()
    }
    trained = [each for each, wrapper in own.items() if isinstance(wrapper, Trained)]
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "name": name,
        "fingerprint": fingerprint(model, without=trained),
        "adapted": {e: _plain(w.options[name]) for e, w in own.items() if isinstance(w, Adapted)},
        "trained": trained,
    }
    with atomic_write(path) as stream:
        stream.write(seal(tensors, document))


def load_adapter(
    model: nn.Module, path: Path_, *, name: str | None = None, inplace: bool = False, **options: Any
) -> nn.Module:
    """Attach an adapter from a file to the model it was made for, and use it.

    Args:
        model: The base: plain, or with other adapters.
        path: A file of :func:`save_adapter`.
        name: Of the adapter; ``None`` is the name in the file.
        inplace: Change ``model`` itself instead of a copy.
        options: Those that the file could not hold; see :func:`save_adapter`.

    Raises:
        ModelFileError: The file is damaged, or belongs to another base.
    """
    check_module("model", model)
    tensors, document = unseal(Path(path).read_bytes())
    try:
        adapted, trained, found = _read(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path}: not an adapter of whvi: {error!r}") from error
    _check_base(fingerprint(model, without=trained), found, path)
    name = document["name"] if name is None else name
    check_name(name)
    _check_wanted(adapted, options, path)
    if name in adapter_names(model):
        raise ConfigError(f"the model has an adapter {name!r} already; give another name")
    model = model if inplace else copy.deepcopy(model)
    find_layers(model, lambda each, _: each in adapted, None)
    model = attach(model, {e: _complete(o, options) for e, o in adapted.items()}, trained, name)
    _fill(model, name, tensors, path)
    use_adapter(model, name)
    return model


def _fill(model: nn.Module, name: str, tensors: dict[str, Tensor], path: Path_) -> None:
    for each, wrapper in wrappers(model).items():
        if name in (parts := parts_of(wrapper)):
            start = f"{each}|"
            state = {k[len(start) :]: t for k, t in tensors.items() if k.startswith(start)}
            try:
                parts[name].load_state_dict(state)
            except RuntimeError as error:
                raise ModelFileError(
                    f"{path}: tensors of {each or 'the model'}: {error}"
                ) from error


def fingerprint(model: nn.Module, *, without: Collection[str] = ()) -> dict[str, str]:
    """Return digests of the base of ``model``, which its adapters do not change.

    Args:
        model: Plain or with adapters.
        without: Modules that are left out, by name.

    Returns:
        ``"structure"`` (names, shapes, data types) and ``"values"``, SHA-256 in hexadecimal.
    """
    check_module("model", model)
    structure, values = hashlib.sha256(), hashlib.sha256()
    for name, tensor in sorted(_base_tensors(model, without), key=lambda pair: pair[0]):
        structure.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        values.update(flat.view(torch.uint8).numpy().data)
    return {"structure": structure.hexdigest(), "values": values.hexdigest()}


def _base_tensors(model: nn.Module, without: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    for name, module in walk(model):
        if any(name == outer or name.startswith(f"{outer}.") for outer in without):
            continue
        state: dict[str, Any] = {**module._parameters, **module._buffers}
        if isinstance(module, Adapted):
            state = module.base.state_dict()
        elif isinstance(module, Trained):
            state = module.original_module.state_dict()
        for key, tensor in state.items():
            if tensor is not None and key not in module._non_persistent_buffers_set:
                yield f"{name}.{key}", tensor


def _check_base(own: dict[str, str], found: dict[str, str], path: Path_) -> None:
    for key, what in (("structure", "names, shapes or data types"), ("values", "values")):
        if own[key] != found[key]:
            raise ModelFileError(
                f"{path} belongs to another base: the {what} of its parameters differ "
                f"(fingerprint {found[key][:12]}, this model has {own[key][:12]}); load the "
                "weights that the adapter was trained on"
            )


def _read(document: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str], dict[str, str]]:
    kind = (document["format"], document["version"])
    if kind != (_FORMAT, _VERSION):
        raise ModelFileError(f"expected {(_FORMAT, _VERSION)}, found {kind}")
    adapted = {str(name): dict(options) for name, options in document["adapted"].items()}
    return adapted, [*map(str, document["trained"])], dict(document["fingerprint"])


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with plain values; others are marked as to be given again."""
    return {k: v if isinstance(v, str | int) else _GIVEN_AGAIN for k, v in options.items()}


def _check_wanted(adapted: dict[str, dict[str, Any]], given: dict[str, Any], path: Path_) -> None:
    """Refuse options that would be ignored."""
    wanted = {k for own in adapted.values() for k, v in own.items() if v == _GIVEN_AGAIN}
    if unwanted := sorted(given.keys() - wanted):
        raise ConfigError(f"{path} holds all options but {sorted(wanted)}; leave out {unwanted}")


def _complete(options: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    missing = [k for k, v in options.items() if v == _GIVEN_AGAIN and k not in given]
    if missing:
        raise ConfigError(f"the file does not hold the options {missing}; give them again")
    return {k: given[k] if v == _GIVEN_AGAIN else v for k, v in options.items()}
