"""The model file: one sealed safetensors file that holds a whole fitted estimator, and no code.

See ``docs/file_format.md`` for the layout. A file is data: reading one runs nothing that is in
it, and everything that it claims about itself is compared with what it holds.
"""

from __future__ import annotations

import contextlib
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from whvi._checks import block_size_for
from whvi._files import (
    atomic_write,
    conform,
    conform_tensor,
    option_from_json,
    option_to_json,
    seal,
    unseal,
)
from whvi.errors import ModelFileError, WhviError
from whvi.tabular.functions import (
    DenseDraws,
    Draws,
    Functions,
    Gate,
    Linearized,
    StructuredDraws,
    Tangent,
)
from whvi.tabular.inputs import Embedding, TableSchema
from whvi.tabular.predictor import Architecture, Predictor

FORMAT_NAME = "whvi-model"
FORMAT_VERSION = 8
"""Raised when names or meanings change; files of other versions are refused."""

_LIES = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError)

_POSITIVE = ("inputs.unit", "inputs.scale", "scaling.scale", "target_scale")
LARGEST_TARGET = 1e150
_FARTHEST_GATE, _NARROWEST_GATE = 1e6, 1e-6
_MOST_CHANGES = 1024  # draws of displacements of a member: what bounds the memory of a block

Self = TypeVar("Self", bound="SavedModel")


class ModelFile(NamedTuple):
    """The content of a model file: named tensors, and a JSON document that describes them."""

    tensors: dict[str, Tensor]
    document: dict[str, Any]


def write_model_file(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]
) -> None:
    """Write a model file whole or not at all.

    Raises:
        ModelFileError: The file cannot be written; what was there before is untouched.
    """
    header = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "versions": {
            "whvi": version("whvi"),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    target = Path(path)
    if target.is_dir():
        raise ModelFileError(f"cannot write model file {target}: it is a folder")
    try:
        with atomic_write(target, follow_symlinks=False) as stream:
            stream.write(seal(tensors, {**document, **header}))
    except OSError as error:
        raise ModelFileError(
            f"cannot write model file {target}: {error.strerror or error}; what was there before "
            "is untouched"
        ) from error


def read_model_file(path: str | os.PathLike[str]) -> ModelFile:
    """Read and verify a model file.

    Raises:
        ModelFileError: It does not exist, is damaged, is no model file, or of another version.
    """
    source = Path(path)
    if os.path.exists(source) and not os.path.isfile(source):
        raise ModelFileError(f"{source} is not a regular file")
    try:
        payload = source.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"cannot read model file {source}: {reason}") from error
    try:
        tensors, document = unseal(payload)
    except ModelFileError as error:
        raise ModelFileError(f"{source} is not a usable model file: {error}") from error
    _check_format(source, document)
    return ModelFile(tensors, document)


def load_predictor(path: str | os.PathLike[str]) -> Predictor:
    """Load what predicts from the model file of a ``WHVIRegressor`` or ``WHVIClassifier``.

    Raises:
        ModelFileError: The file is damaged, does not fit its description, is of another version,
            or holds another kind of model.
    """
    content = read_model_file(path)
    if "architecture" not in content.document:
        kind = content.document.get("estimator")
        raise ModelFileError(f"{path} holds a {kind!r:.80}, and not the networks of a table")
    return predictor_of(content)


def _check_format(source: Path, document: Any) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise ModelFileError(f"{source} is a sealed file, but not a model of whvi")
    found = document.get("format_version")
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ModelFileError(f"{source} has no usable format version: {found!r:.80}")
    if found == FORMAT_VERSION:
        return
    cure = "install a newer whvi" if found > FORMAT_VERSION else "fit and save the model again"
    raise ModelFileError(
        f"{source} has format version {found}, this whvi reads version {FORMAT_VERSION}; {cure}"
    )


# Estimators that can be saved ------------------------------------------------------------------


@contextlib.contextmanager
def _refusing_false_descriptions() -> Iterator[None]:
    """Turn whatever goes wrong while a description is followed into a ``ModelFileError``."""
    try:
        yield
    except ModelFileError:
        raise
    except (*_LIES, WhviError) as error:
        raise ModelFileError(
            f"the description in the file is not usable: {type(error).__name__}: {error}"
        ) from error


class SavedModel(ABC):
    """What ``save`` and ``load`` are, for every estimator of scikit-learn's kind."""

    @abstractmethod
    def _content(self) -> ModelFile:
        """Describe the fitted estimator, without its class and parameters."""

    @abstractmethod
    def _restore(self, content: ModelFile) -> None:
        """Take over what :meth:`_content` gave; what does not fit may raise any error."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file that holds no code; see ``docs/file_format.md``.

        Raises:
            ModelFileError: The file cannot be written; what was there before is untouched.
        """
        check_is_fitted(self, "model_")
        tensors, document = self._content()
        parameters = self.get_params(deep=False)  # type: ignore[attr-defined]  # scikit-learn's
        own = {
            "estimator": type(self).__name__,
            "parameters": {name: option_to_json(value) for name, value in parameters.items()},
        }
        write_model_file(path, tensors, {**own, **document})

    @classmethod
    def load(cls: type[Self], path: str | os.PathLike[str]) -> Self:
        """Read an estimator that :meth:`save` wrote; it predicts the same, bit for bit.

        Raises:
            ModelFileError: The file is damaged, does not fit its description, or holds a model of
                another version or class.
        """
        return cls.from_content(read_model_file(path))

    @classmethod
    @_refusing_false_descriptions()
    def from_content(cls: type[Self], content: ModelFile) -> Self:
        """Rebuild the estimator from the content of a model file, verifying it."""
        document = content.document
        if document.get("estimator") != cls.__name__:
            name = document.get("estimator")
            raise ModelFileError(f"the file holds a {name!r:.80}, not a {cls.__name__}")
        known = set(cls._get_param_names())  # type: ignore[attr-defined]  # scikit-learn's
        given = {k: v for k, v in document["parameters"].items() if k in known}
        estimator = cls(**{name: option_from_json(value) for name, value in given.items()})
        estimator._restore(content)
        return estimator


# What predicts, to and from the content of a file ----------------------------------------------


def content_of(predictor: Predictor) -> ModelFile:
    """Return the tensors of a predictor, and the rest of it in plain values, ready for JSON."""
    tensors = {f"inputs.{k}": torch.as_tensor(v) for k, v in vars(predictor.embedding).items()}
    tensors |= {f"likelihood.{k}": t for k, t in predictor.likelihood.state_dict().items()}
    for k, layer in enumerate(predictor.functions.layers):
        tensors |= {f"functions.{k}.{name}": t for name, t in layer._asdict().items()}
    far, labels = predictor.linearized, predictor.classes
    for k, (mean, displacements) in enumerate(far.tangents if far else ()):
        tensors[f"linearized.{k}.mean"] = mean
        tensors |= {f"linearized.{k}.{i}": t for i, t in enumerate(displacements)}
    kind = None if labels is None else "O" if labels.dtype.kind == "O" else labels.dtype.str
    document = {
        "schema": asdict(predictor.schema),
        "architecture": asdict(predictor.architecture),
        "classes": None if labels is None else {"dtype": kind, "values": labels.tolist()},
        "gate": None if far is None else far.gate._asdict(),
        "spread": predictor.functions.spread,
    }
    return ModelFile(tensors, document)


@_refusing_false_descriptions()
def predictor_of(content: ModelFile) -> Predictor:
    """Rebuild a predictor from the content of a model file.

    Shapes are compared with the description before anything is built from it: a false
    description cannot make us take more memory than the file holds.
    """
    tensors, document = content
    schema = TableSchema.from_dict(document["schema"])
    described = document["architecture"]
    architecture = Architecture(**{**described, "hidden": tuple(described["hidden"])})
    classes = _classes(document["classes"], architecture)
    functions = _functions(tensors, architecture, document["spread"])
    width = sum(column.width for column in schema.columns)
    outputs = len(schema.target_names) if classes is None else architecture.num_outputs
    if outputs != architecture.num_outputs:
        raise ModelFileError(f"{outputs} targets do not fit the networks")
    embedding = _embedding(tensors, width, architecture.in_features)
    with torch.device("meta"):
        likelihood = architecture.build_likelihood().double()
    load_tensors("likelihood", likelihood, tensors)
    if functions.num_features != likelihood.num_features:
        raise ModelFileError(f"{functions.num_features} outputs do not fit the likelihood")
    far = _linearized(tensors, functions, document["gate"])
    return Predictor(schema, embedding, architecture, functions, likelihood, classes, far)


def _embedding(tensors: Mapping[str, Tensor], width: int, num_inputs: int) -> Embedding:
    """Read what makes ``num_inputs`` inputs of ``width`` encoded columns."""
    bins = num_inputs - width
    if bins < 0:
        raise ModelFileError(f"{width} encoded columns do not fit networks of {num_inputs} inputs")
    sizes = dict.fromkeys(("middle", "unit", "heavy", "least", "most"), width)
    sizes |= dict.fromkeys(("column", "left", "right"), bins)
    sizes |= dict.fromkeys(("mean", "scale"), num_inputs)
    types = {"heavy": torch.bool, "column": torch.int64}
    for name, size in sizes.items():
        _check_tensor(tensors, f"inputs.{name}", (size,), types.get(name, torch.float64))
    if len(sizes) != sum(name.startswith("inputs.") for name in tensors):
        raise ModelFileError("there are inputs that an embedding does not have")
    found = Embedding(**{name: tensors[f"inputs.{name}"].numpy() for name in sizes})
    exist = (found.column >= 0) & (found.column < width) & (found.left < found.right)
    if not exist.all() or not (found.least <= found.most).all():
        raise ModelFileError(f"bins that end before they begin, or of none of {width} columns")
    return found


def check_tensors(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Refuse stored tensors that are not those of a skeleton: other names, shapes, types, NaN."""
    if odd := sorted(expected.keys() ^ tensors.keys()):
        raise ModelFileError(f"tensors do not match the description: {odd[:3]}")
    for name, tensor in expected.items():
        _check_tensor(tensors, name, tuple(tensor.shape), tensor.dtype)


def load_tensors(part: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module without memory the stored tensors ``part.*``; it must have just these."""
    prefix = f"{part}."
    own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    check_tensors(module.state_dict(), own)
    module.load_state_dict(own, assign=True)


def _check_tensor(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = conform_tensor(tensors, name, shape, dtype)
    if "target_" in name and bool((tensor.abs() > LARGEST_TARGET).any()):
        raise ModelFileError(f"tensor {name} is so large that no variance is finite")
    if name.endswith(_POSITIVE) and not bool((tensor > 0).all()):
        raise ModelFileError(f"tensor {name} holds values that are not above zero")


def _functions(tensors: Mapping[str, Tensor], architecture: Architecture, spread: Any) -> Functions:
    if not isinstance(spread, float) or not 0 < spread <= 1:
        raise ModelFileError(f"the spread must lie in (0, 1], got {spread!r:.40}")
    widths = (architecture.in_features, *architecture.hidden)
    members = architecture.members
    last = f"functions.{len(architecture.hidden)}.weight"
    if last not in tensors or tensors[last].dim() != 4 or not tensors[last].numel():
        raise ModelFileError(f"{len(widths) - 1} hidden layers, but no tensor {last} of draws")
    draws, outputs = tensors[last].shape[1:3]
    layers: list[Draws] = []
    for k, before in enumerate(widths):
        after = (*architecture.hidden, outputs)[k]
        if k == 0 and architecture.features == "sine":
            before = max(before, after)
        shapes = _layer_shapes(members, draws, before, after, is_last=k == len(widths) - 1)
        for name, shape in shapes.items():
            _check_tensor(tensors, f"functions.{k}.{name}", shape, torch.float32)
        kind = StructuredDraws if "g" in shapes else DenseDraws
        layers.append(kind(**{name: tensors[f"functions.{k}.{name}"] for name in shapes}))
    if sum(len(layer) for layer in layers) != sum(k.startswith("functions.") for k in tensors):
        raise ModelFileError("there are draws of layers that the architecture does not have")
    return Functions(architecture.features, tuple(layers), spread)


def _linearized(
    tensors: Mapping[str, Tensor], functions: Functions, described: Any
) -> Linearized | None:
    names = [name for name in tensors if name.startswith("linearized.")]
    if described is None:
        if names:
            raise ModelFileError(f"tensors {names[:3]}, but no gate")
        return None
    conform(described, dict.fromkeys(Gate._fields, float), "gate")
    gate = Gate(**described)
    if max(map(abs, gate[1:])) > _FARTHEST_GATE or gate.factor < 0 or gate.width < _NARROWEST_GATE:
        raise ModelFileError(f"the gate {tuple(gate)} is not usable")
    first = tensors.get("linearized.0.0")
    if first is None or first.dim() != 3 or not 0 < first.shape[1] <= _MOST_CHANGES:
        raise ModelFileError(f"no tensor linearized.0.0 of at most {_MOST_CHANGES} displacements")
    members, draws = functions.shape[0], first.shape[1]
    tangents = []
    for k, layer in enumerate(functions.layers):
        if isinstance(layer, StructuredDraws):
            mean, sizes = layer.s1.shape, [layer.s1.shape[-1]] * 3
        else:
            mean, sizes = layer.weight[:, 0].shape, [layer.weight[0, 0].numel()]
        shapes = {f"linearized.{k}.mean": tuple(mean)}
        for i, size in enumerate([*sizes, layer.bias.shape[-1]]):
            shapes[f"linearized.{k}.{i}"] = (members, draws, size)
        for name, shape in shapes.items():
            _check_tensor(tensors, name, shape, torch.float32)
        means, *displacements = (tensors[name] for name in shapes)
        tangents.append(Tangent(means, tuple(displacements)))
    if sum(1 + len(tangent.displacements) for tangent in tangents) != len(names):
        raise ModelFileError("there are displacements of layers that the architecture has not")
    return Linearized(functions, tuple(tangents), gate)


def _layer_shapes(
    members: int, draws: int, before: int, after: int, *, is_last: bool
) -> dict[str, tuple[int, ...]]:
    bias = (members, after)
    if is_last or (min(before, after) == 1 and max(before, after) > 1):
        return {"weight": (members, draws, after, before), "bias": bias}
    size = block_size_for(before)
    entries = -(-after // size) * size
    vector = (members, entries)
    return {"s1": vector, "g": (members, draws, entries), "s2": vector, "bias": bias}


def _classes(stored: Any, architecture: Architecture) -> NDArray[Any] | None:
    if (stored is None) != (architecture.likelihood != "labels"):
        raise ModelFileError("labels need classes, and numbers have none")
    if stored is None:
        return None
    conform(stored, {"dtype": str, "values": [(str, bool, float)]}, "classes")
    dtype = np.dtype(stored["dtype"])
    if dtype.kind not in "OUbiuf":
        raise ModelFileError(f"labels of type {stored['dtype']!r:.40}")
    classes = np.array(stored["values"], dtype=dtype)
    if not len(classes) == len(set(classes.astype(str))) > 0:
        raise ModelFileError(f"there must be labels that differ, got {stored['values']!r:.80}")
    if max(len(classes), 2) != architecture.num_outputs:
        raise ModelFileError(f"{len(classes)} classes, but networks for another number")
    return classes
