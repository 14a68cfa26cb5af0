"""The candidates of every method: six each, the first is the default.

All networks have the paper's shape (two hidden layers of 128 ReLU units) except the wide
candidates of ``whvi-best``. A candidate may depend on the number of training rows, which is no
secret, and on nothing else of the data.
"""

from __future__ import annotations

from itertools import product

from whvi.experiments.methods.kfac import NoisyKFACMethod
from whvi.experiments.methods.networks import NetworkMethod
from whvi.experiments.methods.protocol import DataSize, Method, Setting, Settings
from whvi.experiments.methods.trees import TreeMethod

GRID_SIZE = 6
_MEDIUM = 600  # training rows from which batches are of 64
_LARGE = 5000  # training rows from which batches are larger and training is longer
_VERY_LARGE = 20000


def _noises(size: DataSize) -> tuple[dict[str, Setting], ...]:
    """Constant noise, or a function of the input; on very many rows its mean by least squares.

    There the likelihood's own weights, and half of them, let some fits go astray: protein,
    standardised validation RMSE 0.68 to 0.81 with balance ½ and 0.68 to 0.71 with 1.
    """
    varying: dict[str, Setting] = {"noise": "heteroscedastic"}
    if size.num_rows >= _VERY_LARGE:
        varying["balance"] = 1.0
    return ({"noise": "constant"}, varying)


def _training(size: DataSize, *, lr: float, large_lr: float | None = None) -> dict[str, Setting]:
    """Steps and batch: 8,000 of 32 or 64 rows, or 12,000 of 128 with a peak rate of its own."""
    large, medium = size.num_rows >= _LARGE, size.num_rows >= _MEDIUM
    large_lr = lr / 1.5 if large_lr is None else large_lr
    return {
        "width": 128,
        "depth": 2,
        "steps": 12000 if large else 8000,
        "batch": 128 if large else 64 if medium else 32,
        "lr": large_lr if large else lr,
    }


def _whvi(size: DataSize) -> tuple[Settings, ...]:
    common = _training(size, lr=1.5e-2, large_lr=2e-2)
    return tuple(
        {**common, **noise, "beta": beta} for noise, beta in product(_noises(size), (0.6, 0.3, 0.1))
    )


def _whvi_best(size: DataSize) -> tuple[Settings, ...]:
    """Candidates of ``whvi`` and wide ones.

    On few rows the three with varying noise and one with constant noise (β = 0.6), on many all but
    the one with varying noise and β = 0.6.
    """
    narrow = _whvi(size)
    if size.num_rows < _LARGE:
        return (*narrow[3:], narrow[0], _wide_small(0.1), _wide_small(0.2))
    return (*narrow[:3], *narrow[4:], _wide(size))


def _wide_small(beta: float) -> Settings:
    """The paper's network four times as wide."""
    shape: dict[str, Setting] = {"width": 512, "depth": 2, "noise": "heteroscedastic"}
    return {**shape, "steps": 4000, "batch": 64, "lr": 1.5e-2, "beta": beta}


def _wide(size: DataSize) -> Settings:
    """Three wide layers on tiled inputs, the first with sine features."""
    very_large = size.num_rows >= _VERY_LARGE
    width, steps = (2048, 9000) if very_large else (1024, 4000)
    shape: dict[str, Setting] = {"width": width, "depth": 3, "features": "sine"}
    if very_large:
        shape["inputs"] = "normal scores"
    training: dict[str, Setting] = {"steps": steps, "batch": 128, "lr": 2e-2}
    return {**shape, **training, **_noises(size)[1], "beta": 0.1}


def _mean_field(size: DataSize) -> tuple[Settings, ...]:
    common = _training(size, lr=7.5e-3)
    return tuple(
        {**common, **noise, "beta": beta}
        for noise, beta in product(_noises(size), (0.1, 0.03, 0.3))
    )


def _mc_dropout(size: DataSize) -> tuple[Settings, ...]:
    common = _training(size, lr=3e-3)
    return tuple(
        {**common, **noise, "beta": 1.0, "dropout": rate}
        for noise, rate in product(_noises(size), (0.05, 0.01, 0.1))
    )


def _deep_ensemble(size: DataSize) -> tuple[Settings, ...]:
    common = _training(size, lr=3e-3)
    return tuple(
        {**common, **noise, "beta": decay}
        for noise, decay in product(_noises(size), (1.0, 0.1, 10.0))
    )


def _noisy_kfac(size: DataSize) -> tuple[Settings, ...]:
    # natural gradients need fewer, dearer steps
    common = {**_training(size, lr=2e-2), "damping": 1e-3, "prior": 0.03}
    common |= {"steps": 4000} if size.num_rows >= _LARGE else {"steps": 2000, "batch": 32}
    return tuple(
        {**common, "noise": noise, "beta": beta}
        for noise, beta in product(("constant", "heteroscedastic"), (0.1, 0.03, 0.3))
    )


def _extra_trees(size: DataSize) -> tuple[Settings, ...]:
    return tuple(
        {"n_estimators": 300, "min_samples_leaf": leaf, "max_features": share}
        for share, leaf in product((1.0, 0.5), (1, 2, 4))
    )


def _boosting(size: DataSize) -> tuple[Settings, ...]:
    return tuple(
        {"max_iter": 500, "learning_rate": rate, "max_leaf_nodes": leaves}
        for rate, leaves in product((0.1, 0.05), (31, 16, 8))
    )


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        NetworkMethod("whvi", "structured", _whvi),
        NetworkMethod("whvi-ensemble", "structured", _whvi, num_members=4),
        NetworkMethod("whvi-best", "structured", _whvi_best, num_members=4),
        NetworkMethod("mean-field", "mean-field", _mean_field),
        NetworkMethod("mc-dropout", "plain", _mc_dropout),
        NoisyKFACMethod(_noisy_kfac),
        NetworkMethod("deep-ensemble", "plain", _deep_ensemble, num_members=5),
        TreeMethod("extra-trees", _extra_trees),
        TreeMethod("hist-gradient-boosting", _boosting),
    )
}
"""Every column, by name, in the order of the table."""
