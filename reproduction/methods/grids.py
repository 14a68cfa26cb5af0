"""The candidates of every method: six each, the first is the default.

All networks have the paper's shape (two hidden layers of 128 ReLU units) except the wide
candidates of ``whvi-best``. A candidate may depend on the number of training rows, which is no
secret, and on nothing else of the data.
"""

from __future__ import annotations

from itertools import product

from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from reproduction.methods import DataSize, Method, Setting, Settings
from reproduction.methods.kfac import NoisyKFACMethod
from reproduction.methods.networks import NetworkMethod
from reproduction.methods.trees import trees

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
    """Candidates of ``whvi`` (0–2: constant noise, 3–5: varying; β falls) and wide ones."""
    narrow, (constant, varying) = _whvi(size), _noises(size)
    if size.num_rows < _LARGE:
        wide = [_wider(size, beta) | varying for beta in (0.1, 0.2)]
        return (*narrow[3:], narrow[0], *wide)
    if size.num_rows < _VERY_LARGE:
        # 512 units on much data: β = 0.1 where there is hardly any noise, else the whole KL
        wide = [_wider(size, 0.1) | constant, _wider(size, 1.0) | varying]
        return (narrow[0], narrow[1], narrow[4], *wide, _sines(size))
    return (*narrow[:3], *narrow[4:], _sines(size))


def _wider(size: DataSize, beta: float) -> dict[str, Setting]:
    """The paper's network four times as wide, with fewer steps."""
    steps, batch = (8000, 128) if size.num_rows >= _LARGE else (4000, 64)
    shape: dict[str, Setting] = {"width": 512, "depth": 2}
    return {**shape, "steps": steps, "batch": batch, "lr": 1.5e-2, "beta": beta}


def _sines(size: DataSize) -> Settings:
    """Three wide layers, the first with sine features, on inputs by their ranks.

    On very many rows the inputs are tiled; else the frequencies are those of a Laplace kernel.
    """
    very_large = size.num_rows >= _VERY_LARGE
    width, steps, features = (2048, 9000, "sine") if very_large else (1024, 4000, "laplace")
    shape: dict[str, Setting] = {"width": width, "depth": 3, "features": features}
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
    """Constant noise, noise by the likelihood and by least squares for its mean, two β each."""
    large = size.num_rows >= _LARGE
    # natural gradients need fewer, dearer steps
    common = {**_training(size, lr=2e-2), "damping": 1e-3, "prior": 0.03}
    common |= {"steps": 4000} if large else {"steps": 2000, "batch": 32}
    constant: dict[str, Setting] = {"noise": "constant"}
    varying: dict[str, Setting] = {"noise": "heteroscedastic"}
    balanced = {**varying, "balance": 1.0, **({"trust": 1e-4} if large else {})}
    weights = ((0.03, 0.3), (0.1, 0.3), (0.1, 0.03)) if large else ((0.1, 0.03),) * 3
    return tuple(
        {**common, **noise, "beta": beta}
        for noise, betas in zip((constant, varying, balanced), weights, strict=True)
        for beta in betas
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
        trees("extra-trees", ExtraTreesRegressor, _extra_trees, "min_samples_leaf", "max_features"),
        trees(
            "hist-gradient-boosting",
            HistGradientBoostingRegressor,
            _boosting,
            "learning_rate",
            "max_leaf_nodes",
        ),
    )
}
"""Every method that chooses from a grid, by name."""
