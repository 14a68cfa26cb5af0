r"""``whvi compare``: models side by side, on the same rows.

Two models differ on row n by :math:`d_n = \ell_n - \ell'_n`, in mean by :math:`\bar d` with the
standard error :math:`\operatorname{std}(d_n) / \sqrt N`: rows that are hard for both cancel. A
difference is more than chance explains if a t test of all pairs, at 5 % in total, says so.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from whvi.cli.app import printable
from whvi.cli.commands import TableOptions, check_level
from whvi.cli.judging import judge, judged_rows, plain, shown_scores
from whvi.errors import ConfigError, DataError
from whvi.tabular.modelfile import load_predictor

if TYPE_CHECKING:
    from whvi.report.scores import RowScores
    from whvi.tabular.predictor import Predictor

_ERROR_RATE = 0.05  # of the verdicts on all pairs together
_HIGHER_IS_BETTER = ("accuracy",)
_BEST_BY = ("mnll", "crps", "log_loss")  # the first that there is


def compare_models(
    model_files: list[str], source: str, options: TableOptions, *, level: float, as_json: bool
) -> None:
    """Print scores side by side, and the differences to the best model; or both as JSON."""
    check_level(level)
    if len(model_files) < 2:
        raise ConfigError("there must be two models or more, and a table at the end")
    if twice := [name for name in model_files if model_files.count(name) > 1]:
        raise ConfigError(f"the model {twice[0]!r} is named twice")
    predictors = {name: load_predictor(name) for name in model_files}
    _check_same_target(predictors)
    table, found, rows = options.open(source), {}, {}
    silent = replace(options, quiet=True)  # every model would say which columns it ignores
    for name, predictor in predictors.items():
        try:
            x, y = judged_rows(predictor, table, silent)
            found[name], rows[name] = judge(predictor, x, y, level)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    if len({each.architecture.likelihood == "poisson" for each in predictors.values()}) > 1:
        options.note(
            "some models predict counts and others any number: their MNLL cannot be compared"
        )
        rows = {k: {n: v for n, v in each.items() if n != "mnll"} for k, each in rows.items()}
    by = next(name for name in _BEST_BY if name in rows[model_files[0]])
    best = min(model_files, key=lambda name: rows[name][by].mean().item())
    differences = _differences(rows, best)
    if as_json:
        result = {"models": found, "best": best, "best_by": by, "differences": differences}
        print(json.dumps(plain(result), indent=1))
    else:
        short = _short_names(model_files)
        lines = _side_by_side({short[name]: scores for name, scores in found.items()})
        print(printable("\n".join([*lines, *_verdicts(differences, by, short)])))


def _check_same_target(predictors: dict[str, Predictor]) -> None:
    (first, one), *others = predictors.items()
    for name, other in others:
        for what, a, b in (
            ("the target", one.schema.target_names, other.schema.target_names),
            ("a target that is", one.schema.target_kind, other.schema.target_kind),
            ("a", _task(one), _task(other)),
        ):
            if a != b:
                a, b = (", ".join(map(repr, v)) if isinstance(v, tuple) else v for v in (a, b))
                raise ConfigError(
                    f"{first} has {what} {a}, {name} has {what} {b}: only models of the same "
                    "target can be compared"
                )


def _task(predictor: Predictor) -> str:
    return "regression" if predictor.classes is None else "classification"


def _differences(rows: dict[str, RowScores], best: str) -> list[dict[str, Any]]:
    """Return, for every other model, its scores minus those of the best one."""
    from scipy import stats

    from whvi.report.scores import mean_and_error

    found: list[dict[str, Any]] = []
    pairs = len(rows) * (len(rows) - 1) / 2
    for name in (each for each in rows if each != best):
        scores = {}
        for score, values in rows[name].items():
            mean, error = mean_and_error(values - rows[best][score])
            most = stats.t.isf(_ERROR_RATE / (2 * pairs), max(len(values) - 1, 1))
            scores[score] = {
                "difference": mean,
                "standard_error": error,
                "more_than_chance": error is not None and abs(mean) > float(most) * error,
            }
        found.append({"model": name, "minus": best, "scores": scores})
    return found


def _short_names(model_files: list[str]) -> dict[str, str]:
    """Return the names without their folders, if they still differ."""
    short = {name: os.path.basename(name) for name in model_files}
    return short if len({*short.values()}) == len(short) else {name: name for name in model_files}


def _side_by_side(found: dict[str, dict[str, Any]]) -> list[str]:
    columns = {name: shown_scores(scores) for name, scores in found.items()}
    widths = {name: max(12, len(name) + 2) for name in columns}
    lines = [" " * 36 + "".join(f"{name:>{width}}" for name, width in widths.items())]
    for score in next(iter(columns.values())):
        cells = (f"{columns[name].get(score, ''):>{width}}" for name, width in widths.items())
        lines.append(f"{score:<36}{''.join(cells)}")
    return lines


def _verdicts(differences: list[dict[str, Any]], by: str, short: dict[str, str]) -> list[str]:
    from whvi.report.scores import SCORE_NAMES

    lines = []
    for each in differences:
        name, best = short[each["model"]], short[each["minus"]]
        lines += ["", f"{name} minus {best}: mean difference ± standard error"]
        for key, score in each["scores"].items():
            difference, error = score["difference"], score["standard_error"]
            higher = (difference > 0) == (key in _HIGHER_IS_BETTER)
            verdict = "better" if higher else "worse"
            if not score["more_than_chance"]:
                verdict = "may be chance"
            shown = "" if error is None else f" ± {error:<8.2g}"
            lines.append(f"{SCORE_NAMES[key]:<36}{difference:>12.4g}{shown:<11}  {verdict}")
    lines.append("")
    for each in differences:
        name, best, shown = short[each["model"]], short[each["minus"]], SCORE_NAMES[by]
        if each["scores"][by]["more_than_chance"]:
            lines.append(f"{best} is better than {name} by {shown}.")
        else:
            lines.append(f"The difference of {best} and {name} by {shown} may be chance.")
    return lines
