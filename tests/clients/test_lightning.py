"""Lightning: the ELBO as the loss, in full and mixed precision, and its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tests.clients.task import network, table
from whvi import draw_functions, elbo
from whvi.likelihoods import Gaussian

lightning = pytest.importorskip("lightning", reason="lightning is not installed: make clients")
pytestmark = pytest.mark.filterwarnings("ignore")  # of lightning and what it imports


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.likelihood = network(), Gaussian()
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        loss = -elbo(self.net, self.likelihood, *batch, num_data=64).value / 64
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def train(folder: Path, precision: str) -> tuple[Regression, object]:
    torch.manual_seed(0)
    model = Regression()
    trainer = lightning.Trainer(
        max_epochs=30, precision=precision, accelerator="cpu", default_root_dir=folder,
        accumulate_grad_batches=2, gradient_clip_val=10.0, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(*table()), batch_size=16))
    return model, trainer


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_lowers_the_loss(tmp_path: Path, precision: str) -> None:
    model, trainer = train(tmp_path, precision)
    assert sum(model.losses[-8:]) < sum(model.losses[:8]) - 1
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = Regression.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    x, _ = table(5, seed=1)
    values = [
        draw_functions(each.net, x, num_draws=3, generator=torch.Generator().manual_seed(2))
        for each in (model, again)
    ]
    assert torch.equal(*values)
