"""Adapters on Hugging Face models: same outputs, Trainer with a KL, checkpointing, bf16, peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.clients.huggingface import train, transformers
from whvi import (
    MeanWeights,
    WeightDraws,
    convert,
    draw_functions,
    elbo,
    kl,
    linearize,
    mean_function,
    sampling,
    unconvert,
)
from whvi.adapters import Adapted, load_adapter, save_adapter, use_adapter
from whvi.errors import ConfigError
from whvi.likelihoods import Categorical
from whvi.linearized import jacobian

pytest.importorskip("accelerate", reason="accelerate is not installed: make clients")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and what it imports

NUM_ROWS = 48
SIZES = {"vocab_size": 20, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZES, intermediate_size=48, max_position_embeddings=16, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval()


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=24, n_layer=2, n_head=2, n_positions=16, num_labels=2, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config).eval()


def sentences() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 20, (NUM_ROWS, 6), generator=generator)
    labels = (ids[:, 1] > 10).long()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def adapted_bert() -> Any:
    return convert(bert(), layers="bert.encoder", train=["classifier", "bert.pooler"])


def num_adapted(model: nn.Module) -> int:
    return sum(isinstance(module, Adapted) for module in model.modules())


@pytest.mark.parametrize(("make", "count"), [(bert, 14), (gpt2, 9)])
def test_the_outputs_are_the_same_to_the_bit(make: Any, count: int) -> None:
    """GPT-2 is made of Conv1D, whose weights are transposed."""
    net, columns = make(), sentences()
    model = convert(net)
    assert num_adapted(model) == count
    with torch.no_grad(), sampling(MeanWeights()):
        before, after = net(**columns), model(**columns)
    assert type(before) is type(after)
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.loss, after.loss)


def test_a_residual_on_conv1d_is_its_dense_weight() -> None:
    model = convert(gpt2(), relative_scale=0.5)
    layer, x = model.transformer.h[0].attn.c_attn, torch.randn(5, 24)
    with torch.no_grad(), sampling(WeightDraws()):
        torch.testing.assert_close(layer(x), x @ layer.weight + layer.bias, atol=1e-5, rtol=1e-5)
    with torch.no_grad(), sampling(MeanWeights()):
        layer.adapters["default"].matrix.posterior.loc.normal_()
        expected = model(**sentences()).logits
    plain = unconvert(model)
    assert type(plain.transformer.h[0].attn.c_attn).__name__ == "Conv1D"
    torch.testing.assert_close(plain(**sentences()).logits, expected, atol=1e-5, rtol=1e-5)
    replaced = convert(gpt2(), mode="replace", layers="*.c_attn")
    assert replaced.transformer.h[0].attn.c_attn.weight_shape == (72, 24)


def test_a_tied_head_of_a_language_model_is_refused() -> None:
    config = transformers.BertConfig(**SIZES, intermediate_size=48)
    with pytest.raises(ConfigError, match=r"decoder \(Linear\) cannot be converted: .* tied"):
        convert(transformers.BertForMaskedLM(config))


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=str)
def test_trainer_lowers_the_loss(tmp_path: Path, options: dict[str, bool]) -> None:
    net = adapted_bert()
    options = {**options, "num_train_epochs": 40, "learning_rate": 0.02}
    losses = train(net, sentences(), tmp_path, num_rows=1000, **options)
    assert sum(losses[-6:]) < sum(losses[:6]) - 6 * 0.1
    fresh = bert()
    assert all(
        torch.equal(p, fresh.get_parameter(n.replace(".base", "")))
        for n, p in net.named_parameters()
        if ".base." in n
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_gradients_are_the_same(reentrant: bool) -> None:
    columns, gradients = sentences(), []
    for checkpointed in (False, True):
        net = adapted_bert().train()
        if checkpointed:
            net.gradient_checkpointing_enable({"use_reentrant": reentrant})
            net.enable_input_require_grads()
        torch.manual_seed(1)
        with sampling(WeightDraws()):
            net(**columns).loss.backward()
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    assert len(gradients[0]) == 12 * 4 + 4  # s1, s2, loc, log_scale; pooler and classifier
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_file_of_kilobytes_and_a_batch_of_a_tokenizer(tmp_path: Path) -> None:
    net, columns = adapted_bert(), sentences()
    labels = columns.pop("labels")
    batch = transformers.BatchEncoding(columns)
    terms = elbo(net, Categorical(2), batch, labels, num_data=NUM_ROWS)
    (-terms.value).backward()
    torch.optim.SGD([p for p in net.parameters() if p.grad is not None], 1e-3).step()
    save_adapter(net, tmp_path / "adapter.safetensors")
    again = load_adapter(bert(), tmp_path / "adapter.safetensors")
    draws = [
        draw_functions(each, columns, num_draws=3, generator=torch.Generator().manual_seed(2))
        for each in (net, again)
    ]
    assert draws[0].shape == (3, NUM_ROWS, 2)
    assert torch.equal(*draws)


@pytest.mark.parametrize("make", [bert, gpt2])
def test_a_linearised_posterior_of_a_batch_of_a_tokenizer(make: Any) -> None:
    """Sentences of two lengths; Jacobians are slopes of the mean function."""
    names = {"layers": "*.query", "train": "classifier"} if make is bert else {"layers": "*.c_attn"}
    net = convert(make().double(), **names)
    columns = {name: column[:8].clone() for name, column in sentences().items()}
    labels = columns.pop("labels")
    columns["input_ids"][:4, 4:] = columns["attention_mask"][:4, 4:] = 0
    batch = transformers.BatchEncoding(columns)
    posterior = linearize(net, Categorical(2), (batch, labels), prior_precision=1.0)
    J, step = jacobian(net, batch).derivatives, 1e-5
    for name, place in posterior.space.slices.items():
        entry = net.get_parameter(name).data.view(-1)[:1]
        entry += step
        above = mean_function(net, batch)
        entry -= 2 * step
        slope = (above - mean_function(net, batch)) / (2 * step)
        entry += step
        torch.testing.assert_close(J[..., place.start], slope, rtol=1e-5, atol=1e-8)
    streamed = [({k: v[i : i + 3] for k, v in batch.items()}, labels[i : i + 3]) for i in (0, 3, 6)]
    again = linearize(net, Categorical(2), streamed, prior_precision=1.0)
    torch.testing.assert_close(again.log_evidence, posterior.log_evidence)
    assert posterior.predictive(batch).probs.shape == (8, 2)


def test_lora_beside_it() -> None:
    """peft freezes all but its own; ``use_adapter`` lets ours train again."""
    peft = pytest.importorskip("peft", reason="peft is not installed: make clients")
    net = convert(bert(), layers="*.query")
    config = peft.LoraConfig(r=2, target_modules=r".*value", init_lora_weights=False)
    model = peft.get_peft_model(net, config)
    use_adapter(model, "default")
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in n or ".adapters.default." in n for n in trained)
    with sampling(WeightDraws()):
        (model(**sentences()).loss + kl(model) / NUM_ROWS).backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == trained
    assert len([n for n in trained if "lora_" in n]) == 4
    assert len(trained) == 4 + 2 * 4
