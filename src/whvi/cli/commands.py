"""``whvi predict``, and what all verbs share: tables in, columns of a model, outputs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from whvi._files import atomic_write
from whvi.cli.app import printable
from whvi.errors import ConfigError, DataError
from whvi.tabular.inputs import place
from whvi.tabular.modelfile import load_predictor
from whvi.tabular.reading import (
    CellStyle,
    Table,
    is_number,
    listed,
    numeric_columns,
    open_table,
    require_column,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from whvi.predictive import Predictive
    from whvi.tabular.inputs import Kind, TableSchema
    from whvi.tabular.predictor import Predictor

STREAM = "-"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet would begin to compute
_PLAIN = ("", ".csv", ".tsv", ".tab", ".txt")
_PACKED = (".gz", ".parquet", ".xlsx")
_LONGEST_NAME = 255  # bytes
_LABEL = ["label", "confidence", "entropy"]
_FAR = 0.5  # share of the linearised networks above which a row is far from the training rows
_MOMENTS = ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]


@dataclass(frozen=True)
class TableOptions:
    """How to read a table, and whether to say what is odd about it."""

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    thousands: str | None = None
    na_values: tuple[str, ...] = ()
    quiet: bool = False

    def note(self, message: str) -> None:
        """Tell something that is worth knowing and no error, on stderr."""
        if not self.quiet:
            print(printable(f"note: {message}"), file=sys.stderr)

    def open(self, source: str) -> Table:
        """Read a table from a path or, for ``-``, from standard input; errors name the table."""
        style = CellStyle(
            separator={"\\t": "\t", "tab": "\t"}.get(self.separator or "", self.separator),
            decimal=self.decimal,
            thousands=self.thousands,
            encoding=self.encoding,
            na_values=self.na_values,
            spell=lambda name, value: f"--{name} {value}",
        )
        try:
            table = open_table(sys.stdin.buffer if source == STREAM else source, style)
        except DataError as error:
            name = "standard input" if source == STREAM else source
            raise error if repr(source) in str(error) else DataError(f"{name}: {error}") from error
        for note in table.notes:
            self.note(note)
        return table


# predict ---------------------------------------------------------------------------------------


def predict_table(
    model_file: str,
    source: str,
    output: str,
    options: TableOptions,
    *,
    level: float,
    keep: list[str],
) -> None:
    """Read, predict, write."""
    check_level(level)
    check_output(output, [model_file, source])
    if output != STREAM and Path(output).suffix.lower() not in _PLAIN:
        from whvi.tabular.formats import check_format

        check_format(output)
    predictor = load_predictor(model_file)
    table = options.open(source)
    classes = predictor.classes
    names = _MOMENTS if classes is None else [*_LABEL, *(f"p_{name}" for name in classes)]
    for name in keep:
        require_column(table, name)
        if name in names or keep.count(name) > 1:
            raise ConfigError(f"--keep: the predictions have a column {name!r} already")
    x = model_columns(table, predictor.schema, options)
    *found, far = _moments(predictor, x, level) if classes is None else _class_columns(predictor, x)
    if num_far := int((far > _FAR).sum()):
        options.note(
            f"{num_far} of {len(far)} rows are far from all training rows (first: row "
            f"{int((far > _FAR).argmax())}, counted from 0): the model knows little there"
        )
    if not all(np.isfinite(each).all() for each in found[classes is not None :]):
        raise DataError("the model predicts values that are not finite; it is not usable")
    predictions = pd.DataFrame(dict(zip(names, found, strict=True)), index=table.index)
    write_table(output, pd.concat([table.original(keep), predictions], axis=1))


def _moments(predictor: Predictor, x: pd.DataFrame, level: float) -> list[np.ndarray]:
    def of(p: Predictive) -> Tensor:
        moments = [p.mean, p.std, p.epistemic, p.aleatoric, *p.interval(level)]
        return torch.stack([*moments, predictor.share(p)], dim=1)

    check_one_target(predictor)
    return list(predictor.evaluate(x, of).T)


def _class_columns(predictor: Predictor, x: pd.DataFrame) -> list[np.ndarray]:
    def of(p: Predictive) -> Tensor:
        ends = p.entropy()[:, None], predictor.share(p)[:, None]
        return torch.cat([ends[0], p.probs, ends[1]], dim=1)

    assert predictor.classes is not None  # as the caller knows
    entropy, *probs, far = predictor.evaluate(x, of).T
    best = predictor.classes.astype(str)[np.argmax(probs[: len(predictor.classes)], axis=0)]
    return [best, np.max(probs, axis=0), entropy, *probs[: len(predictor.classes)], far]


def model_columns(table: Table, schema: TableSchema, options: TableOptions) -> pd.DataFrame:
    """Return the columns that a model takes, in its order and with its types.

    Missing columns are an error that names them; extra columns and categories that training did
    not have are told by name, and prediction goes on.
    """
    wanted = [column.name for column in schema.columns]
    if missing := [name for name in wanted if name not in table.columns]:
        raise DataError(
            f"the table lacks {len(missing)} of {len(wanted)} columns that the model was fitted "
            f"on: {listed(missing)}; it has {listed(list(table.columns))}"
        )
    known = {*wanted, *schema.target_names}
    if extra := [name for name in table.columns if name not in known]:
        options.note(f"columns that the model does not use are ignored: {listed(extra)}")
    x = table.frame(wanted, schema.kinds)
    for name, texts in schema.unseen(x).items():
        options.note(
            f"column {name!r} holds categories that training did not have (or seldom), taken as "
            f"unknown: {listed(texts)}"
        )
    return x


def numbers_of(table: Table, name: str, kind: Kind | None = None) -> NDArray[np.float64]:
    """Return a column of finite numbers."""
    require_column(table, name)
    return numeric_columns(table.frame([name], {name: kind} if kind else None), [name])[:, 0]


def labels_of(table: Table, name: str, kind: Kind | None = None) -> NDArray[Any]:
    """Return a column as labels: texts as they are (also ``007``), whole numbers, booleans."""
    require_column(table, name)
    values = table.frame([name], {name: kind} if kind else None)[name]
    missing = values.isna().to_numpy()
    if missing.any():
        raise DataError(
            f"column {name!r} holds {missing.sum()} missing values (first in "
            f"{place(values, int(missing.argmax()))}); drop these rows"
        )
    if values.dtype.kind == "b":
        return np.asarray(values, dtype=bool)
    if values.dtype.kind != "O":
        numbers = numeric_columns(values.to_frame(), [name])[:, 0]
        texts = [str(cell).strip() for cell in table.columns[name]]
        is_code = any(text[:1] == "0" and text[1:2].isdigit() for text in texts)
        if kind is None and (is_code or np.abs(numbers).max() >= 2**53):
            return np.array(texts, dtype=object)
        whole = numbers.astype(np.int64)
        return whole if (whole == numbers).all() else numbers
    return np.asarray(values, dtype=object)


def harmless(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    is_text = isinstance(cell, str) and cell.startswith(_FORMULA) and not is_number(cell)
    return f"'{cell}" if is_text else cell


# Options and outputs ---------------------------------------------------------------------------


def check_level(level: float) -> None:
    """Refuse a level that is no probability strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ConfigError(f"--level must lie strictly between 0 and 1, got {level:g}")


def check_one_target(predictor: Predictor) -> None:
    """Refuse a model of several targets."""
    if len(predictor.schema.target_names) != 1:
        raise ConfigError("the model predicts several targets; the command line takes one")


def check_output(output: str, inputs: Sequence[str]) -> None:
    """Refuse an output that is an input, a folder, or in a folder that is not there."""
    if output == STREAM:
        return
    path = Path(output)
    if not output or "\0" in output:
        raise ConfigError(f"the output must be the name of a file, got {output!r}")
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ConfigError(
            f"the name of the output is longer than {_LONGEST_NAME} bytes: {output!r}"
        )
    if path.is_dir():
        raise ConfigError(f"the output {output!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of the output {output!r} does not exist; create it first")
    is_new = path.is_file() or not path.exists()  # else a device, which is written into
    if not os.access(path.parent if is_new else path, os.W_OK):
        raise ConfigError(f"the {'folder of the ' * is_new}output {output!r} cannot be written to")
    for each in inputs:
        if each != STREAM and Path(each).exists() and path.resolve() == Path(each).resolve():
            raise ConfigError(
                f"the output {output!r} is also an input and would be lost; name another file"
            )


@contextlib.contextmanager
def open_output(output: str) -> Iterator[IO[Any]]:
    """Open a text file that takes its name only when all of it is written; ``-`` is stdout."""
    if output == STREAM:
        yield sys.stdout
        return
    with atomic_write(output, "w", encoding="utf-8", newline="", follow_symlinks=False) as stream:
        yield stream


def write_table(output: str, table: pd.DataFrame) -> None:
    """Write a table in the format that the name of the output says."""
    cells = table.rename(columns=harmless)
    for k in [k for k, dtype in enumerate(cells.dtypes) if dtype.kind == "O"]:
        cells.isetitem(k, cells.iloc[:, k].map(harmless))
    separator = "\t" if output.lower().removesuffix(".gz").endswith((".tsv", ".tab")) else ","
    if output.lower().endswith(_PACKED):
        from whvi.tabular.formats import write_packed

        with atomic_write(output, follow_symlinks=False) as stream:
            write_packed(cells, stream, output, separator)
        return
    with open_output(output) as stream:
        cells.to_csv(stream, sep=separator, index=False, lineterminator="\n")
