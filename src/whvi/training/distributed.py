r"""Training on several processes, one batch split among them.

Each rank computes ``L_w = (N / B_w) Σ_{own rows} E[log p] − β KL`` with ``B_w = B / W``. The mean
over the ranks is ``(N / B) Σ_{all rows} E[log p] − β KL``: the objective of one process, the KL
counted once. So it suffices to average the gradients. ``DistributedDataParallel`` averages
those of the module it wraps; :func:`average_over_ranks` does it for all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from whvi.errors import ConfigError


class Ranks(NamedTuple):
    """Which process of how many this is."""

    rank: int = 0
    world_size: int = 1

    def share(self, batch_size: int) -> slice:
        """Return this rank's rows of a batch; all ranks get equally many."""
        size, rest = divmod(batch_size, self.world_size)
        if rest:
            raise ConfigError(
                f"a batch of {batch_size} rows cannot be split equally among {self.world_size} "
                "processes; choose a multiple"
            )
        return slice(self.rank * size, (self.rank + 1) * size)


def check_whole(parameters: Mapping[str, Tensor]) -> None:
    """Refuse parameters that FSDP has cut into shards."""
    shards = [name for name, p in parameters.items() if hasattr(p, "full_tensor")]
    if shards:
        raise ConfigError(
            f"fit does not train sharded parameters (the first is {shards[0]}); use "
            "DistributedDataParallel, or whvi.elbo in a loop of your own (docs/distributed.md)"
        )


def current_ranks() -> Ranks:
    """Return rank and world size of ``torch.distributed``, or one process if it is not in use."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside ``DistributedDataParallel``, or ``model`` itself."""
    if isinstance(model, DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def unmanaged(model: nn.Module, parameters: Sequence[nn.Parameter]) -> list[int]:
    """Return which of ``parameters`` have gradients that nobody averages yet."""
    managed = set(model.parameters()) if isinstance(model, DistributedDataParallel) else set()
    return [i for i, parameter in enumerate(parameters) if parameter not in managed]


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients of parameters that no wrapper averages, such as a likelihood's.

    For your own training loop, after ``backward()``, on every rank; see docs/distributed.md.
    :func:`whvi.fit` needs no such call.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients and current_ranks().world_size > 1:
        average_over_ranks(gradients, gradients[0].new_empty(0))


def average_over_ranks(gradients: Sequence[Tensor], extra: Tensor) -> Tensor:
    """Average gradients over the ranks in place, and ``extra`` with them, in one message.

    Returns:
        The mean of ``extra``, a vector, over the ranks.
    """
    flat = torch.cat([*(g.reshape(-1) for g in gradients), extra])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    *parts, mean = torch.split(flat, [*(g.numel() for g in gradients), extra.numel()])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return mean


def broadcast_from_first(tensors: Iterable[Tensor]) -> None:
    """Give every rank the values of rank 0."""
    for tensor in tensors:
        dist.broadcast(tensor.detach(), src=0)


def gather_rows(row: Tensor, ranks: Ranks) -> Tensor:
    """Stack one vector per rank, shape ``(world_size, n)``."""
    if ranks.world_size == 1:
        return row.unsqueeze(0)
    rows = [torch.empty_like(row) for _ in range(ranks.world_size)]
    dist.all_gather(rows, row)
    return torch.stack(rows)
