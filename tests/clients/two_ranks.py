"""One of two processes that share a batch, by DDP and by FSDP, and write what they find.

Weights are their means, in float64, so that gradients can be compared with those of one process;
the posteriors' scales get theirs from the KL.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import whvi
from whvi.errors import ConfigError
from whvi.layers.protocol import kl_per_layer
from whvi.likelihoods import Gaussian
from whvi.training import average_gradients

NUM_DATA, ROWS = 100, 8
POSTERIORS = ("diagonal", "low_rank", "full")


class Objective(nn.Module):
    def __init__(self, posterior: str = "diagonal") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            whvi.WHVILinear(5, 12, posterior=posterior),
            nn.ReLU(),
            whvi.MeanFieldLinear(12, 6),
            nn.ReLU(),
            whvi.WHVILinear(6, 3, posterior=posterior),
        ).double()
        self.likelihood = Gaussian(3, dtype=torch.float64)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(self.net, self.likelihood, x, y)


def loss_of(net: nn.Module, likelihood: Gaussian, x: Tensor, y: Tensor) -> Tensor:
    with whvi.sampling(whvi.MeanWeights()):
        f = net(x)
    return whvi.kl(net) / NUM_DATA - likelihood.log_prob(f.unsqueeze(0), y).mean()


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(ROWS, n, generator=generator, dtype=torch.float64) for n in (5, 3)]
    return made[0], made[1]


def gradients(objective: nn.Module) -> dict[str, Tensor]:
    """Whole gradients by name."""
    named = ((name, p.grad) for name, p in objective.named_parameters())
    return {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in named}


def shard(net: nn.Sequential) -> None:
    for layer in net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(net)


def by_ddp_inside(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    objective = Objective()
    wrapped = DistributedDataParallel(objective)  # averages as long as it lives
    wrapped(x, y).backward()
    return gradients(objective)


def by_ddp_outside(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    objective = Objective()
    wrapped = DistributedDataParallel(objective.net)
    loss_of(wrapped, objective.likelihood, x, y).backward()
    average_gradients(objective.likelihood.parameters())
    return gradients(objective)


def by_fsdp(x: Tensor, y: Tensor, posterior: str) -> dict[str, Tensor]:
    objective = Objective(posterior)
    shard(objective.net)
    objective(x, y).backward()
    average_gradients(objective.likelihood.parameters())
    found = gradients(objective)
    layers = torch.stack(list(kl_per_layer(objective.net).values()))
    found |= {"kl": whvi.kl(objective.net).detach(), "sum of layers": layers.sum()}
    torch.optim.Adam(objective.net.parameters(), lr=0.1).step()
    found["kl after a step"] = whvi.kl(objective.net).detach()
    return found


def with_noise(wrap: Callable[[nn.Sequential], nn.Module], x: Tensor, y: Tensor) -> dict:
    """Gradients of ``elbo`` with noise of this rank's own."""
    objective = Objective()
    model = wrap(objective.net)
    torch.manual_seed(dist.get_rank())
    bound = whvi.elbo(model, objective.likelihood, x, y, num_data=NUM_DATA)
    (-bound.value / NUM_DATA).backward()
    average_gradients(objective.likelihood.parameters())
    return {"own": bound.expected_log_lik.detach(), **gradients(objective)}


def sharded(net: nn.Sequential) -> nn.Sequential:
    shard(net)
    return net


def refusal(x: Tensor, y: Tensor) -> str:
    objective = Objective()
    shard(objective.net)
    try:
        config = whvi.FitConfig(num_steps=2, batch_size=4)
        whvi.fit(objective.net, objective.likelihood, (x, y), config=config)
    except ConfigError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # of views, changed in place
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x, y = (t[ROWS // 2 * rank : ROWS // 2 * (rank + 1)] for t in rows())
    found = {
        "inside": by_ddp_inside(x, y),
        "outside": by_ddp_outside(x, y),
        "noisy ddp": with_noise(DistributedDataParallel, x, y),
        "noisy fsdp": with_noise(sharded, x, y),
        "refusal": refusal(x, y),
    }
    found |= {f"sharded {name}": by_fsdp(x, y, name) for name in POSTERIORS}
    torch.save(found, folder / f"rank-{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
