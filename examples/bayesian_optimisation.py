"""Bayesian optimisation with BoTorch: whvi's surrogates beside its own Gaussian process.

Every method starts from the same points and maximises the same acquisition function, qLogEI, one
point at a time. Records of finished runs are kept, so that a stopped run goes on from there.

    python examples/bayesian_optimisation.py [--output FOLDER] [--surrogate NAME] [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import qLogExpectedImprovement
from botorch.exceptions import BotorchWarning
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor, nn

import whvi
from whvi.botorch import FunctionModel
from whvi.gp import RandomFeatureGP
from whvi.likelihoods import Gaussian
from whvi.plots import new_figure, save_figure


class Problem(NamedTuple):
    function: Branin | Hartmann  # to be maximised
    num_initial: int
    num_steps: int


PROBLEMS = {
    "branin": Problem(Branin(negate=True), 5, 20),
    "hartmann6": Problem(Hartmann(6, negate=True), 10, 30),
}


# Surrogates: rows (N, d) in the unit cube, targets (N,) ------------------------------------------


def single_task_gp(x: Tensor, y: Tensor) -> Model:
    """BoTorch's own, as its tutorials use it."""
    model = SingleTaskGP(x, y.unsqueeze(-1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def random_feature_gp(x: Tensor, y: Tensor) -> Model:
    """Hyper-parameters by the exact evidence, as rows are few; the posterior by random features."""
    process = RandomFeatureGP(x.shape[1], 512, kernel="rbf", weights="full", dtype=torch.float64)
    process.likelihood.set_target_scaling(y)
    maximise_evidence(process, x, y)
    process.condition(x, y)
    return FunctionModel(process.requires_grad_(False))


def maximise_evidence(process: RandomFeatureGP, x: Tensor, y: Tensor) -> None:
    """Maximise ``log N(z; 0, K + σ² I)`` and two priors.

    Few rows say little about many lengthscales. Their prior is that of SingleTaskGP, log-normal
    with parameters ``√2 + log(d) / 2`` and ``√3`` (Hvarfner et al., 2024). Little noise is
    expected: ``log σ² ~ N(−9, 9)``.
    """
    features, log_noise = process.layer.features, process.likelihood.log_noise_variance
    middle = math.sqrt(2) + 0.5 * math.log(x.shape[1]) - 3  # log of the prior's mode
    with torch.no_grad():
        features.log_lengthscale.fill_(middle)
        log_noise.fill_(math.log(1e-4))
    z, one = (y - y.mean()) / y.std(correction=0), torch.eye(len(x), dtype=x.dtype)
    trained = [features.log_lengthscale, features.log_variance, log_noise]
    optimizer = torch.optim.LBFGS(trained, max_iter=40, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        factor = torch.linalg.cholesky(features.kernel_matrix(x) + (log_noise.exp() + 1e-7) * one)
        half = torch.linalg.solve_triangular(factor, z.unsqueeze(-1), upper=False)
        evidence = -0.5 * half.square().sum() - factor.diagonal().log().sum()
        prior = (features.log_lengthscale - middle).square().sum() / 6
        prior = prior + features.log_variance.square() / 8 + (log_noise + 9).square().sum() / 18
        value = prior - evidence
        value.backward()
        return value

    optimizer.step(loss)


def linearized_network(x: Tensor, y: Tensor) -> Model:
    """A small network at its mean weights, with a full covariance over all of them."""
    torch.manual_seed(0)
    network = whvi.mlp(x.shape[1], (32, 32), activation=nn.Tanh, dtype=torch.float64)
    likelihood = Gaussian(log_noise_variance=-6.0, dtype=torch.float64)
    likelihood.set_target_scaling(y)
    config = whvi.FitConfig(num_steps=200, batch_size=len(x), learning_rate=2e-2, beta=0.1)
    rows = nn.Sequential(_Centred(), network)
    whvi.fit(rows, likelihood, (x, y), config=config)
    return FunctionModel(whvi.linearize(rows, likelihood, (x, y)))


class _Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * x - 2


SURROGATES: dict[str, Callable[[Tensor, Tensor], Model]] = {
    "SingleTaskGP": single_task_gp,
    "RandomFeatureGP": random_feature_gp,
    "linearised network": linearized_network,
}


# One run -----------------------------------------------------------------------------------------


def optimise(problem: Problem, surrogate: Callable[[Tensor, Tensor], Model], seed: int) -> list:
    """Return the simple regret after the initial points and after every step."""
    torch.manual_seed(seed)
    function, d = problem.function, problem.function.dim
    lower, upper = function.bounds.double()
    cube = torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64)
    x = draw_sobol_samples(cube, n=problem.num_initial, q=1, seed=seed).squeeze(1)
    y = function(lower + (upper - lower) * x)
    regrets = [float(function.optimal_value - y.max())]
    for _ in range(problem.num_steps):
        acquisition = qLogExpectedImprovement(surrogate(x, y), best_f=y.max())
        options = {"maxiter": 50}
        new, _ = optimize_acqf(
            acquisition, cube, q=1, num_restarts=3, raw_samples=64, options=options
        )
        x = torch.cat([x, new.detach()])
        y = torch.cat([y, function(lower + (upper - lower) * new.detach())])
        regrets.append(float(function.optimal_value - y.max()))
    return regrets


# All runs, their summary and a picture -----------------------------------------------------------


def run_all(folder: Path, problems: dict[str, Problem], num_seeds: int, names: list[str]) -> list:
    """Run what is not on record yet."""
    path = folder / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(r["problem"], r["surrogate"], r["seed"]) for r in records}
    for name in names:
        for seed in range(num_seeds):
            for title, problem in problems.items():
                if (title, name, seed) in done:
                    continue
                start = time.process_time()
                regrets = optimise(problem, SURROGATES[name], seed)
                seconds = round(time.process_time() - start, 1)
                record = {"problem": title, "surrogate": name, "seed": seed}
                records.append({**record, "regret": regrets, "cpu_seconds": seconds})
                with path.open("a") as stream:
                    stream.write(json.dumps(records[-1]) + "\n")
    return records


def summarise(records: list) -> dict:
    """Return median and quartiles of the regret over seeds, by problem and surrogate."""
    summary: dict = {}
    for record in records:
        entry = summary.setdefault(record["problem"], {}).setdefault(record["surrogate"], [])
        entry.append(record["regret"])
    for entries in summary.values():
        for name, runs in entries.items():
            curves = torch.tensor(runs, dtype=torch.float64)
            quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
            low, median, high = curves.quantile(quartiles, dim=0).tolist()
            entries[name] = {
                "seeds": len(runs),
                "final_median": median[-1],
                "final_quartiles": [low[-1], high[-1]],
                "median": median,
                "lower_quartile": low,
                "upper_quartile": high,
            }
    return summary


def draw(summary: dict, path: Path) -> None:
    """Draw the regret over evaluations, medians with quartiles."""
    figure = new_figure(len(summary), width=4.5 * len(summary), height=3.4)
    for axis, (title, entries) in zip(figure.axes, summary.items(), strict=True):
        for name, entry in entries.items():
            first = PROBLEMS[title].num_initial
            steps = range(first, first + len(entry["median"]))
            (line,) = axis.plot(steps, entry["median"], label=name)
            axis.fill_between(
                steps,
                entry["lower_quartile"],
                entry["upper_quartile"],
                alpha=0.2,
                color=line.get_color(),
                linewidth=0,
            )
        axis.set(title=title, xlabel="evaluations", ylabel="simple regret", yscale="log")
    figure.axes[0].legend()
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("botorch"), help="folder")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--surrogate", choices=SURROGATES, action="append")
    parser.add_argument("--quick", action="store_true", help="two steps, one seed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    problems, seeds = PROBLEMS, arguments.seeds
    if arguments.quick:
        problems, seeds = {"branin": PROBLEMS["branin"]._replace(num_steps=2)}, 1
    arguments.output.mkdir(parents=True, exist_ok=True)
    names = arguments.surrogate or list(SURROGATES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BotorchWarning)
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)  # tried again
        records = run_all(arguments.output, problems, seeds, names)
    summary = summarise(records)
    (arguments.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(summary, arguments.output / "figure.png")
    for title, entries in summary.items():
        for name, entry in entries.items():
            print(f"{title:<12}{name:<22}median final regret {entry['final_median']:.2e}")


if __name__ == "__main__":
    main()
