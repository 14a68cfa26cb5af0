"""Draw digits from an autoencoder with random weights, and score images that are no digits.

python examples/vae.py [--quick] [--data FOLDER] [--output vae.png]

FOLDER holds ``images/mnist/train-images-idx3-ubyte.gz``; by default the variable WHVI_DATA names
it. Without it the digits that come with scikit-learn are used, 8 × 8 pixels.
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import whvi
from whvi.metrics import auroc
from whvi.models import vae

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="a few steps only")
parser.add_argument("--data", default=os.environ.get("WHVI_DATA"), help="folder with images/mnist")
parser.add_argument("--output", default="vae.png", help="picture to write")
options = parser.parse_args()

idx = Path(options.data or "") / "images/mnist/train-images-idx3-ubyte.gz"
if options.data and idx.exists():
    pixels = np.frombuffer(gzip.decompress(idx.read_bytes()), np.uint8, offset=16)
    grey = torch.from_numpy(pixels.copy()).float().view(-1, 784) / 255
    hidden, steps = (512, 512), 5000
else:
    grey = torch.from_numpy(load_digits().data).float() / 16
    hidden, steps = (128, 128), 4000
grey = grey[:600] if options.quick else grey
side = round(grey.shape[1] ** 0.5)

generator = torch.Generator().manual_seed(0)
images = torch.bernoulli(grey, generator=generator)  # black and white, drawn once
num_held_out = len(images) // 6
train, test = images[num_held_out:], images[:num_held_out][:500]

torch.manual_seed(0)
model = vae((side * side,), hidden, num_latents=20)
config = whvi.FitConfig(num_steps=20 if options.quick else steps, batch_size=64, learning_rate=0.02)
whvi.fit(model, model.bound(), (train, train), config=config, progress=not options.quick)

with torch.no_grad(), whvi.sampling(whvi.LocalReparameterization(generator)):
    terms = model.terms(train[:2000])
print(f"log p(x | z)              {terms.reconstruction.mean():10.1f} nats per image")
print(f"KL of the latents         {terms.latent_kl.mean():10.1f} nats per image")
print(f"KL of the decoder weights {terms.decoder_kl:10.1f} nats in all")
print(f"KL of the encoder weights {terms.encoder_kl:10.1f} nats in all")
num_importance = 20 if options.quick else 500
log_p = model.log_likelihood(test, num_importance=num_importance, generator=generator)
print(f"test log-likelihood       {log_p.mean():10.1f} nats per image")

turned = test.view(-1, side, side).transpose(1, 2).flatten(1)
spread = [
    model.log_likelihood_draws(x, num_weights=10, num_latents=10, generator=generator).std(0)
    for x in (test, turned)
]
is_turned = torch.cat([torch.zeros(len(test)), torch.ones(len(test))])
area = auroc(torch.cat(spread), is_turned)
print(f"disagreement of decoders as a sign of transposed digits: AUROC {area:.3f}")

figure = Figure(figsize=(10, 4.2), layout="constrained")
lines = figure.subplots(4, 10)
z = torch.randn(10, 20, generator=generator)
with torch.no_grad():
    samples = [model.decode(z) for _ in range(2)]  # two draws of the weights
rows = {
    "images": test[:10],
    "reconstructions": model.reconstruct(test[:10]),
    "samples": samples[0],
    "other weights": samples[1],
}
for line, (name, row) in zip(lines, rows.items(), strict=True):
    for axis, image in zip(line, row, strict=True):
        axis.imshow(image.view(side, side).numpy(), cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
figure.savefig(options.output, dpi=120)
print(f"picture: {options.output}")
