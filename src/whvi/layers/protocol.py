"""What every Bayesian layer is: a module with a KL and a batch of replicas."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.fx import Proxy
from torch.optim.swa_utils import AveragedModel

from whvi._checks import check_module
from whvi._kernel.backend import without_autocast
from whvi.posteriors import Posterior
from whvi.posteriors.base import sum_of_kls
from whvi.priors import Prior
from whvi.sampling import LocalReparameterization, sampling


class BayesianLayer(nn.Module, ABC):
    """A layer whose weights (some or all) have a posterior.

    ``forward(x)`` maps ``(*batch_shape, *inner, in)`` to ``(*batch_shape, *inner, out)`` with
    weights drawn as :func:`whvi.sampling.current_sampler` says, and leaves nothing on ``self``.
    """

    batch_shape: tuple[int, ...]

    @abstractmethod
    def kl(self) -> Tensor:
        """Return ``KL(q ‖ p)`` in nats, summed over all weights, shape ``batch_shape``."""

    def kl_terms(self) -> list[tuple[Posterior, Prior]] | None:
        """Return pairs whose KLs add up to :meth:`kl`, or ``None`` if it is not such a sum.

        This is an optimization: :func:`kl` adds up such pairs in fewer steps.
        """
        return None


def as_fx_leaf(layer: nn.Module, x: Proxy) -> Proxy:
    """Return the call of ``layer`` that ``torch.fx.symbolic_trace`` records.

    It knows no numbers, so it cannot look inside: a layer is a leaf, as those of torch are.
    """
    tracer: Any = x.tracer
    call: Proxy = tracer.create_proxy("call_module", tracer.path_of_module(layer), (x,), {})
    return call


def bayesian_layers(model: nn.Module) -> list[BayesianLayer]:
    """Return the Bayesian layers of ``model`` in order; a shared one is listed once.

    What is inside a Bayesian layer belongs to it and is not looked at. Copies that do not run are
    left out: an average of weights beside the model, and all but the active one of peft's
    ``modules_to_save``.
    """
    check_module("model", model)
    found: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if isinstance(module, BayesianLayer):
            found[module] = None
        elif module is model or not isinstance(module, AveragedModel):
            waiting.extend(reversed(_active_children(module)))
    return list(found)  # type: ignore[arg-type]  # only Bayesian layers are put there


def _active_children(module: nn.Module) -> list[nn.Module]:
    """Return the children that ``module`` runs; peft's wrapper keeps an original and copies."""
    children = module._modules
    copies = children.get("modules_to_save")
    if not isinstance(copies, nn.ModuleDict) or "original_module" not in children:
        return [child for child in children.values() if child is not None]
    wrapper: Any = module
    active = [copies[name] for name in wrapper.active_adapters if name in copies]
    return [wrapper.original_module] if wrapper.disable_adapters or not active else active


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters of ``model`` for an optimizer that decays weights.

    Only matrices of deterministic layers are decayed, ``p.dim() >= 2`` as usual. Parameters of
    Bayesian layers are not: their prior is in the KL, and decay would pull ``log_scale`` towards a
    standard deviation of 1 and ``s1``, ``s2`` towards zero.

    Args:
        model: Any module; parameters that do not require a gradient are left out.
        weight_decay: For the first group; the second has none.

    Returns:
        Two groups, such as ``torch.optim.AdamW`` takes.
    """
    bayesian = {p for layer in bayesian_layers(model) for p in layer.parameters()}
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for p in model.parameters():
        if p.requires_grad:
            groups[p.dim() < 2 or p in bayesian].append(p)
    decays = (weight_decay, 0.0)
    return [{"params": ps, "weight_decay": d} for ps, d in zip(groups, decays, strict=True)]


def kl(model: nn.Module) -> Tensor:
    """Sum ``layer.kl()`` over every Bayesian layer of ``model``; a shared one counts once.

    Returns:
        Nats, shape ``batch_shape`` (a scalar unless the model has replicas). Never averaged,
        never divided by anything. Zero if there is no Bayesian layer.
    """
    return ModelKL(model)()


@torch.no_grad()
def kl_per_layer(model: nn.Module) -> dict[str, Tensor]:
    """Return the KL of every Bayesian layer by its name, ``batch_shape`` each.

    They add up to :func:`kl`. Estimated ones (flows) are always estimated with the same noise.
    """
    names = {module: name for name, module in model.named_modules()}
    first = next(model.parameters(), torch.empty(0))
    generator = torch.Generator(first.device).manual_seed(0)
    with sampling(LocalReparameterization(generator)):
        layers = bayesian_layers(model)
        with _whole_parameters(layers):
            return {names[layer]: layer.kl() for layer in layers}


@contextlib.contextmanager
def _whole_parameters(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Gather parameters that FSDP has cut into shards (DTensors), for a computation with all.

    Every rank then has the same value, and a shard gets its part of the gradient: a KL counts once.
    """
    shards = [
        (module._parameters, name, p)
        for layer in layers
        for module in layer.modules()
        for name, p in module._parameters.items()
        if hasattr(p, "full_tensor")
    ]
    try:
        for parameters, name, shard in shards:
            parameters[name] = shard.full_tensor()  # type: ignore[union-attr]
        yield
    finally:
        for parameters, name, shard in shards:
            parameters[name] = shard


class ModelKL:
    """The KL of a model whose layers stay the same: found once, evaluated at every step.

    Args:
        model: Its Bayesian layers and their posteriors and priors are looked up here.
    """

    def __init__(self, model: nn.Module) -> None:
        self._pairs: list[tuple[Posterior, Prior]] = []
        self._others: list[BayesianLayer] = []
        self._layers = bayesian_layers(model)
        for layer in self._layers:
            terms = layer.kl_terms()
            if terms is None:
                self._others.append(layer)
            else:  # a posterior shared by layers is one set of weights
                self._pairs += [pair for pair in terms if pair not in self._pairs]

    def __call__(self) -> Tensor:
        """Return the sum in nats, shape ``batch_shape``."""
        if dist.is_available() and dist.is_initialized():  # else nothing can be cut into shards
            with _whole_parameters(self._layers):
                return self._sum()
        return self._sum()

    def _sum(self) -> Tensor:
        terms = [layer.kl() for layer in self._others]
        if self._pairs:
            with without_autocast(self._pairs[0][0].loc):
                terms.append(sum_of_kls(self._pairs))
        return reduce(torch.add, terms) if terms else torch.zeros(())
