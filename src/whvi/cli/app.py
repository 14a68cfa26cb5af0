"""The command ``whvi``: its verbs and options, and what becomes of errors.

Nothing heavy is imported here, so that ``--help`` is quick; what the verbs do is in
:mod:`whvi.cli.commands`, and in the modules beside it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from whvi.errors import WhviError

if TYPE_CHECKING:
    from whvi.cli.commands import TableOptions

WRONG_CALL, INTERRUPTED = 2, 130
_NO_MEMORY = re.compile("can't allocate memory|out of memory|bad_alloc", re.IGNORECASE)

app = typer.Typer(
    name="whvi",
    help="Predictions with honest error bars: Walsh-Hadamard variational inference.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Task = Literal["auto", "regression", "classification"]
NoiseModel = Literal["auto", "gaussian", "heteroscedastic", "student_t", "poisson"]
Decimal = Literal[".", ","]
ModelFile = Annotated[str, typer.Argument(metavar="MODEL", help="Model file, as 'fit' writes it.")]
TableFile = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="CSV, TSV, Parquet or Excel file, also .gz; '-' is standard input."
    ),
]
Separator = Annotated[
    str | None, typer.Option("--separator", help="Between cells; by default found out.")
]
DecimalMark = Annotated[Decimal, typer.Option("--decimal", help="Decimal mark of the table.")]
Encoding = Annotated[str, typer.Option("--encoding", help="Of the table, such as latin-1.")]
Thousands = Annotated[
    str | None, typer.Option("--thousands", help="Between thousands, as the comma in 1,234.")
]
NaValues = Annotated[
    list[str] | None, typer.Option("--na-values", help="Text of a missing cell; repeat for more.")
]
Folds = Annotated[
    int | None, typer.Option("--cv", min=2, help="Score so many folds, then fit all rows.")
]
Holdout = Annotated[
    float | None,
    typer.Option("--holdout", help="Score this share of the rows, and fit the others."),
]
Group = Annotated[
    str | None, typer.Option("--group", help="Column whose values --cv, --holdout keep whole.")
]
Time = Annotated[
    str | None, typer.Option("--time", help="Column by which --cv, --holdout score later rows.")
]
LearnSplit = Annotated[
    bool, typer.Option("--learn-split", help="The column of --group, --time is an input too.")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Folder to go on from if the command is stopped.")
]
Categorical = Annotated[
    list[str] | None, typer.Option("--categorical", help="Column of categories; repeat.")
]
Numeric = Annotated[list[str] | None, typer.Option("--numeric", help="Column of numbers; repeat.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Level = Annotated[float, typer.Option("--level", help="Probability inside an interval.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and notes on stderr.")]


def _reading(
    quiet: Quiet = False,
    separator: Separator = None,
    decimal: DecimalMark = ".",
    encoding: Encoding = "utf-8",
    thousands: Thousands = None,
    na_values: NaValues = None,
) -> TableOptions:
    from whvi.cli.commands import TableOptions
    from whvi.tabular.formats import shell_option
    from whvi.tabular.reading import CellStyle

    style = CellStyle(
        separator={"\\t": "\t", "tab": "\t"}.get(separator or "", separator),
        decimal=decimal,
        thousands=thousands,
        encoding=encoding,
        na_values=(*(na_values or ()),),
        spell=shell_option,
    )
    return TableOptions(style, quiet)


def reads_tables(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that takes ``options`` those options of the command line that make them."""
    names = {"TableOptions": object}  # which is not imported here
    own = inspect.signature(verb, locals=names, eval_str=True)
    reading = inspect.signature(_reading, locals=names, eval_str=True).parameters

    def command(**given: Any) -> None:
        verb(options=_reading(**{name: given.pop(name) for name in reading}), **given)

    others = [each for each in own.parameters.values() if each.name != "options"]
    signature = own.replace(parameters=[*others, *reading.values()])
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
    return command


@app.callback(invoke_without_command=True)
def front(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Show the version, or the help if nothing else was asked for."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"whvi {installed('whvi')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@reads_tables
def fit(
    options: TableOptions,
    table: TableFile,
    target: Annotated[str, typer.Option("--target", "-t", help="Column to predict.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Model file to write.")],
    task: Annotated[
        Task, typer.Option("--task", help="auto: texts are classes, numbers are not.")
    ] = "auto",
    likelihood: Annotated[
        NoiseModel, typer.Option("--likelihood", help="auto: the best on held-out rows.")
    ] = "auto",
    members: Annotated[
        int | None, typer.Option("--members", min=1, help="Networks in the ensemble.")
    ] = None,
    hidden: Annotated[
        str | None, typer.Option("--hidden", help="Widths of hidden layers, such as 128,128.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of training.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="Column to leave out; repeat for more.")
    ] = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 1, help="Fixes every random choice.")
    ] = 0,
    checkpoint: Checkpoint = None,
    cv: Folds = None,
    holdout: Holdout = None,
    group: Group = None,
    time: Time = None,
    learn_split: LearnSplit = False,
) -> None:
    """Fit a model to a table and write it to a file."""
    from whvi.cli.commands import fit_table

    split = (cv, holdout, group, time, learn_split)
    validation = None
    if split != (None, None, None, None, False):  # also for a share of 0, which is refused
        from whvi.cli.validating import Validation

        validation = Validation(*split)
    fit_table(
        table,
        output,
        options,
        target=target,
        task=task,
        likelihood=likelihood,
        hidden=hidden,
        drop=drop or [],
        categorical=categorical or [],
        numeric=numeric or [],
        checkpoint=checkpoint,
        validation=validation,
        n_members=members,
        max_iter=steps,
        random_state=seed,
    )


@app.command()
@reads_tables
def predict(
    options: TableOptions,
    model: ModelFile,
    table: TableFile,
    output: Annotated[
        str,
        typer.Option("--output", "-o", help=".csv, .tsv, .gz, .parquet or .xlsx; '-' is stdout."),
    ] = "-",
    level: Level = 0.9,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="Column to copy; repeat for more.")
    ] = None,
) -> None:
    """Predict every row of a table: mean, std, epistemic, aleatoric, lower, upper; or classes."""
    from whvi.cli.commands import predict_table

    predict_table(model, table, output, options, level=level, keep=keep or [])


@app.command()
@reads_tables
def evaluate(
    options: TableOptions,
    model: ModelFile,
    table: TableFile,
    as_json: AsJson = False,
    level: Level = 0.9,
) -> None:
    """Score predictions against the target column of a table."""
    from whvi.cli.judging import evaluate_table

    evaluate_table(model, table, options, level=level, as_json=as_json)


@app.command()
@reads_tables
def compare(
    options: TableOptions,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL MODEL...", help="Model files of one target.")
    ],
    table: TableFile,
    as_json: AsJson = False,
    level: Level = 0.9,
) -> None:
    """Score several models on the same rows, and tell whether they differ by more than chance."""
    from whvi.cli.comparing import compare_models

    compare_models(models, table, options, level=level, as_json=as_json)


@app.command()
@reads_tables
def report(
    options: TableOptions,
    model: ModelFile,
    table: TableFile,
    output: Annotated[
        str, typer.Option("--output", "-o", help="HTML file; '-' is standard output.")
    ],
    level: Level = 0.9,
) -> None:
    """Write a page with scores, pictures and plain words on how good the model is on a table."""
    from whvi.cli.judging import report_table

    report_table(model, table, output, options, level=level)


@app.command()
@reads_tables
def importance(
    options: TableOptions,
    model: ModelFile,
    table: TableFile,
    as_json: AsJson = False,
) -> None:
    """Tell which columns matter: how much worse predictions are when their values are shuffled."""
    from whvi.cli.explaining import print_importances

    print_importances(model, table, options, as_json=as_json)


@app.command()
@reads_tables
def explain(
    options: TableOptions,
    model: ModelFile,
    table: TableFile,
    background: Annotated[
        str, typer.Option("--background", help="Rows to compare with, such as the training table.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="As of 'predict'.")] = "-",
) -> None:
    """Tell why rows are predicted as they are: what each column contributes, and how surely."""
    from whvi.cli.explaining import explain_rows

    explain_rows(model, table, background, output, options)


@app.command()
def export(
    model: ModelFile,
    output: Annotated[str, typer.Option("--output", "-o", help="ONNX file to write.")],
    quantile: Annotated[
        list[float] | None, typer.Option("--quantile", help="Level; repeat for more. [.05 .5 .95]")
    ] = None,
) -> None:
    """Write a model as ONNX: the same predictions without Python."""
    from whvi.cli.judging import export_model

    export_model(model, output, quantile)


@app.command()
def info(model: ModelFile, as_json: AsJson = False) -> None:
    """Describe a model file."""
    from whvi.cli.judging import describe_model

    describe_model(model, as_json=as_json)


@app.command()
def doctor() -> None:
    """Tell which kernel runs, with what, and whether its results are right."""
    from whvi.doctor import main as examine

    raise typer.Exit(examine())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0: done. 1: the command ran and its answer is bad news (``whvi doctor``). 2: a wrong call, an
    unusable file or an unusable table, told in one line on stderr. 130, 143: stopped by Ctrl-C,
    by SIGTERM.
    """
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]  # the base of all of typer's
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        with _terminable():
            code = app(words, prog_name="whvi", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has gone: send what Python flushes at its end to nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except usage_error as error:
        return fail(error.format_message())  # type: ignore[attr-defined]  # every usage error's
    except (WhviError, OSError) as error:
        return fail(_describe(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        return fail("not enough memory for a table or model of this size")
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def fail(message: str) -> int:
    """Print the error in one line, and return the exit code."""
    print(printable(f"error: {' '.join(message.split())}"), file=sys.stderr)
    return WRONG_CALL


def printable(text: str) -> str:
    """Return the text with escapes for whatever would steer a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does: what is half-written is removed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, WhviError) and error.strerror:
        place = f"{os.fspath(error.filename)!r}: " if error.filename is not None else ""
        return f"{place}{error.strerror}"
    return str(error) or type(error).__name__
