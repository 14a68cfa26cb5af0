"""Digits with a convolution whose kernel has a posterior: is the network less sure when it errs?

python examples/classify_digits.py [--quick]
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import whvi
from whvi.likelihoods import Categorical
from whvi.metrics import accuracy, auroc, ece, mnll

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="a few steps only")
quick = parser.parse_args().quick

digits = load_digits()  # 1797 images of 8 x 8 pixels with values 0, ..., 16
images = torch.from_numpy(digits.images).float().unsqueeze(1) / 8 - 1
labels = torch.from_numpy(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, test = order[:1200], order[1200:]

torch.manual_seed(0)
model = nn.Sequential(
    whvi.WHVIConv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    whvi.WHVILinear(16 * 4 * 4, 64),
    nn.ReLU(),
    whvi.MeanFieldLinear(64, 10),
)
likelihood = Categorical(10)
config = whvi.FitConfig(
    num_steps=20 if quick else 800, warmup_steps=10, noise_hold_steps=0, batch_size=64
)
whvi.fit(model, likelihood, (images[train], labels[train]), config=config, progress=not quick)
print(f"{whvi.summary(model)}\n")

f = whvi.draw_functions(model, images[test], num_draws=5 if quick else 50)
predictive = likelihood.predictive(f)
right = predictive.mode == labels[test]
entropy, information = predictive.entropy(), predictive.mutual_information()

print(f"test accuracy {accuracy(predictive.mode, labels[test]):.3f}, {(~right).sum()} errors")
print(f"test MNLL     {mnll(predictive.log_prob(labels[test])):.3f} nats")
print(f"test ECE      {ece(predictive.probs, labels[test]):.3f}\n")
print("mean over               entropy   of which epistemic (nats)")
for name, chosen in (("right predictions", right), ("wrong predictions", ~right)):
    if chosen.any():
        print(f"{name:<24}{entropy[chosen].mean():7.3f}   {information[chosen].mean():7.3f}")
if not right.all():
    print(f"\nAUROC of the entropy as a sign of error: {auroc(entropy, ~right):.3f}")
