import numpy as np
import pandas as pd
import pytest

from whvi.tabular import WHVIClassifier, WHVIRegressor

QUICK = {
    "hidden_layer_sizes": (16,),
    "n_members": 2,
    "max_iter": 60,
    "num_draws": 8,
    "random_state": 0,
}


def quick_regressor(**options):
    return WHVIRegressor(**{**QUICK, "likelihood": "gaussian", **options})


def quick_classifier(**options):
    return WHVIClassifier(**{**QUICK, **options})


def mixed_table(num_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=num_rows),
            "count": rng.integers(0, 9, num_rows),
            "open": rng.random(num_rows) < 0.5,
            "colour": rng.choice(["red", "green", "blue"], num_rows),
        }
    )
    y = 3 * table["size"] + table["open"] + (table["colour"] == "red")
    return table, y.rename("price")


@pytest.fixture(scope="session")
def fitted():
    table, y = mixed_table()
    return quick_regressor().fit(table, y)


@pytest.fixture(scope="session")
def fitted_classifier():
    table, y = mixed_table()
    labels = np.where(y > 1, "high", np.where(y < -1, "low", "middle"))
    return quick_classifier().fit(table, labels)
