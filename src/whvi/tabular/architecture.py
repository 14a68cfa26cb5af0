"""What a network is made of, as plain values from which it can be built again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, ModelFileError
from whvi.layers import WHVILinear
from whvi.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from whvi.tabular.networks import build_network

_LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    "gaussian": Gaussian,
    "heteroscedastic": HeteroscedasticGaussian,
    "student_t": StudentT,
    "poisson": Poisson,
}
REGRESSION_LIKELIHOODS = tuple(_LIKELIHOODS)
POSTERIORS = ("diagonal", "low_rank", "full", "flow", "point")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Networks of an ensemble and their likelihood.

    Attributes:
        in_features: Encoded columns.
        hidden, sine, members: As in :class:`whvi.tabular.plan.Plan`.
        posterior: Of the structured layers.
        likelihood: One of the names for regression, or ``"labels"``.
        num_outputs: Target columns, or classes.
    """

    in_features: int
    hidden: tuple[int, ...]
    sine: bool
    members: int
    posterior: str
    likelihood: str
    num_outputs: int

    def __post_init__(self) -> None:
        for name in ("in_features", "members", "num_outputs"):
            check_positive_int(name, getattr(self, name))
        check_positive_int("the number of hidden layers", len(self.hidden))
        for width in self.hidden:
            check_positive_int("every hidden width", width)
        if self.posterior not in POSTERIORS:
            raise ConfigError(
                f"posterior must be one of {', '.join(POSTERIORS)}, got {self.posterior!r}"
            )
        if self.likelihood not in (*_LIKELIHOODS, "labels"):
            raise ConfigError(f"there is no likelihood {self.likelihood!r}")

    def build(self) -> tuple[nn.Sequential, Likelihood]:
        """Make untrained networks and their likelihood, as R replicas."""
        batch_shape = (self.members,)
        likelihood = self._likelihood(batch_shape)
        model = build_network(
            self.in_features,
            self.hidden,
            likelihood.num_features,
            features="sine" if self.sine else "relu",
            layer=partial(WHVILinear, posterior=self.posterior),
            batch_shape=batch_shape,
        )
        return model, likelihood

    def _likelihood(self, batch_shape: tuple[int, ...]) -> Likelihood:
        if self.likelihood != "labels":
            return _LIKELIHOODS[self.likelihood](self.num_outputs, batch_shape=batch_shape)
        if self.num_outputs <= 2:
            return Bernoulli(batch_shape=batch_shape)
        return Categorical(self.num_outputs, batch_shape=batch_shape)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**asdict(self), "hidden": list(self.hidden)}

    def restore(self, tensors: Mapping[str, Tensor]) -> tuple[nn.Sequential, Likelihood]:
        """Build the networks around stored tensors.

        The skeleton is built without memory and compared with the tensors first: an untrue
        description cannot make us allocate more than the file holds.
        """
        largest = max((tensor.numel() for tensor in tensors.values()), default=0)
        claimed = max(self.in_features, self.members, self.num_outputs, *self.hidden)
        if claimed > largest or len(self.hidden) > len(tensors):
            raise ModelFileError(f"no tensor is as large as the size {claimed} that is claimed")
        with torch.device("meta"):
            model, likelihood = self.build()
        for name, module in (("model", model), ("likelihood", likelihood)):
            part = _part(tensors, name)
            _check_tensors(name, module, part)
            module.load_state_dict(part, assign=True)
        return model, likelihood


def _part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _check_tensors(part: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors other than those of ``module`` by name, shape and type, and NaN."""
    expected = module.state_dict()
    if expected.keys() != tensors.keys():
        odd = sorted(expected.keys() ^ tensors.keys())
        raise ModelFileError(f"tensors of the {part} do not match the architecture: {odd[:3]}")
    dtype = torch.float64 if part == "likelihood" else torch.float32
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape or tensor.dtype != dtype:
            raise ModelFileError(
                f"tensor {part}.{name} is {tensor.dtype} {tuple(tensor.shape)}, but the "
                f"architecture needs {dtype} {tuple(expected[name].shape)}"
            )
        if not bool(tensor.isfinite().all()):
            raise ModelFileError(f"tensor {part}.{name} holds values that are not finite")
        if name == "target_scale" and not bool((tensor > 0).all()):
            raise ModelFileError(f"tensor {part}.{name} holds values that are not above zero")
