"""Function values of a model: rows in, draws of functions out.

Leading axes are ``(*batch_shape, S, N, features)``: replicas, draws, rows. Rows of rank 1 (plain
features) take all draws in one pass through a stride-0 axis; rows of higher rank (images) are
looped over draws, because modules such as ``nn.MaxPool2d`` accept no further axis.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi.errors import ShapeError
from whvi.layers.protocol import bayesian_layers
from whvi.sampling import LocalReparameterization, MeanWeights, WeightDraws, sampling


def batch_shape_of(model: nn.Module) -> tuple[int, ...]:
    """Return the ``batch_shape`` on which all Bayesian layers of ``model`` agree, else ``()``."""
    layers = bayesian_layers(model)
    shapes = {layer.batch_shape for layer in layers}
    if len(shapes) > 1:
        names = {module: name for name, module in model.named_modules()}
        found = ", ".join(f"{names[layer] or 'model'} has {layer.batch_shape}" for layer in layers)
        raise ShapeError(f"all Bayesian layers must have one batch_shape, but {found}")
    return next(iter(shapes), ())


def check_rows(x: Tensor, batch_shape: tuple[int, ...]) -> None:
    """Refuse what is not a tensor, or has no axis for rows or none for their features."""
    if not isinstance(x, Tensor):
        raise ShapeError(f"x must be a torch.Tensor, got {type(x).__name__}; use torch.as_tensor")
    if x.dim() < 2:
        raise ShapeError(
            f"x must have shape (N, features) or (*batch_shape, N, features) with batch_shape "
            f"{batch_shape}, got {tuple(x.shape)}"
        )


def row_axis(x: Tensor, batch_shape: tuple[int, ...]) -> int:
    """Return the axis of ``x`` that counts rows: 0 for rows shared by all replicas.

    By shape alone: shared rows of rank 2 or more, as many as there are replicas, look the same
    as rows per replica and are taken for such; expand them to ``(*batch_shape, N, ...)`` first.
    """
    k = len(batch_shape)
    return k if x.dim() >= k + 2 and x.shape[:k] == batch_shape else 0


def local_function_values(
    model: nn.Module,
    x: Tensor,
    batch_shape: tuple[int, ...],
    num_draws: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Run ``model`` with fresh weights for every row: ``f (*batch_shape, S, N, out)``.

    ``x`` is ``(N, ...)`` or ``(*batch_shape, N, ...)``; nothing is checked here.
    """
    with sampling(LocalReparameterization(generator)):
        if rows_are_features(x, batch_shape):
            values: Tensor = model(with_draws(x, batch_shape, num_draws))
            return values
        rows = _with_replicas(x, batch_shape)
        return torch.stack([model(rows) for _ in range(num_draws)], dim=len(batch_shape))


@torch.no_grad()
def draw_functions(
    model: nn.Module,
    x: Tensor,
    *,
    num_draws: int,
    generator: torch.Generator | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Draw functions from the posterior and evaluate them at ``x``, without gradients.

    Each of the ``S`` draws is one function: one set of weights for all rows and all chunks.

    Args:
        model: Any module; its Bayesian layers follow the sampler.
        x: ``(N, ...)`` shared by the replicas, or ``(*batch_shape, N, ...)``.
        num_draws: ``S``, how many functions.
        generator: Source of randomness; ``None`` is torch's default generator.
        batch_size: Rows per pass, to bound memory; ``None`` takes all at once.

    Returns:
        ``f``, shape ``(*batch_shape, S, N, out)``.
    """
    check_positive_int("num_draws", num_draws)
    batch_shape = batch_shape_of(model)
    chunks = _chunks(x, batch_shape, batch_size)
    k = len(batch_shape)
    if rows_are_features(x, batch_shape):
        with sampling(WeightDraws(num_draws, generator)):
            parts = [model(with_draws(chunk, batch_shape, num_draws)) for chunk in chunks]
        return torch.cat(parts, dim=k + 1)
    draws = []
    for _ in range(num_draws):
        with sampling(WeightDraws(None, generator)):
            parts = [model(_with_replicas(chunk, batch_shape)) for chunk in chunks]
        draws.append(torch.cat(parts, dim=k))
    return torch.stack(draws, dim=k)


@torch.no_grad()
def mean_function(model: nn.Module, x: Tensor, *, batch_size: int | None = None) -> Tensor:
    """Evaluate ``model`` at the posterior mean of its weights, without gradients.

    Returns:
        ``f``, shape ``(*batch_shape, N, out)``: no draws axis. This is not the mean of the
        predictive distribution unless the model is linear in its weights.
    """
    batch_shape = batch_shape_of(model)
    chunks = _chunks(x, batch_shape, batch_size)
    with sampling(MeanWeights()):
        parts = [model(_with_replicas(chunk, batch_shape)) for chunk in chunks]
    return torch.cat(parts, dim=len(batch_shape))


def rows_are_features(x: Tensor, batch_shape: tuple[int, ...]) -> bool:
    """Tell whether rows are plain features, which take all draws in one pass."""
    return x.dim() == row_axis(x, batch_shape) + 2


def _with_replicas(x: Tensor, batch_shape: tuple[int, ...]) -> Tensor:
    """``(*batch_shape, N, ...)``, by stride-0 axes where ``x`` is shared."""
    if not batch_shape or row_axis(x, batch_shape):
        return x
    return x.expand(*batch_shape, *x.shape)


def with_draws(x: Tensor, batch_shape: tuple[int, ...], num_draws: int) -> Tensor:
    """``(*batch_shape, S, N, in)``: a stride-0 draws axis before the rows."""
    if x.dim() > 2:
        x = x.unsqueeze(-3)
    return x.expand(*batch_shape, num_draws, *x.shape[-2:])


def _chunks(x: Tensor, batch_shape: tuple[int, ...], batch_size: int | None) -> list[Tensor]:
    check_rows(x, batch_shape)
    if batch_size is None:
        return [x]
    check_positive_int("batch_size", batch_size)
    return list(torch.split(x, batch_size, dim=row_axis(x, batch_shape)))
