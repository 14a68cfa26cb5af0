"""The parts of an exported graph that are not the library's own, and what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
import torch

from tests.tabular.conftest import mixed_table, quick_regressor
from whvi.errors import ConfigError, MissingDependencyError
from whvi.likelihoods import Categorical, Gaussian
from whvi.tabular import WHVIGPRegressor
from whvi.tabular.export import _description, _Encoding
from whvi.tabular.inputs import TableSchema
from whvi.tabular.scaling import learn_effects, learn_embedding


def odd_table(num_rows: int = 80, seed: int = 0) -> pd.DataFrame:
    """Every kind of column, with missing values and one that holds nothing."""
    table, _ = mixed_table(num_rows, seed)
    days = np.random.default_rng(seed).integers(-90_000, 90_000, num_rows)
    table["when"] = pd.Timestamp("1970-01-01").as_unit("s") + pd.to_timedelta(days, "D").as_unit(
        "s"
    )
    table["empty"] = np.nan
    table["note"] = table["colour"]
    table.loc[::7, "size"] = np.nan
    table.loc[::5, "note"] = None
    table.loc[::9, "when"] = pd.NaT
    return table


def feeds(description: dict, table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Prepare a table by nothing but the metadata of the file."""
    numbers, codes = [], []
    for column in description["numbers"]:
        values = table[column["name"]]
        if column["unit"] == "days since 1970-01-01":
            values = (values - pd.Timestamp("1970-01-01").as_unit("s")).dt.total_seconds() / 86_400
        numbers.append(values.to_numpy(dtype=np.float64, na_value=np.nan))
    for column in description["codes"]:
        known = {text: code for code, text in enumerate(column["categories"])}
        cells = table[column["name"]]
        codes.append(
            [
                column["missing"] if pd.isna(cell) else known.get(cell, column["unseen"])
                for cell in cells
            ]
        )
    found = {"numbers": np.array(numbers).T, "codes": np.array(codes, dtype=np.int64).T}
    return {name: rows for name, rows in found.items() if rows.size}


def towns(num_rows: int, seed: int) -> pd.DataFrame:
    """Two columns with enough texts to have effects, heavy tails, and dates without a hole."""
    rng, table = np.random.default_rng(seed), odd_table(num_rows, seed)
    table["town"] = [f"town {k}" for k in rng.integers(0, 14 + 4 * seed, num_rows)]
    table["street"] = [f"street {k}" for k in rng.integers(0, 20, num_rows)]
    table.loc[::11, "street"] = None
    table["income"], table["rent"] = rng.standard_cauchy((2, num_rows))
    table["built"] = table["when"].ffill().bfill()
    return table


@pytest.mark.parametrize("num_bins", [0, 8])
@pytest.mark.parametrize(
    "columns",
    [
        ["size", "count", "open", "colour", "when", "empty", "note"],
        ["size", "count"],
        ["size", "when"],  # no column is complete
        ["colour"],
        ["town", "street"],
        ["note", "when", "size"],
        ["street", "income", "town", "colour", "rent", "built", "open", "size"],
    ],
)
def test_columns_are_encoded_as_by_the_schema(columns, num_bins):
    table = towns(80, 0)[columns]
    schema = TableSchema.learn(table, named=True, target_names=("y",))
    targets = np.random.default_rng(2).normal(size=(80, 2))
    schema, encoded = learn_effects(schema, table, targets, seed=0)
    embedding = learn_embedding(encoded, num_bins=num_bins)
    new = towns(300, 1)[columns].copy()
    for name in {"colour", "note", "street"} & {*columns}:
        new.loc[::4, name] = "never seen"
    for name in {"count", "income", "open", "built", "town"} & {*columns}:
        cells = new[name].astype("boolean") if name == "open" else new[name]
        new[name] = cells.mask(np.arange(300) % 13 == 2)  # holes in what was complete
    for name in {"size", "rent", "income"} & {*columns}:
        new.loc[3, name] = 1e12  # is moved to a million units
        new.loc[8, name] = -1e300
    description = _description(_Described(schema), (0.5,))
    given = {name: torch.as_tensor(x) for name, x in feeds(description, new).items()}
    encoding = _Encoding(schema.columns, embedding, 3)
    x, stretch, reach = encoding(given.get("numbers"), given.get("codes"))
    expected = embedding.of_members(schema.encode(new), "cpu", 3)
    assert torch.equal(x, expected.x.expand_as(x))
    assert embedding.heavy.any() == ("income" in columns) == bool(stretch.max() > 1)
    # a sum of squares in another order
    torch.testing.assert_close(stretch, expected.stretch, rtol=2**-23, atol=0)
    torch.testing.assert_close(reach, expected.reach, rtol=2**-23, atol=0)


class _Described:
    """As much of a predictor as its description needs."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema, self.classes, self.architecture = schema, None, self
        self.likelihood = "gaussian"


@pytest.mark.parametrize("likelihood", ["poisson", "student_t"])
def test_other_likelihoods_are_refused_by_name(likelihood, tmp_path):
    table, y = mixed_table()
    model = quick_regressor(likelihood=likelihood, max_iter=5).fit(table, y.abs().round())
    with pytest.raises(ConfigError, match=f"likelihood '{likelihood}' cannot be exported"):
        model.to_onnx(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_gaussian_process_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="WHVIGPRegressor cannot be exported to ONNX"):
        WHVIGPRegressor().to_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("levels", [(), (0.0,), (0.5, 1.0), (-1,), (float("nan"),)])
def test_levels_are_probabilities(fitted, levels, tmp_path):
    with pytest.raises(ConfigError, match="strictly between 0 and 1"):
        fitted.to_onnx(tmp_path / "m.onnx", quantiles=levels)


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(fitted, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r'pip install "whvi\[export\]"'):
        fitted.to_onnx(tmp_path / "m.onnx")


class _Moments(torch.nn.Module):
    def __init__(self, likelihood: torch.nn.Module, of: str) -> None:
        super().__init__()
        self.likelihood, self.of = likelihood, of

    def forward(self, f: torch.Tensor) -> torch.Tensor:
        return getattr(self.likelihood.predictive(f), self.of)


@pytest.mark.parametrize(("likelihood", "of"), [(Gaussian(2), "std"), (Categorical(2), "probs")])
def test_a_predictive_can_be_exported(likelihood, of):
    model = _Moments(likelihood.requires_grad_(False), of)
    shapes = ({1: torch.export.Dim("rows")},)
    program = torch.export.export(model, (torch.randn(3, 4, 2),), dynamic_shapes=shapes)
    f = torch.randn(3, 9, 2)
    torch.testing.assert_close(program.module()(f), model(f), rtol=1e-15, atol=0)
