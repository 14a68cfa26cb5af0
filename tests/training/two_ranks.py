"""One of two processes that train together and write what they end with.

Started with ``RANK`` and ``WORLD_SIZE`` in the environment, by hand or by ``torchrun``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.training.doubles import gaussian, tiny_config, tiny_data, tiny_net
from whvi._files import seal
from whvi.elbo import elbo
from whvi.training import Checkpoints, fit


def quiet_net(seed: int = 0) -> nn.Module:
    """A net without noise: its posterior scales underflow, and are not trained."""
    net = tiny_net(dtype=torch.float64, seed=seed)
    for name, parameter in net.named_parameters():
        if name.endswith("log_scale"):
            parameter.data.fill_(-60.0)
            parameter.requires_grad_(False)
    return net


def trained(folder: Path | None, wrap, *, net: nn.Module | None = None, **changes):
    net = quiet_net() if net is None else net
    likelihood = gaussian(dtype=net[0].mean.dtype)
    history = fit(
        wrap(net),
        likelihood,
        tiny_data(dtype=net[0].mean.dtype),
        config=tiny_config(**changes),
        checkpoint=None if folder is None else Checkpoints(folder, every_steps=10),
    )
    tensors = {**net.state_dict(), "noise": likelihood.log_noise_variance}
    return tensors, history.as_dict()


def gradients(model: nn.Module, net: nn.Module, x, y) -> dict[str, torch.Tensor]:
    """Gradients of ``elbo`` through ``model``, which wraps ``net``."""
    elbo(model, gaussian(dtype=torch.float64), x, y, num_data=40).value.backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def rank_main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    net = quiet_net()
    x, y = tiny_data(8, dtype=torch.float64)
    mine = slice(4 * rank, 4 * rank + 4)
    results = {
        "gradients": (gradients(DistributedDataParallel(net), net, x[mine], y[mine]), {}),
        "wrapped": trained(None, DistributedDataParallel),
        # Rank 1 starts elsewhere: fit itself must make the ranks agree.
        "bare": trained(None, lambda net: net, net=quiet_net(seed=rank)),
        "noisy": trained(folder / "noisy", lambda net: net, net=tiny_net()),
        "resumed": trained(folder / "noisy", lambda net: net, net=tiny_net(seed=4)),
    }
    for name, (tensors, metadata) in results.items():
        (folder / f"{name}-{rank}").write_bytes(seal(tensors, metadata))


def main() -> None:
    folder = Path(sys.argv[1])
    store = None if "MASTER_ADDR" in os.environ else f"file://{folder}/rendezvous"
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    rank_main(folder, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
