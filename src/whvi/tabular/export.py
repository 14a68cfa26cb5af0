r"""A fitted ensemble as one ONNX graph: columns of a table in, a predictive distribution out.

.. math:: p(y \mid x) = \sum_s w_s(x) \, N(y;\, \mu_s(x), \sigma_s(x)^2), \qquad
          \mathrm{cdf}(y) = \sum_s w_s(x) \, \Phi((y - \mu_s(x)) / \sigma_s(x))

The graph is what :class:`whvi.tabular.predictor.Predictor` computes, recorded by ``torch.export``.
Two things are written for it here: the encoding of columns, which the library does with pandas,
and quantiles by a search with a fixed number of steps. ``docs/clients.md`` describes inputs,
outputs and the metadata from which any program can prepare its tables.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from whvi._files import atomic_write
from whvi.errors import ConfigError, MissingDependencyError
from whvi.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from whvi.predictive import Predictive
from whvi.tabular.inputs import BEND, FARTHEST, Column, Embedding, NetworkInputs, member_levels
from whvi.tabular.predictor import Predictor

LEVELS = (0.05, 0.5, 0.95)
UNSEEN = -1
_FARTHEST_TAIL, _LEAST_LEVEL = 7.0, 1e-9  # Φ(−7) = 10⁻¹²
_POINTS, _STEPS = 3, 16  # the bracket of a quantile becomes 4¹⁶ = 4·10⁹ times as narrow
_EXPORTED = (Gaussian, HeteroscedasticGaussian, Bernoulli, Categorical)


def export_onnx(
    predictor: Predictor, path: str | os.PathLike[str], *, quantiles: Sequence[float] = LEVELS
) -> None:
    """Write an ONNX file with the outputs mean, std and quantiles; or probabilities and label.

    Args:
        predictor: Of a fitted :class:`whvi.WHVIRegressor` or :class:`whvi.WHVIClassifier`.
        path: File to write, whole or not at all.
        quantiles: K levels between 0 and 1, for regressions.

    Raises:
        ConfigError: The likelihood is neither a Gaussian nor one of classes.
    """
    levels = _checked_levels(quantiles)
    if not isinstance(predictor.likelihood, _EXPORTED):
        raise ConfigError(
            f"a model with likelihood {predictor.architecture.likelihood!r} cannot be exported: "
            "only Gaussian mixtures and classes can; fit with likelihood='gaussian' or "
            "'heteroscedastic'"
        )
    proto = _program(_Graph(predictor, levels))
    for part in (*proto.graph.node, *proto.graph.value_info, *proto.graph.input, proto.graph):
        part.ClearField("metadata_props")  # names of source files, which nobody needs
    entry = proto.metadata_props.add()
    entry.key, entry.value = "whvi", json.dumps(_description(predictor, levels))
    with atomic_write(path) as stream:
        stream.write(proto.SerializeToString())


def _checked_levels(quantiles: Sequence[float]) -> tuple[float, ...]:
    levels = tuple(float(level) for level in quantiles)
    if not levels or not all(_LEAST_LEVEL <= level <= 1 - _LEAST_LEVEL for level in levels):
        raise ConfigError(f"quantiles must be levels strictly between 0 and 1, got {levels}")
    return levels


def _inputs(columns: Sequence[Column]) -> tuple[list[Column], list[Column]]:
    """Return the columns that enter as numbers, and those that enter as codes of texts."""
    used = [column for column in columns if column.width]
    return [c for c in used if c.categories is None], [c for c in used if c.categories is not None]


def _description(predictor: Predictor, levels: tuple[float, ...]) -> dict[str, Any]:
    """Say what columns, codes and outputs mean, in plain values for JSON."""
    numbers, codes = _inputs(predictor.schema.columns)
    units, labels = {"date": "days since 1970-01-01", "boolean": "0 or 1"}, predictor.classes
    return {
        "version": version("whvi"),
        "likelihood": predictor.architecture.likelihood,
        "numbers": [
            {"name": c.name, "kind": c.kind, "unit": units.get(c.kind, "as in training")}
            for c in numbers
        ],
        "codes": [
            {"name": c.name, "categories": c.categories, "missing": _missing(c), "unseen": UNSEEN}
            for c in codes
        ],
        "targets": predictor.schema.target_names,
        "classes": None if labels is None else labels.tolist(),
        "quantiles": None if labels is not None else levels,
    }


def _missing(column: Column) -> int:
    """Return the code of a missing text."""
    return int(column.positions(pd.Series([None], dtype=object))[0])


# The graph -------------------------------------------------------------------------------------


@final
class _Graph(nn.Module):
    """From columns to outputs."""

    def __init__(self, predictor: Predictor, levels: tuple[float, ...]) -> None:
        super().__init__()
        self.predictor, self.levels = predictor, levels
        num_members = predictor.functions.shape[0]
        self.encoding = _Encoding(predictor.schema.columns, predictor.embedding, num_members)
        is_regression = predictor.classes is None
        self.outputs = ("mean", "std", "quantiles") if is_regression else ("probabilities", "label")

    def forward(self, numbers: Tensor | None, codes: Tensor | None) -> tuple[Tensor, ...]:
        """Return the outputs in the order of their names."""
        predictive = self.predictor.predictive(*self.encoding(numbers, codes))
        if self.predictor.classes is None:
            return predictive.mean, predictive.std, _quantiles(predictive, self.levels)
        return predictive.probs, predictive.probs.argmax(-1)


@final
class _Encoding(nn.Module):
    """What :meth:`TableSchema.encode` and :class:`Embedding` do, for all columns at once.

    Columns are encoded in five groups (numbers, indicators of missing ones, parts of dates,
    one-hot texts, effects of texts), each with its place: the number of its column, and one within
    it.
    """

    def __init__(self, columns: Sequence[Column], embedding: Embedding, num_members: int) -> None:
        super().__init__()
        numbers, codes = _inputs(columns)
        where = {column.name: k for k, column in enumerate(columns)}
        self.num_numbers, self.num_codes = len(numbers), len(codes)
        self.indicators = [k for k, c in enumerate(numbers) if c.indicator]
        self.dates = [k for k, c in enumerate(numbers) if c.kind == "date"]
        complete = [not c.indicator and c.kind != "date" for c in numbers]
        fill = [np.nan if whole else c.fill for c, whole in zip(numbers, complete, strict=True)]
        self.fill = torch.tensor(fill, dtype=torch.float64)
        counts = [len(c.categories or ()) for c in codes]
        texts = [(k, j) for k, count in enumerate(counts) for j in range(count)]
        self.owner, self.category = [k for k, _ in texts], torch.tensor([j for _, j in texts])
        self.effects = [
            (k, torch.tensor(c.effects, dtype=torch.float64))
            for k, c in enumerate(codes)
            if c.effects is not None
        ]
        places = [(where[c.name], 0) for c in numbers]
        places += [(where[c.name], c.width) for c in numbers if c.indicator]
        places += [(where[numbers[k].name], j) for j in (1, 2, 3) for k in self.dates]
        places += [(where[codes[k].name], j) for k, j in texts]
        places += [
            (where[codes[k].name], j)
            for k, _ in self.effects
            for j in range(counts[k], codes[k].width)
        ]
        self.order = sorted(range(len(places)), key=places.__getitem__)
        self.embed = _Embed(embedding, num_members if any(complete) else 0)

    def forward(self, numbers: Tensor | None, codes: Tensor | None) -> NetworkInputs:
        parts = []
        if numbers is not None:
            missing = numbers.isnan()
            filled = torch.where(missing, self.fill, numbers)
            parts = [
                filled,
                missing[:, self.indicators].double(),
                *_calendar(filled[:, self.dates]),
            ]
        if codes is not None:
            parts.append((codes[:, self.owner] == self.category).double())
            for k, effects in self.effects:
                unseen, code = len(effects) - 1, codes[:, k]
                known = (code >= 0) & (code < unseen)
                parts.append(effects[torch.where(known, code, unseen)])
        found: NetworkInputs = self.embed(torch.cat(parts, dim=1)[:, self.order])
        return found


@final
class _Embed(nn.Module):
    """:class:`Embedding` of rows in which NaN may be, if there are ``num_members`` to see it."""

    def __init__(self, embedding: Embedding, num_members: int) -> None:
        super().__init__()
        self.of = {name: torch.as_tensor(value) for name, value in vars(embedding).items()}
        self.bent = self.of["heavy"].nonzero()[:, 0]
        levels = member_levels(num_members)[:, None, None]
        self.levels = levels.clamp(self.of["least"], self.of["most"]) if num_members else None

    def forward(self, encoded: Tensor) -> NetworkInputs:
        of = self.of
        raw = (encoded - of["middle"]) / of["unit"]
        z = raw.clamp(-FARTHEST, FARTHEST)
        if self.levels is not None:
            z = torch.where(raw.isnan(), self.levels, z)  # (R, N, w)
        h = torch.where(of["heavy"], z / (1 + (z / BEND).square()).sqrt(), z)
        share = (z.index_select(-1, of["column"]) - of["left"]) / (of["right"] - of["left"])
        x = (torch.cat([h, share.clamp(0, 1)], dim=-1) - of["mean"]) / of["scale"]
        first = z if self.levels is None else z[0]
        squares = (first - first.clamp(of["least"], of["most"])).square()
        bent = squares.index_select(-1, self.bent)
        return NetworkInputs(x.float(), *map(_one_and_root, (bent, squares)))


def _one_and_root(squares: Tensor) -> Tensor:
    return (1 + squares.sum(1, keepdim=True).sqrt()).float()


def _calendar(days: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return year, month and weekday of days since 1970 (Hinnant's ``civil_from_days``)."""
    days = days.floor()
    since = days + 719_468  # 1 March of year 0, where cycles of 400 years begin
    cycle = (since / 146_097).floor()
    day = since - 146_097 * cycle
    leaps = (day / 1_460).floor() - (day / 36_524).floor() + (day / 146_096).floor()
    year = ((day - leaps) / 365).floor()
    day_of_year = day - (365 * year + (year / 4).floor() - (year / 100).floor())
    march = ((5 * day_of_year + 2) / 153).floor()  # months since March
    month = march + 3 - 12 * (march >= 10)
    weekday = days + 3 - 7 * ((days + 3) / 7).floor()
    return year + 400 * cycle + (month <= 2), month, weekday


def _quantiles(predictive: Predictive, levels: tuple[float, ...]) -> Tensor:
    """Return the quantiles ``(N[, O], K)`` of a Gaussian mixture, which Cantelli brackets."""
    components, weights = predictive.gaussian_components(), predictive.weights
    assert components is not None  # as the likelihood was checked
    if weights is None:
        weights = torch.full_like(components[0], 1 / predictive.num_components)
    loc, scale = (part[..., None, None] for part in components)  # (S, N[, O], 1, 1)
    weights = weights[(..., *[None] * (loc.dim() - weights.dim()))]
    q = torch.tensor(levels, dtype=torch.float64)
    lower = predictive.mean[..., None] - predictive.std[..., None] * ((1 - q) / q).sqrt()
    width = predictive.std[..., None] / (q * (1 - q)).sqrt()
    found: Tensor = torch.ops.whvi.mixture_quantiles(lower, width, loc, scale, weights, q)
    return found


# An operator of the graph, not of torch: tracing its five hundred nodes would take a minute
torch.library.define(
    "whvi::mixture_quantiles",
    "(Tensor lower, Tensor width, Tensor loc, Tensor scale, Tensor weights, Tensor q) -> Tensor",
)
torch.library.register_fake("whvi::mixture_quantiles", lambda lower, *_: torch.empty_like(lower))

# Hart (1968), algorithm 5666: 1 − Φ(x) = exp(−x²/2) · ratio of polynomials, highest power first
_NUMERATOR = (
    *(0.0352624965998911, 0.700383064443688, 6.37396220353165, 33.912866078383),
    *(112.079291497871, 221.213596169931, 220.206867912376),
)
_DENOMINATOR = (
    *(0.0883883476483184, 1.75566716318264, 16.064177579207, 86.7807322029461),
    *(296.564248779674, 637.333633378831, 793.826512519948, 440.413735824752),
)


def _operators() -> Any:
    from onnxscript import opset18

    return opset18


def _onnx_hypot(a: Any, b: Any) -> Any:
    """Return ``√(a² + b²)``."""
    op = _operators()
    return op.Sqrt(op.Add(op.Mul(a, a), op.Mul(b, b)))


def _onnx_quantiles(lower: Any, width: Any, loc: Any, scale: Any, weights: Any, q: Any) -> Any:
    """Cut brackets into 4 parts and keep the one in which the cdf passes ``q``, 16 times."""
    op, last = _operators(), _constant(-1, "int64")
    points, q = _constant(range(1, _POINTS + 1)), op.Unsqueeze(q, last)
    for _ in range(_STEPS):
        width = op.Div(width, _constant(_POINTS + 1))
        steps = op.Mul(op.Unsqueeze(width, last), points)
        y = op.Add(op.Unsqueeze(lower, last), steps)  # (N[, O], K, points)
        values = op.Mul(weights, _onnx_normal_cdf(op.Div(op.Sub(y, loc), scale)))
        cdf = op.ReduceSum(values, _constant(0, "int64"), keepdims=0)
        below = op.CastLike(op.Less(cdf, q), lower)
        lower = op.Add(lower, op.Mul(width, op.ReduceSum(below, last, keepdims=0)))
    return op.Add(lower, op.Div(width, _constant(2)))


def _onnx_normal_cdf(z: Any) -> Any:
    """Return ``Φ`` in float64, for which onnxruntime has no ``Erf``."""
    op = _operators()
    x = op.Min(op.Abs(z), _constant(_FARTHEST_TAIL))
    density = op.Exp(op.Mul(op.Mul(x, x), _constant(-0.5)))
    ratio = op.Div(_onnx_polynomial(x, _NUMERATOR), _onnx_polynomial(x, _DENOMINATOR))
    tail = op.Mul(density, ratio)
    return op.Where(op.Greater(z, _constant(0)), op.Sub(_constant(1), tail), tail)


def _onnx_polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    op, value = _operators(), _constant(coefficients[0])
    for number in coefficients[1:]:
        value = op.Add(op.Mul(value, x), _constant(number))
    return value


def _constant(value: Any, dtype: str = "float64") -> Any:
    from onnxscript import ir

    return _operators().Constant(value=ir.tensor(np.atleast_1d(np.asarray(value, dtype=dtype))))


# torch.onnx ------------------------------------------------------------------------------------


def _program(graph: _Graph) -> Any:
    """Record the graph for any number of rows and translate it."""
    try:
        import onnx  # noqa: F401 - to say what is missing before anything else fails
        import onnxscript  # noqa: F401 - likewise
    except ImportError as error:
        raise MissingDependencyError(
            f'an ONNX file needs onnx and onnxscript ({error}): pip install "whvi[export]"'
        ) from error
    encoding, rows = graph.encoding, {0: torch.export.Dim("rows")}
    numbers = torch.zeros(3, encoding.num_numbers, dtype=torch.float64)
    codes = torch.zeros(3, encoding.num_codes, dtype=torch.int64)
    named = {"numbers": numbers, "codes": codes}
    inputs = {name: x if x.shape[1] else None for name, x in named.items()}
    dynamic = {name: None if x is None else rows for name, x in inputs.items()}
    with _quiet(), torch.no_grad():
        exported = torch.export.export(graph, (), inputs, dynamic_shapes=dynamic)
        program = torch.onnx.export(
            exported,
            dynamo=True,
            verbose=False,
            optimize=False,
            custom_translation_table={
                torch.ops.aten.hypot.default: _onnx_hypot,
                torch.ops.whvi.mixture_quantiles.default: _onnx_quantiles,
            },
        )
    assert program is not None  # as it is with dynamo=True
    _name_outputs(program.model.graph, graph.outputs)
    return program.model_proto


def _name_outputs(graph: Any, names: tuple[str, ...]) -> None:
    """Name the outputs; values inside that have such a name get another."""
    for value in (value for node in graph for value in node.outputs):
        if value.name in names:
            value.name = f"{value.name}_inside"
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch says about itself while it exports from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
