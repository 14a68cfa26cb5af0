from __future__ import annotations

import pytest
import torch
from torch import nn

from whvi import mlp
from whvi.errors import ConfigError
from whvi.layers import MCDropout, MeanFieldLinear, WHVIConv2d, WHVILinear, kl, summary


def test_counts_of_the_papers_network() -> None:
    model = mlp(13)
    table = summary(model)
    assert [row.name for row in table.layers] == ["0", "2", "4"]
    # 13 → 128 is 8 blocks of 16; 128 → 128 one block; the last layer has mean and scale.
    assert [row.num_parameters for row in table.layers] == [
        4 * 128 + 128,
        4 * 128 + 128,
        2 * 128 + 1,
    ]
    assert [row.num_dense for row in table.layers] == [13 * 128 + 128, 128 * 128 + 128, 128 + 1]
    assert table.num_parameters == sum(p.numel() for p in model.parameters())
    assert table.num_dense == sum(row.num_dense for row in table.layers)
    torch.testing.assert_close(torch.tensor(table.kl), kl(model).detach(), rtol=1e-5, atol=0)


def test_replicas_are_counted_as_one_model() -> None:
    one, many = summary(mlp(5, (8,))), summary(mlp(5, (8,), batch_shape=(4,)))
    assert many.num_parameters == one.num_parameters
    assert many.num_dense == one.num_dense


def test_convolutions_plain_and_shared_modules() -> None:
    shared = WHVILinear(8, 8)
    model = nn.Sequential(
        WHVIConv2d(4, 6, 3, groups=2), nn.Linear(3, 2), MCDropout(), shared, nn.Sequential(shared)
    )
    rows = {row.name: row for row in summary(model).layers}
    assert rows.keys() == {"0", "1", "3"}
    assert rows["0"].num_dense == 2 * 3 * 2 * 9 + 6
    assert (rows["1"].num_parameters, rows["1"].kl) == (8, 0.0)


def test_a_layer_is_a_model_and_the_table_is_aligned() -> None:
    table = summary(MeanFieldLinear(5, 2))
    assert table.layers[0].kind == "MeanFieldLinear"
    lines = str(table).splitlines()
    assert len(lines) == 3
    assert "KL (nats)" in lines[0]
    assert lines[-1].startswith("total")
    assert len({len(line) for line in lines}) == 1


def test_anything_but_a_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model must be a torch\.nn\.Module, got NoneType"):
        summary(None)
