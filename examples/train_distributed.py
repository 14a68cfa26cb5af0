"""Training on several processes, by whvi.fit or by a loop of one's own with DDP or FSDP.

torchrun --nproc-per-node 2 --max-restarts 3 examples/train_distributed.py --method fit|ddp|fsdp
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import whvi
from whvi.likelihoods import Gaussian
from whvi.metrics import mnll, rmse
from whvi.training import Checkpoints, average_gradients

NUM_DATA, BATCH = 4096, 64  # rows of the training set, and of a batch over all ranks


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_DATA + 512, 8, generator=generator)
    noise = 0.1 * torch.randn(len(x), generator=generator)
    return x, torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + noise


class Objective(nn.Module):
    """Network and likelihood in one module: a wrapper sees, and averages, the gradients of both."""

    def __init__(self) -> None:
        super().__init__()
        layers = [whvi.WHVILinear(8, 128), nn.ReLU(), whvi.WHVILinear(128, 128), nn.ReLU()]
        self.net = nn.Sequential(*layers, whvi.WHVILinear(128, 1))
        self.likelihood = Gaussian()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        # every rank has the whole KL and N / (own rows) times its log-likelihood: the mean over
        # the ranks is the objective of one process, in which the KL counts once
        return -whvi.elbo(self.net, self.likelihood, x, y, num_data=NUM_DATA).value / NUM_DATA


def wrapped(objective: Objective, method: str) -> tuple[nn.Module, list[nn.Parameter]]:
    """Return what to call, and the parameters whose gradients are still to be averaged."""
    if method == "ddp":
        return DistributedDataParallel(objective), []
    if method == "fsdp":
        for layer in objective.net:
            if isinstance(layer, whvi.WHVILinear):
                fully_shard(layer)
        fully_shard(objective.net)
    return objective, list(objective.likelihood.parameters())


def own_loop(objective: Objective, options: argparse.Namespace, x: Tensor, y: Tensor) -> None:
    model, left = wrapped(objective, options.method)
    optimizer = torch.optim.Adam(objective.parameters(), lr=5e-3)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    step = load(objective, optimizer, options.output)
    while step < options.steps:
        if step == options.fail_at and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os._exit(1)
        # all ranks draw the same batch, of which each takes its part; noise differs by rank; both
        # follow from the step, so that a restarted run goes on as if it had not stopped
        rows = torch.randperm(NUM_DATA, generator=torch.Generator().manual_seed(step))[:BATCH]
        torch.manual_seed(step * world_size + rank)
        own = rows[rank::world_size]
        optimizer.zero_grad()
        model(x[own], y[own]).backward()
        average_gradients(left)
        optimizer.step()
        step += 1
        if step % options.every == 0:
            save(objective, optimizer, options.output, step)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, step: int) -> None:
    """Write whole or not at all: ``.metadata`` comes last. Shards are written by their owners."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=folder / f"step-{step:08d}")


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Go to the newest checkpoint, of any number of ranks, and return its step."""
    found = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    if not found:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=found[-1])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return int(found[-1].name.removeprefix("step-"))


def by_fit(objective: Objective, options: argparse.Namespace, x: Tensor, y: Tensor) -> None:
    """whvi.fit splits batches, averages all gradients, writes and resumes checkpoints itself."""
    config = whvi.FitConfig(num_steps=options.steps, batch_size=BATCH, learning_rate=5e-3)
    keep = Checkpoints(options.output, every_steps=options.every)
    whvi.fit(objective.net, objective.likelihood, (x, y), config=config, checkpoint=keep)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=("fit", "ddp", "fsdp"), default="fit")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    parser.add_argument("--output", type=Path, default=Path("run"), help="folder of checkpoints")
    parser.add_argument("--fail-at", type=int, help="die at this step once, to see the restart")
    options = parser.parse_args()
    options.steps, options.every = (60, 20) if options.quick else (2000, 200)
    if "RANK" in os.environ:  # set by torchrun; "nccl" on GPUs
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    x, y = data()
    torch.manual_seed(0)  # the same start on every rank
    objective = Objective()
    train = by_fit if options.method == "fit" else own_loop
    train(objective, options, x[:NUM_DATA], y[:NUM_DATA])
    torch.manual_seed(0)  # all ranks take part: parameters may be in pieces
    f = whvi.draw_functions(objective.net, x[NUM_DATA:], num_draws=64)
    predictive = objective.likelihood.predictive(f.detach())
    if dist.get_rank() == 0:
        print(f"test RMSE {rmse(predictive.mean, y[NUM_DATA:].double()):.4f}")
        print(f"test MNLL {mnll(predictive.log_prob(y[NUM_DATA:])):.4f} nats")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
