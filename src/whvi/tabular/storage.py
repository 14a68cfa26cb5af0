"""A fitted estimator as the content of a model file, and back."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from whvi._checks import check_positive_int
from whvi.errors import ModelFileError, WhviError
from whvi.tabular.architecture import Architecture
from whvi.tabular.ensemble import Ensemble
from whvi.tabular.inputs import Standardizer
from whvi.tabular.modelfile import ModelFile
from whvi.tabular.schema import TableSchema
from whvi.training.history import History

if TYPE_CHECKING:
    from whvi.tabular.base import WHVIEstimator

Estimator = TypeVar("Estimator", bound="WHVIEstimator")

_PLAIN = (bool, int, float, str, type(None))
_NOT_A_DESCRIPTION = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError),
    WhviError,
)
_SUMMARIES = ("training_summary_", "candidates_", "noise_factor_")


def content_of(estimator: WHVIEstimator) -> ModelFile:
    """Describe a fitted estimator in tensors and plain values."""
    ensemble = estimator._ensemble
    tensors: dict[str, Tensor] = {}
    for name, module in (("model", ensemble.model), ("likelihood", ensemble.likelihood)):
        tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
    scaling = estimator._scaling
    tensors["inputs.mean"] = torch.as_tensor(scaling.mean)
    tensors["inputs.scale"] = torch.as_tensor(scaling.scale)
    document = {
        "estimator": type(estimator).__name__,
        "parameters": {k: _plain(v) for k, v in estimator.get_params(deep=False).items()},
        "schema": estimator.schema_.as_dict(),
        "classes": _classes(estimator),
        "architecture": estimator._architecture.as_dict(),
        "preprocessing": {"numeric": "standardize", "categorical": "one-hot"},
        "draws": {"num_draws": estimator.num_draws, "seed": ensemble.seed},
        "training": {
            **{name.rstrip("_"): getattr(estimator, name) for name in _SUMMARIES},
            "history": estimator.history_.as_dict(),
        },
        "versions": {
            "whvi": version("whvi"),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    return ModelFile(tensors, document)


def restored(cls: type[Estimator], content: ModelFile) -> Estimator:
    """Rebuild an estimator of class ``cls``; whatever is untrue in ``content`` is refused."""
    tensors, document = content
    name = document.get("estimator")
    if name != cls.__name__:
        raise ModelFileError(f"the file holds a {name!r:.80}, not a {cls.__name__}")
    try:
        return _restored(cls, tensors, document)
    except ModelFileError:
        raise
    except _NOT_A_DESCRIPTION as error:
        raise ModelFileError(
            f"the description in the file is not usable: {type(error).__name__}: {error}"
        ) from error


def _restored(
    cls: type[Estimator], tensors: dict[str, Tensor], document: dict[str, Any]
) -> Estimator:
    known = set(cls._get_param_names())
    parameters = {str(k): _as_given(v) for k, v in document["parameters"].items()}
    estimator = cls(**{k: v for k, v in parameters.items() if k in known})
    fields = document["architecture"]
    architecture = Architecture(**{**fields, "hidden": tuple(fields["hidden"])})
    schema = TableSchema.from_dict(document["schema"])
    scaling = _scaling(tensors, architecture, schema)
    others = [k for k in tensors if k.split(".")[0] not in ("model", "likelihood", "inputs")]
    if others:
        raise ModelFileError(f"unknown tensors: {others[:3]}")
    model, likelihood = architecture.restore(tensors)
    draws, training = document["draws"], document["training"]
    check_positive_int("num_draws", draws["num_draws"])
    if draws["num_draws"] > 1_000_000:
        raise ModelFileError(f"the file asks for {draws['num_draws']} draws")
    estimator._architecture, estimator._scaling, estimator.schema_ = architecture, scaling, schema
    for attribute in _SUMMARIES:
        setattr(estimator, attribute, training[attribute.rstrip("_")])
    ensemble = Ensemble(model, likelihood, num_draws=draws["num_draws"], seed=int(draws["seed"]))
    estimator._adopt(ensemble, History(**training["history"]))
    estimator._take_targets(schema.target_names, document["classes"])
    estimator.n_features_in_ = len(schema.columns)
    if schema.named:
        estimator.feature_names_in_ = np.array([c.name for c in schema.columns], dtype=object)
    return estimator


def _scaling(
    tensors: dict[str, Tensor], architecture: Architecture, schema: TableSchema
) -> Standardizer:
    width = sum(column.width for column in schema.columns)
    found = {name: tensors[f"inputs.{name}"] for name in ("mean", "scale")}
    for name, tensor in found.items():
        expected = (1, width)
        if tensor.shape != expected or tensor.dtype != torch.float64:
            raise ModelFileError(
                f"tensor inputs.{name} is {tensor.dtype} {tuple(tensor.shape)}, but the columns "
                f"need float64 {expected}"
            )
        if not bool(tensor.isfinite().all()):
            raise ModelFileError(f"tensor inputs.{name} holds values that are not finite")
    if not bool((found["scale"] > 0).all()):
        raise ModelFileError("tensor inputs.scale holds values that are not above zero")
    if width != architecture.in_features:
        raise ModelFileError(f"{width} encoded columns, but networks of {architecture.in_features}")
    return Standardizer(mean=found["mean"].numpy(), scale=found["scale"].numpy())


def _classes(estimator: WHVIEstimator) -> dict[str, Any] | None:
    labels = getattr(estimator, "classes_", None)
    if labels is None:
        return None
    return {
        "dtype": labels.dtype.str if labels.dtype.kind != "O" else "O",
        "values": labels.tolist(),
    }


def _plain(value: Any) -> Any:
    """Return a parameter as a JSON value; random generators are not kept."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple | np.ndarray):
        return [int(entry) for entry in value]
    return None


def _as_given(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
