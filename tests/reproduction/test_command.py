from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.command import check_names, grid_parser, run_to_report
from whvi.errors import ConfigError, DataError


def test_a_report_is_named_and_an_error_is_one_line(capsys) -> None:
    assert run_to_report(lambda: Path("results")) == 0
    assert capsys.readouterr().out == f"{Path('results') / 'README.md'}\n"

    def fail() -> Path:
        raise DataError("no such file")

    assert run_to_report(fail) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: no such file\n")


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    check_names("method", ["whvi"], ("whvi", "trees"))
    with pytest.raises(ConfigError, match="no method 'tree'; choose from whvi, trees"):
        check_names("method", ["tree"], ("whvi", "trees"))


def test_options_of_a_grid() -> None:
    parser = grid_parser("table1", "A table.", methods=["a"], data=["b"], quick="less")
    options = parser.parse_args(["--quick", "--methods", "a", "--seeds", "1", "2", "--jobs", "3"])
    assert (options.quick, options.methods, options.data) == (True, ["a"], None)
    assert (options.seeds, options.jobs, options.output) == ([1, 2], 3, None)
