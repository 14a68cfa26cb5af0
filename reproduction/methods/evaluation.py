"""Train on all training rows with the chosen settings, predict the test rows once, and score."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from reproduction.data import UCIDataset, count_duplicates, stack_replicas, standardize_replicas
from reproduction.methods import Method
from reproduction.methods.calibration import rescaled
from reproduction.methods.selection import Choice, groups, predict
from reproduction.records import Record, software_versions
from whvi.metrics import coverage, crps, mnll, rmse
from whvi.predictive import Predictive

_DRAWS = 200


def evaluate(
    method: Method,
    dataset: UCIDataset,
    splits: Sequence[int],
    choices: Sequence[Choice],
    *,
    seed: int,
) -> Iterator[Record]:
    """Fit, predict and score ``splits`` with their choices; yields one record each.

    Splits whose choices have the same structure train as replicas of one pass, together with
    their ensemble members.
    """
    replicas = stack_replicas(dataset.x, dataset.y, [dataset.splits[k] for k in splits])
    scaled = standardize_replicas(replicas)
    x, y, test_x = (torch.as_tensor(part).float() for part in scaled.data[:3])
    unit_mean = torch.as_tensor(scaled.y.mean).squeeze(-1)
    unit_scale = torch.as_tensor(scaled.y.scale).squeeze(-1)
    test_y = torch.as_tensor(replicas.y_test)
    members = method.num_members
    for group in groups(method, [choice.settings for choice in choices], members):
        start = time.perf_counter()
        rows = [i for i in group for _ in range(members)]
        settings = [choices[i].settings for i in rows]
        fitted = method.fit(settings, x[rows], y[rows], seed=seed)
        factor = torch.tensor([choices[i].noise_factor for i in group])
        mixture = predict(fitted, test_x[rows], members, _DRAWS)
        plain = rescaled(mixture, torch.ones_like(factor), unit_mean[group], unit_scale[group])
        final = rescaled(mixture, factor, unit_mean[group], unit_scale[group])
        seconds = (time.perf_counter() - start) / len(group)
        for i, ours, raw in zip(group, final.unbind(), plain.unbind(), strict=True):
            yield {
                "method": method.name,
                "dataset": dataset.name,
                "split": splits[i],
                "seed": seed,
                **scores(ours, test_y[i]),
                **scores_per_draw(ours, test_y[i]),
                "mnll_unscaled": float(mnll(raw.log_prob(test_y[i]))),
                "num_parameters": members * fitted.num_parameters,
                "seconds": seconds + choices[i].seconds,
                "choice": choices[i].in_short(),
                **facts(dataset, splits[i]),
            }


LEVELS = (0.5, 0.9, 0.95)
"""Of the intervals that are scored."""


def scores(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """Score one distribution per row against ``y (N,)``, in the units of ``y``."""
    found = {
        "rmse": float(rmse(predictive.mean, y)),
        "mnll": float(mnll(predictive.log_prob(y))),
        "crps": float(crps(predictive, y)),
    }
    for level in LEVELS:
        lower, upper = predictive.interval(level)
        found[f"coverage{100 * level:.0f}"] = float(coverage(lower, upper, y))
        found[f"width{100 * level:.0f}"] = float((upper - lower).median())
    return found


def scores_per_draw(predictive: Predictive, y: Tensor) -> dict[str, float]:
    """Average over draws what each draw alone would score, as the authors' code did."""
    component = predictive.as_distribution().component_distribution
    errors = predictive.component_means() - y
    return {
        "rmse_per_draw": float(errors.square().mean(-1).sqrt().mean()),
        "mnll_per_draw": -float(component.log_prob(y.unsqueeze(-1)).mean()),
    }


def facts(dataset: UCIDataset, split: int) -> Record:
    """Return what ties a record to data and software."""
    train, test = dataset.splits[split]
    return {
        "num_train": len(train),
        "num_test": len(test),
        "num_duplicates": count_duplicates(dataset.x[train], dataset.x[test]),
        "data_sha256": dataset.sha256,
        "versions": software_versions(),
    }
