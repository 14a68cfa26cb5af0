"""Drop-in layers in a training loop of your own: three lines differ from plain PyTorch.

python examples/layers_in_pytorch.py [--quick]
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import make_friedman1
from torch import nn

import whvi
from whvi.likelihoods import Gaussian
from whvi.metrics import coverage, mnll, rmse

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="a few steps only")
num_steps = 60 if parser.parse_args().quick else 2000

# The Friedman function of five inputs with noise of standard deviation 1.
x, y = map(torch.from_numpy, make_friedman1(1000, n_features=5, noise=1.0, random_state=0))
x, y = (x.float() - 0.5) * 12**0.5, y.float()
x_train, y_train, x_test, y_test = x[:800], y[:800], x[800:], y[800:]

torch.manual_seed(0)
model = nn.Sequential(
    whvi.WHVILinear(5, 128),  # was nn.Linear(5, 128)
    nn.ReLU(),
    whvi.WHVILinear(128, 128),  # was nn.Linear(128, 128)
    nn.ReLU(),
    whvi.MeanFieldLinear(128, 1),  # was nn.Linear(128, 1)
)
likelihood = Gaussian()  # the noise is learned with the weights
likelihood.set_target_scaling(y_train)  # so that everything below is in the units of y

parameters = [*model.parameters(), *likelihood.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
for step in range(num_steps):
    rows = torch.randint(len(x_train), (64,))
    # num_data is the size of the training set: elbo() does all the scaling there is to do
    bound = whvi.elbo(model, likelihood, x_train[rows], y_train[rows], num_data=len(x_train))
    optimizer.zero_grad()
    (-bound.value / len(x_train)).backward()
    optimizer.step()
    schedule.step()
    if (step + 1) % max(1, num_steps // 5) == 0:
        print(f"step {step + 1:>5}   ELBO {bound.value.item():9.1f}   KL {bound.kl.item():7.1f}")

print(f"\n{whvi.summary(model)}\n")

predictive = likelihood.predictive(whvi.draw_functions(model, x_test, num_draws=100))
lower, upper = predictive.interval(0.9)
print(f"test RMSE            {rmse(predictive.mean, y_test.double()):.3f}")
print(f"test MNLL            {mnll(predictive.log_prob(y_test)):.3f} nats")
print(f"90 % interval covers {coverage(lower, upper, y_test.double()):.1%}")
print(f"noise                {likelihood.noise_scale.item():.3f} (true: 1)")
