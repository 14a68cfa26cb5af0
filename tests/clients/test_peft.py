"""peft: adapters beside a Bayesian head that is trained as a whole; its KL counts once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from whvi import WHVILinear, kl

peft = pytest.importorskip("peft", reason="peft is not installed: make clients")
pytestmark = pytest.mark.filterwarnings("ignore")  # of peft and what it imports


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), WHVILinear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def test_the_active_copy_counts_once() -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["body"], modules_to_save=["head"], r=2)
    model = peft.get_peft_model(Net(), config)
    wrapper = model.base_model.model.head
    active = wrapper.modules_to_save["default"]
    with torch.no_grad():
        active.matrix.posterior.log_scale.add_(1)
    assert torch.equal(kl(model), active.kl())
    with model.disable_adapter():
        assert torch.equal(kl(model), wrapper.original_module.kl())
    model(torch.randn(3, 4)).sum().backward()
    assert active.matrix.s1.grad is not None
    assert wrapper.original_module.matrix.s1.grad is None
