"""What :func:`whvi.linearize` reads: pairs of rows and targets, checked as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from whvi._checks import check_finite, check_positive_int
from whvi.errors import ConfigError, DataError
from whvi.functions import (
    Inputs,
    check_rows,
    count_rows,
    row_axis,
    row_chunks,
    target_axis,
    tensors_in,
)
from whvi.likelihoods import Likelihood

Rows = tuple[Inputs, Tensor]
Data = Rows | Iterable[Rows]


def pairs_of(data: Data) -> Iterable[Rows]:
    """Return pairs: a list if they are all there, else as they come."""
    given: Any = data
    if isinstance(given, tuple | list):
        one = len(given) == 2 and any(isinstance(part, Tensor) for part in given)
        return [_pair(pair) for pair in ([given] if one else given)]
    if isinstance(given, Iterable) and not isinstance(given, Tensor | Mapping | str):
        return map(_pair, given)
    raise _no_data((given,))


def _pair(given: Any) -> Rows:
    """Refuse what is not rows and targets; :func:`checked` looks at the tensors."""
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise _no_data(given if isinstance(given, tuple | list) else (given,))
    x, y = given
    if not (isinstance(x, Tensor | Mapping | tuple | list) and isinstance(y, Tensor)):
        raise _no_data(given)
    return x, y


def _no_data(given: Iterable[object]) -> DataError:
    kinds = ", ".join(type(part).__name__ for part in given)
    return DataError(f"data must be tensors (x, y), or an iterable of such pairs; got {kinds}")


def count_all(pairs: Iterable[Rows], batch_shape: tuple[int, ...]) -> int | None:
    """Count the rows if they are all there."""
    if not isinstance(pairs, list):
        return None
    for x, _ in pairs:
        check_rows(x, batch_shape)
    return sum(count_rows(x, batch_shape) for x, _ in pairs)


def checked(
    pairs: Iterable[Rows], likelihood: Likelihood, batch_shape: tuple[int, ...]
) -> Iterator[Rows]:
    """Yield pairs; refuse values that are not finite, or targets of another number of rows."""
    for x, y in pairs:
        check_rows(x, batch_shape)
        target_axis(y, batch_shape, count_rows(x, batch_shape))
        for part in tensors_in(x):
            check_finite("x", part)
        likelihood.check_targets(y)
        yield x, y


def blocks(data: Iterable[Rows], batch_shape: tuple[int, ...], size: int) -> Iterator[Rows]:
    """Cut pairs ``(x, y)`` into pieces of at most ``size`` rows."""
    for x, y in data:
        y_axis = target_axis(y, batch_shape, count_rows(x, batch_shape))
        yield from zip(row_chunks(x, batch_shape, size), y.split(size, y_axis), strict=False)


def chosen(
    pairs: Iterable[Rows],
    batch_shape: tuple[int, ...],
    num_rows: int,
    generator: torch.Generator | None,
) -> tuple[list[Rows], float]:
    """Draw ``num_rows`` rows in one pass, those with the smallest of random keys; and ``N / n``."""
    check_positive_int("num_rows", num_rows)
    kept: tuple[Tensor, Tensor, Tensor] | None = None
    num_data = 0
    for x, y in pairs:
        check_rows(x, batch_shape)
        if not isinstance(x, Tensor):
            raise ConfigError("num_rows draws rows of one tensor; of several, give those wanted")
        axis = row_axis(x, batch_shape)
        y_axis = target_axis(y, batch_shape, x.shape[axis])
        keys = torch.rand(x.shape[axis], dtype=torch.float64, generator=generator)
        num_data += len(keys)
        if kept is not None:
            old_keys, old_x, old_y = kept
            keys, x = torch.cat([old_keys, keys]), torch.cat([old_x, x], axis)
            y = torch.cat([old_y, y], y_axis)
        index = keys.argsort()[:num_rows].sort().values
        kept = keys[index], x.index_select(axis, index), y.index_select(y_axis, index)
    if kept is None:
        raise DataError("there are no rows to linearise at; give at least one")
    keys, x, y = kept
    return [(x, y)], num_data / len(keys)
