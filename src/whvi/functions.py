"""Function values of a model: rows in, draws of functions out.

Leading axes are ``(*batch_shape, S, N, features)``: replicas, draws, rows. Rows of rank 1 (plain
features) take all draws in one pass through a stride-0 axis; for others (images, token ids,
several inputs) the model is called once per draw, as are models with a module that treats the
second axis as channels, such as ``nn.BatchNorm1d``. One draw needs no such axis.

Inputs are a tensor, a tuple for ``model(*x)`` or a mapping for ``model(**x)``, every tensor with
``N`` rows. A model may return its function values directly or as the ``logits`` of a record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import activation, batchnorm, instancenorm

from whvi._checks import check_positive_int
from whvi.errors import ConfigError, ShapeError
from whvi.layers.protocol import bayesian_layers
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]

# modules of torch that look at the last axis only, or at no axis
_ANY_AXES = (
    nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict,
    nn.Linear, nn.Identity, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.AlphaDropout,
    nn.parallel.DistributedDataParallel,
)  # fmt: skip
_OWN_AXES = (nn.MultiheadAttention, nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.PReLU)
_NORMS = (batchnorm._BatchNorm, instancenorm._InstanceNorm, nn.GroupNorm)


def batch_shape_of(model: nn.Module) -> tuple[int, ...]:
    """Return the ``batch_shape`` on which all Bayesian layers of ``model`` agree, else ``()``."""
    layers = bayesian_layers(model)
    shapes = {layer.batch_shape for layer in layers}
    if len(shapes) > 1:
        names = {module: name for name, module in model.named_modules()}
        found = ", ".join(f"{names[layer] or 'model'} has {layer.batch_shape}" for layer in layers)
        raise ShapeError(f"all Bayesian layers must have one batch_shape, but {found}")
    batch_shape = next(iter(shapes), ())
    check_replicas(model, batch_shape)
    return batch_shape


def check_rows(x: Inputs, batch_shape: tuple[int, ...]) -> None:
    """Refuse what has no tensor, no axis for rows or none for their features."""
    if isinstance(x, Tensor):
        if x.dim() < 2:
            raise ShapeError(
                f"x must have shape (N, features) or (*batch_shape, N, features) with batch_shape "
                f"{batch_shape}, got {tuple(x.shape)}"
            )
        return
    if not isinstance(x, Mapping | tuple | list):
        raise ShapeError(
            f"x must be a torch.Tensor, or a tuple or mapping of tensors, got {type(x).__name__}; "
            "use torch.as_tensor"
        )
    shapes = [tuple(t.shape) for t in tensors_in(x)]
    if not shapes or len({shape[:1] for shape in shapes}) > 1 or () in shapes:
        raise ShapeError(f"the tensors of x must all have N rows, got shapes {shapes}")


def row_axis(x: Tensor, batch_shape: tuple[int, ...]) -> int:
    """Return the axis of ``x`` that counts rows: 0 for rows shared by all replicas.

    By shape alone: shared rows of rank 2 or more, as many as there are replicas, look the same
    as rows per replica and are taken for such; expand them to ``(*batch_shape, N, ...)`` first.
    """
    k = len(batch_shape)
    return k if x.dim() >= k + 2 and x.shape[:k] == batch_shape else 0


def count_rows(x: Inputs, batch_shape: tuple[int, ...]) -> int:
    """Return ``N``."""
    first = x if isinstance(x, Tensor) else tensors_in(x)[0]
    return first.shape[row_axis(first, batch_shape)]


def target_axis(y: Tensor, batch_shape: tuple[int, ...], num_rows: int) -> int:
    """Return the axis of targets that counts rows; refuse other shapes."""
    for lead in ((*batch_shape, num_rows), (num_rows,)):
        if y.shape[: len(lead)] == lead:
            return len(lead) - 1
    raise ShapeError(
        f"y must lead with (N,) or (*batch_shape, N) for N = {num_rows} rows of x and "
        f"batch_shape {batch_shape}, got shape {tuple(y.shape)}"
    )


def local_function_values(
    model: nn.Module,
    x: Inputs,
    batch_shape: tuple[int, ...],
    num_draws: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Run ``model`` with fresh weights for every row: ``f (*batch_shape, S, N, out)``.

    ``x`` is ``(N, ...)`` or ``(*batch_shape, N, ...)``; nothing is checked here.
    """
    with sampling(LocalReparameterization(generator)):
        if takes_draws(model, x, batch_shape, num_draws):
            return call(model, with_draws(x, batch_shape, num_draws))
        rows = _with_replicas(x, batch_shape)
        return torch.stack([call(model, rows) for _ in range(num_draws)], dim=len(batch_shape))


@torch.no_grad()
def draw_functions(
    model: nn.Module,
    x: Inputs,
    *,
    num_draws: int,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Draw functions from the posterior and evaluate them at ``x``, without gradients.

    Each of the ``S`` draws is one function: one set of weights for all rows and all chunks.

    Args:
        model: Any module; its Bayesian layers follow the sampler.
        x: ``(N, ...)`` shared by the replicas, or ``(*batch_shape, N, ...)``; a tuple or mapping
            of tensors is passed on as ``model(*x)`` or ``model(**x)``.
        num_draws: ``S``, how many functions.
        generator: Source of randomness; ``None`` is torch's default generator.
        batch_size: Rows per pass, to bound memory; ``None`` takes all at once.

    Returns:
        ``f``, shape ``(*batch_shape, S, N, out)``.
    """
    check_positive_int("num_draws", num_draws)
    batch_shape = batch_shape_of(model)
    chunks = row_chunks(x, batch_shape, batch_size)
    k = len(batch_shape)
    if takes_draws(model, x, batch_shape, num_draws):
        with sampling(WeightDraws(num_draws, generator)):
            parts = [call(model, with_draws(chunk, batch_shape, num_draws)) for chunk in chunks]
        return torch.cat(parts, dim=k + 1)
    draws = []
    for _ in range(num_draws):
        with sampling(WeightDraws(None, generator)):
            parts = [call(model, _with_replicas(chunk, batch_shape)) for chunk in chunks]
        draws.append(torch.cat(parts, dim=k))
    return torch.stack(draws, dim=k)


@torch.no_grad()
def mean_function(model: nn.Module, x: Inputs, *, batch_size: int | None = None) -> Tensor:
    """Evaluate ``model`` at the posterior mean of its weights, without gradients.

    Returns:
        ``f``, shape ``(*batch_shape, N, out)``: no draws axis. This is not the mean of the
        predictive distribution unless the model is linear in its weights.
    """
    batch_shape = batch_shape_of(model)
    chunks = row_chunks(x, batch_shape, batch_size)
    with sampling(MeanWeights()):
        parts = [call(model, _with_replicas(chunk, batch_shape)) for chunk in chunks]
    return torch.cat(parts, dim=len(batch_shape))


@contextlib.contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put ordinary modules (dropout, batch norm) in a mode, and each back afterwards."""
    former = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in former:
            module.training = mode


def call(model: nn.Module, x: Inputs) -> Tensor:
    """Run ``model`` on ``x`` and return its function values."""
    if isinstance(x, Tensor):
        found = model(x)
    else:
        found = model(**x) if isinstance(x, Mapping) else model(*x)
    return values_of(found)


def values_of(found: Any) -> Tensor:
    """Return the function values in what a model has returned."""
    if isinstance(found, Tensor):
        return found
    logits = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    if not isinstance(logits, Tensor):
        raise ShapeError(
            f"the model must return a tensor, or a record with a tensor `logits`; got "
            f"{type(found).__name__}: wrap it in a module that picks the function values"
        )
    return logits


def takes_draws(model: nn.Module, x: Inputs, batch_shape: tuple[int, ...], num_draws: int) -> bool:
    """Tell whether all draws go in one pass: rows are features, and modules let axes lead."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return False
    if x.dim() != row_axis(x, batch_shape) + 2:
        return False
    return num_draws > 1 and all(map(_lets_axes_lead, model.modules()))


def _lets_axes_lead(module: nn.Module) -> bool:
    """Judge a module of torch, or the one that a class is made of, by what is known of it."""
    kind = next(c for c in type(module).__mro__ if c.__module__.startswith("torch.nn."))
    if kind in (nn.Softmax, nn.LogSoftmax, nn.Softmin):
        dim: int | None = module.dim  # type: ignore[assignment]  # is a number there
        return dim is not None and dim < 0
    if kind is nn.PReLU:
        return bool(module.num_parameters == 1)
    return kind in _ANY_AXES or (kind.__module__ == activation.__name__ and kind not in _OWN_AXES)


def check_replicas(model: nn.Module, batch_shape: tuple[int, ...]) -> None:
    """Refuse replicas of modules that would take them for rows or channels, without an error."""
    for name, module in model.named_modules() if batch_shape else ():
        if isinstance(module, _NORMS):
            raise ConfigError(
                f"{name} ({type(module).__name__}) cannot have replicas: it would take their axis "
                f"for another; use nn.LayerNorm, or models without batch_shape {batch_shape}"
            )


def _with_replicas(x: Inputs, batch_shape: tuple[int, ...]) -> Inputs:
    """``(*batch_shape, N, ...)``, by stride-0 axes where ``x`` is shared."""
    if not batch_shape:
        return x
    expanded: Inputs = map_tensors(
        lambda t: t if row_axis(t, batch_shape) else t.expand(*batch_shape, *t.shape), x
    )
    return expanded


def with_draws(x: Any, batch_shape: tuple[int, ...], num_draws: int) -> Tensor:
    """``(*batch_shape, S, N, in)``: a stride-0 draws axis before the rows."""
    if x.dim() > 2:
        x = x.unsqueeze(-3)
    expanded: Tensor = x.expand(*batch_shape, num_draws, *x.shape[-2:])
    return expanded


def map_tensors(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply ``function`` to a tensor, or to the tensors of a tuple or mapping."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {key: map_tensors(function, value) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(map_tensors(function, value) for value in x)
    return x


def tensors_in(x: Inputs) -> list[Tensor]:
    """Return the tensors of a tensor, tuple or mapping."""
    if isinstance(x, Mapping):
        x = tuple(x.values())
    if isinstance(x, tuple | list):
        return [tensor for part in x for tensor in tensors_in(part)]
    return [x] if isinstance(x, Tensor) else []


def row_chunks(x: Inputs, batch_shape: tuple[int, ...], batch_size: int | None) -> list[Inputs]:
    """Cut rows into parts of at most ``batch_size``; ``None`` leaves them in one."""
    check_rows(x, batch_shape)
    if batch_size is None:
        return [x]
    check_positive_int("batch_size", batch_size)
    num_rows, parts = count_rows(x, batch_shape), []
    for start in range(0, num_rows, batch_size):
        length = min(batch_size, num_rows - start)
        part = map_tensors(lambda t: t.narrow(row_axis(t, batch_shape), start, length), x)  # noqa: B023 - used at once
        parts.append(part)
    return parts
