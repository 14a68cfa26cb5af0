"""Hand-made bad files: each is a result or a DataError that names line and column, at once."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import io
import pickle
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whvi.errors import ConfigError, DataError, MissingDependencyError
from whvi.tabular.reading import listed, numeric_columns, open_table, read_table, require_column

pd = pytest.importorskip("pandas")


def read(data, **options):
    return read_table(io.BytesIO(data), **options)


def test_one_text_for_missing_cells_is_no_list_of_characters():
    for option in ("-9", ["-9"], [-9]):
        assert read(b"a\n9\n-9\n", na_values=option)["a"].isna().tolist() == [False, True]


def zipped(*contents):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for k, data in enumerate(contents):
            archive.writestr(f"{k}.csv", data)
    return stream.getvalue()


# Files that are read ------------------------------------------------------------

GOOD = {
    "plain": (b"a,b\n1,2\n3,4\n", {}),
    "no last newline": (b"a,b\n1,2\n3,4", {}),
    "byte-order mark": (b"\xef\xbb\xbfa,b\n1,2\n3,4\n", {}),
    "CRLF": (b"a,b\r\n1,2\r\n3,4\r\n", {}),
    "CR only": (b"a,b\r1,2\r3,4\r", {}),
    "mixed line ends": (b"a,b\n1,2\r\n3,4\r", {}),
    "blank lines": (b"\na,b\n\n1,2\n\n\n3,4\n\n", {}),
    "semicolons": (b"a;b\n1;2\n3;4\n", {}),
    "tabs": (b"a\tb\n1\t2\n3\t4\n", {}),
    "bars": (b"a|b\n1|2\n3|4\n", {}),
    "other separator": (b"a:b\n1:2\n3:4\n", {"separator": ":"}),
    "spaces around": (b" a , b \n 1 , 2 \n3, 4\n", {}),
    "quoted": (b'"a","b"\n"1","2"\n"3","4"\n', {}),
    "decimal comma": (b"a;b\n1,0;2,0\n3,0;4\n", {"decimal": ","}),
    "quoted decimal comma": (b'a|b\n"1,0"|2\n3|4\n', {"decimal": ","}),
    "exponents and signs": (b"a,b\n+1e0,2.\n30E-1,.4e1\n", {}),
    "UTF-16": ("a,b\n1,2\n3,4\n".encode("utf-16"), {"encoding": "utf-16"}),
    "no header": (b"1,2\n3,4\n", {"column_names": ["a", "b"]}),
    "trailing separators": (b"a,b\n1,2,\n3,4,\n", {}),
    "trailing separators in the header too": (b"a,b,\n1,2,\n3,4,\n", {}),
    "row labels of pandas": (b",a,b\n0,1,2\n1,3,4\n", {}),
    "row numbers of R": (b"a,b\n1,1,2\n2,3,4\n", {}),
    "row names of R": (b'"a","b"\n"x",1,2\n"y",3,4\n', {}),
    "gzip": (gzip.compress(b"a,b\n1,2\n3,4\n"), {}),
    "ZIP": (zipped(b"a,b\n1,2\n3,4\n"), {}),
    "na": (b"a,b\n1,2\n3,4\n", {"na_values": ("-9",)}),
    "thousands, a decimal comma": (b"a;b\n1;2,0\n3;4,\n", {"thousands": ".", "decimal": ","}),
}


@pytest.mark.parametrize("case", GOOD)
def test_good_files(case):
    data, options = GOOD[case]
    frame = read(data, **options)
    assert list(frame.columns) == ["a", "b"]
    np.testing.assert_array_equal(numeric_columns(frame, ["a", "b"]), [[1, 2], [3, 4]])
    assert (frame.dtypes == np.float64).all()


def test_paths_text_streams_and_byte_streams_agree(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,é\n", encoding="utf-8")
    frames = [read_table(path), read_table(str(path)), read_table(io.StringIO("a,b\n1,é\n"))]
    with path.open("rb") as stream:
        frames.append(read_table(stream))
    for frame in frames:
        assert frame.loc[2].tolist() == [1.0, "é"]
        assert frame.attrs["sha256"] == frames[0].attrs["sha256"]


def test_a_decoded_stream_ignores_the_encoding():
    assert read_table(io.StringIO("a\né\n"), encoding="latin-1")["a"].tolist() == ["é"]


def test_given_kinds_decide_what_cells_are():
    data = b"a,b,c,d\n01,1,true,5\n02,2,False,6\n,nan,1,7\n"
    kinds = {"a": "categorical", "b": "numeric", "c": "boolean"}
    frame = read(data, kinds=kinds)
    assert frame["a"].tolist()[:2] == ["01", "02"]
    assert frame["a"].isna().tolist() == [False, False, True]
    assert frame["b"].isna().tolist() == [False, False, True]
    assert frame["c"].tolist() == [1, 0, 1]
    assert frame["d"].tolist() == [5, 6, 7]  # as without kinds
    with pytest.raises(DataError, match=r"'a' holds 'x' \(first in line 3\), which is not a num"):
        read(b"a\n1\nx\n", kinds={"a": "numeric"})


def test_parquet_columns_follow_given_kinds():
    pytest.importorskip("pyarrow")
    stored = pd.DataFrame({"a": [1.0, None], "b": ["x ", None], "c": [1, 2]})
    frame = read(parquet(stored), kinds={"a": "categorical", "c": "numeric"})
    assert frame["a"].tolist()[0] == "1"
    assert frame["b"].tolist()[0] == "x"
    assert frame.isna().to_numpy().tolist() == [[False] * 3, [True, True, False]]


def parquet(frame):
    stream = io.BytesIO()
    frame.to_parquet(stream)
    return stream.getvalue()


def excel(frame):
    stream = io.BytesIO()
    frame.to_excel(stream, index=False)
    return stream.getvalue()


@pytest.mark.parametrize("pack", [parquet, excel])
def test_values_of_parquet_and_excel(pack):
    pytest.importorskip("pyarrow")
    pytest.importorskip("openpyxl")
    stored = pd.DataFrame(
        {
            "whole": [1, 2, 3],
            "code": ["01", "2", None],
            "truth": pd.array([True, None, False], dtype="boolean"),
            "hole": [1.5, None, 2.5],
            "day": pd.to_datetime(["2020-01-31", None, "2021-01-01"]),
            "date": [datetime.date(2020, 1, 31), None, datetime.date(2021, 1, 1)],
        }
    )
    frame = read(pack(stored))
    assert frame["whole"].tolist() == [1, 2, 3]
    assert frame["code"].tolist()[:2] == ["01", "2"]
    assert frame.isna().sum().tolist() == [0, 1, 1, 1, 1, 1]
    assert [each.kind for each in frame.dtypes][2:] == ["b", "f", "M", "M"]
    assert frame["truth"].tolist()[::2] == [True, False]
    kinds = {"whole": "categorical", "code": "numeric", "truth": "boolean", "day": "date"}
    again = read(pack(stored), kinds=kinds)
    assert again["whole"].tolist() == ["1", "2", "3"]
    assert again["code"].tolist()[:2] == [1, 2]


@pytest.mark.parametrize("pack", [parquet, excel])
def test_dates_written_as_texts_in_parquet_and_excel_are_dates(pack):
    pytest.importorskip("pyarrow")
    pytest.importorskip("openpyxl")
    stored = pd.DataFrame(
        {"day": ["2020-01-31", None, " 2021-01-01"], "other": ["2020-01-31", "soon", None]}
    )
    frame = read(pack(stored))
    assert frame["day"].tolist()[::2] == [pd.Timestamp(2020, 1, 31), pd.Timestamp(2021, 1, 1)]
    assert frame["day"].isna().tolist() == [False, True, False]
    assert frame["other"].tolist()[:2] == ["2020-01-31", "soon"]
    assert read(pack(stored), kinds={"day": "categorical"})["day"].iloc[0] == "2020-01-31"


@pytest.mark.parametrize("values", [[[1, 2], [3]], [b"x", b"y"], [{"a": 1}, {"a": 2}]])
def test_parquet_columns_that_are_no_cells(values):
    pytest.importorskip("pyarrow")
    stored = parquet(pd.DataFrame({"odd": values, "x": [1.0, 2.0]}))
    with pytest.raises(DataError, match="'odd', row 1: expected numbers or texts, got "):
        read(stored)
    assert open_table(io.BytesIO(stored)).frame(["x"])["x"].tolist() == [1, 2]


def test_an_archive_of_two_tables_is_refused():
    with pytest.raises(DataError, match="one table, and holds 2 files"):
        read(zipped(b"a\n1\n", b"a\n1\n"))


def test_thousands_are_never_read_as_decimals():
    data = b'a;b\n"1,234";x\n"12,345";y\n'
    with pytest.raises(DataError, match=r"decimal comma or a comma between thousands.*thousands="):
        read(data)
    assert read(data, thousands=",")["a"].tolist() == [1234, 12345]
    with pytest.raises(DataError, match=r"looks like a comma between thousands; pass thous"):
        read(b'a;b\n"1,234";x\n"1,234,567.5";y\n')
    with pytest.raises(DataError, match=r"'1.234.567,5' looks like a point between thous"):
        read(b"a;b\n1.234.567,5;x\n1.234;y\n", decimal=",", separator=";")
    with pytest.raises(DataError, match="'1,23' looks like a decimal comma"):
        read(b"a\n1,23\n", separator=";", thousands=",")


def test_dates_and_texts_of_missing_cells():
    frame = read(b"day,x\n2020-01-31,-9\n,4\n2021-01-01 10:30,5\n", na_values=("-9",))
    assert frame["day"].dtype.kind == "M"
    assert frame["day"].isna().tolist() == [False, True, False]
    assert frame["x"].isna().tolist() == [True, False, False]
    assert read(b"day\n2020-01-31\nsoon\n")["day"].dtype.kind == "O"
    with pytest.raises(DataError, match="dates like 2020-12-31"):
        read(b"day\nsoon\n", kinds={"day": "date"})
    with pytest.raises(DataError, match="dates like 2020-12-31"):
        read(b"day\n2020-02-31\n")


def test_the_original_cells_can_be_had():
    table = open_table(io.BytesIO(b"id,x\n00001,1\n100000000000000000, 2 \n1e5,NA\n"))
    assert table.original(["id", "x"])["id"].tolist() == ["00001", "100000000000000000", "1e5"]
    assert table.frame()["id"].tolist() == [1, 1e17, 1e5]


def test_floats_are_read_to_the_last_bit():
    values = np.random.default_rng(0).normal(size=500) * 10.0 ** np.arange(-250, 250)
    frame = read(("a\n" + "\n".join(map(repr, values.tolist()))).encode())
    np.testing.assert_array_equal(frame["a"], values)


def test_the_index_is_the_line_even_after_quoted_line_breaks():
    frame = read(b'a,b\n1,"two\nlines"\n\n2,x\n')
    assert frame.index.tolist() == [3, 5]
    assert frame.index.name == "line"


def test_a_date_that_does_not_exist_is_named_with_its_line():
    with pytest.raises(DataError, match=r"'d' .*, got '2020-02-30' \(first in line 3\)"):
        read_table(io.StringIO("d,x\n2020-02-28,1\n2020-02-30,1\n"))


def test_missing_cells_are_missing_and_never_numbers():
    frame = read(b"a,b\n1,x\n,y\nNA,z\nnan,u\n?,v\n6,w\n")
    assert frame["a"].isna().tolist() == [False, True, True, True, True, False]
    with pytest.raises(DataError, match=r"'a' holds 4 missing values \(NaN; first in line 3\)"):
        numeric_columns(frame, ["a"])


@pytest.mark.parametrize("cell", ["=1+1", "=cmd|'/c calc'!A1", "@SUM(A1)", "+A1", "-A1", "1_000"])
def test_cells_that_look_like_formulas_are_texts(cell):
    frame = read(f"a,b\n1,2\n2,{cell}\n".encode())
    assert frame["b"].tolist() == ["2", cell]
    with pytest.raises(DataError, match=r"column 'b' holds .*line 3\), which is not a number"):
        numeric_columns(frame, ["b"])


# Files that are refused ------------------------------------------------------------

BAD = {
    "empty": (b"", "line 1, column 1: the table is empty"),
    "only a byte-order mark": (b"\xef\xbb\xbf", "the table is empty"),
    "only line breaks": (b"\n\r\n\n", "the table is empty"),
    "header only": (b"a,b\n", "line 2: .*no rows"),
    "header without line end": (b"a,b", "line 2: .*no rows"),
    "short row": (b"a,b,c\n1,2,3\n4,5\n", "line 3: 2 cells, expected 3; column 'c'"),
    "long row": (b"a,b\n1,2\n1,2,3\n", r"line 3: 3 cells, expected 2; column 3 \('3'\)"),
    "ragged in CRLF": (b"a,b\r\n1,2\r\n1\r\n", "line 3: 1 cells"),
    "ragged in CR": (b"a,b\r1,2\r1\r", "line 3: 1 cells"),
    "ragged after a quoted line break": (b'a,b\n"x\ny",1\n2\n', "line 4: 1 cells"),
    "blanks on a line": (b"a,b\n1,2\n   \n", "line 3: 1 cells"),
    "a trailing separator in one row": (b"a,b\n1,2,\n3,4\n", "line 2: 3 cells"),
    "footer": (b"a,b\n1,2\n# end\n", "line 3: 1 cells"),
    "duplicate names": (b"a,b,a\n1,2,3\n", r"line 1: the name 'a' stands at columns \[1, 3\]"),
    "duplicates after stripping": (b"a, a\n1,2\n", r"line 1: the name 'a'"),
    "name missing": (b"a,,c\n1,2,3\n", "line 1, column 2: the column has no name"),
    "no header": (b"1.5,2\n3,4\n", "line 1, column 1: expected column names"),
    "no header, decimal comma": (b"1,5;2\n3;4\n", "line 1, column 1: expected column names"),
    "NUL in a cell": (b"a,b\n1,2\n3,4\x00\n", "line 3, column 2: .*NUL"),
    "NUL in the header": (b"a\x00,b\n1,2\n", "line 1, column 1: .*NUL"),
    "NULs only": (b"\x00" * 100, "line 1, column 1: .*NUL"),
    "UTF-16 without a mark": ("a,b\n1,2\n".encode("utf-16-le"), "line 1, column 1: .*NUL"),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), "line 1, column 1: .*encoding='utf-16'"),
    "Latin-1": ("a,name\n1,x\n2,caf\xe9\n".encode("latin-1"), "line 3, column 2: byte 0xE9"),
    "Latin-1 header": ("größe,b\n1,2\n".encode("latin-1"), "line 1, column 1: byte 0xF6"),
    "cut UTF-8": ("a,b\n1,é".encode()[:-1], "line 2, column 2: byte 0xC3"),
    "overlong UTF-8": (b"a,b\n\xc0\xaf,2\n", "line 2, column 1: byte 0xC0"),
    "surrogate in UTF-8": (b"a,b\n1,\xed\xa0\x80\n", "line 2, column 2: byte 0xED"),
    "decimal comma": (b"a;b\n1;2\n3;4,5\n", "line 3, column 'b': '4,5' looks like a decimal"),
    "decimal comma first": (b"a;b\n1,5;2\n", "line 2, column 'a': '1,5'"),
    "decimal comma quoted": (b'a,b\n1,"2,5"\n', "line 2, column 'b': '2,5'"),
    "decimal comma as separator": (b"a,b\n1,5,2,5\n", "line 2: 4 cells, .*decimal comma"),
    "unpaired quote": (b'a,b\n1,2\n"3,4\n5,6\n', "line 3, .*quotation mark"),
    "unpaired quote in the header": (b'"a,b\n1,2\n', "line 1, .*quotation mark"),
    "text after a quote": (b'a,b\n"1"x,2\n', "line 2, .*quotation mark"),
    "a huge cell": (b"a,b\n1," + b"9" * 200_000 + b"\n", "line 2, .*field limit"),
    "a spreadsheet": (b"PK\x03\x04" + b"\x00" * 50, "line 1, column 1: .*export it as CSV"),
    "an old spreadsheet": (b"\xd0\xcf\x11\xe0" + b"\x00" * 50, "save it as .xlsx or CSV"),
    "gzip": (b"\x1f\x8b\x08" + b"\x00" * 50, "damaged, export it as CSV"),
    "a pickle": (pickle.dumps({"a": [1]}), "line 1, column 1: .*binary"),
    "an image": (b"\x89PNG\r\n\x1a\n" + b"\x00" * 50, "line 1, column 1: byte 0x89"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_with_their_place(case, tmp_path):
    data, message = BAD[case]
    path = tmp_path / "bad.csv"
    path.write_bytes(data)
    start = time.perf_counter()
    with pytest.raises(DataError, match=message):
        read_table(path)
    assert time.perf_counter() - start < 1


def test_latin_1_is_read_when_asked_for():
    frame = read("größe\n1\n".encode("latin-1"), encoding="latin-1")
    assert list(frame.columns) == ["größe"]


@pytest.mark.parametrize("name", ["absent.csv", ".", "nul\0name", "absent/table.csv"])
def test_unreadable_paths(name, tmp_path):
    with pytest.raises(DataError, match="cannot read the table"):
        read_table(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    "options",
    [
        {"decimal": ";"},
        {"separator": ""},
        {"separator": ", "},
        {"separator": "\n"},
        {"separator": ",", "decimal": ","},
        {"encoding": "klingon"},
    ],
)
def test_impossible_options(options):
    with pytest.raises(ConfigError):
        read(b"a,b\n1,2\n", **options)


def test_given_column_names_are_checked_too():
    with pytest.raises(DataError, match="line 1: 2 cells, expected 3"):
        read(b"1,2\n", column_names=["a", "b", "c"])
    with pytest.raises(DataError, match="column_names: the name 'a'"):
        read(b"1,2\n", column_names=["a", "a"])


def test_wide_and_long_hostile_tables_are_quick():
    start = time.perf_counter()
    with pytest.raises(DataError, match="stands at columns"):
        read(b"a," * 50_000 + b"a\n1\n")
    with pytest.raises(DataError, match="quotation mark"):
        read(b'a\n"' + b"x\n" * 20_000)
    assert time.perf_counter() - start < 2  # two files


# Numbers out of a frame ------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, None, 3.0], r"holds 1 missing value \(NaN; first in row 1\)"),
        ([1.0, np.inf, 3.0], r"holds 1 infinite value .*not finite; first in row 1\)"),
        ([1, "x", 3], r"holds 'x' \(first in row 1\), which is not a number"),
        (["1", "2", "3"], r"holds '1' \(first in row 0\), which is not a number"),
        (pd.to_datetime(["2020-01-01"] * 3), "holds dates"),
        (pd.array([1, None, 3], dtype="Int64"), "1 missing value "),
        (pd.Categorical(["u", "v", "u"]), "'u'"),
        ([1j, 2j, 3j], "Complex"),
    ],
)
def test_columns_that_are_not_numbers(values, message):
    with pytest.raises(DataError, match=message):
        numeric_columns(pd.DataFrame({"q": values}), ["q"])


@pytest.mark.parametrize(
    "values",
    [
        [1, 0, 1],
        [True, False, True],
        np.array([1, 0, 1], dtype=np.float32),
        pd.array([1, 0, 1], dtype="Int64"),
        pd.array([True, False, True], dtype="boolean"),
    ],
)
def test_columns_that_are_numbers(values):
    result = numeric_columns(pd.DataFrame({"q": values, "r": 2.0}), ["r", "q"])
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, [[2, 1], [2, 0], [2, 1]])


def test_absent_empty_and_repeated_columns():
    frame = pd.DataFrame({"length": [1.0]})
    with pytest.raises(DataError, match="no column 'lenght'; did you mean 'length'"):
        numeric_columns(frame, ["lenght"])
    with pytest.raises(DataError, match=r"no column 'z'; it has 'length'"):
        numeric_columns(frame, ["z"])
    with pytest.raises(DataError, match="no rows"):
        numeric_columns(frame[:0], ["length"])
    with pytest.raises(DataError, match="must differ"):
        numeric_columns(pd.DataFrame([[1, 2]], columns=["a", "a"]), ["a"])
    assert numeric_columns(frame, []).shape == (1, 0)


# Optional packages ------------------------------------------------------------


def test_without_pandas_the_message_says_what_to_install():
    code = "import sys; sys.modules['pandas'] = None; import whvi.tabular"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingDependencyError" in result.stderr
    assert "pip install 'whvi[sklearn]'" in result.stderr


def test_parquet_without_pyarrow(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pyarrow"):
        read(b"PAR1" + b"\0" * 20)


def test_parquet_round_trip_and_damage():
    pytest.importorskip("pyarrow")
    stream = io.BytesIO()
    pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}).to_parquet(stream)
    data = stream.getvalue()
    frame = read(data)
    np.testing.assert_array_equal(numeric_columns(frame, ["a"]), [[1], [2]])
    assert frame.index.tolist() == [1, 2]
    with pytest.raises(DataError, match="damaged"):
        read(data[:-20])


# Mutations ------------------------------------------------------------

SEEDS = [data for data, _ in GOOD.values()] + [data for data, _ in BAD.values() if len(data) < 999]
TOKENS = [b",", b";", b"\n", b"\r", b'"', b"\x00", b"\xff", b"\xef\xbb\xbf", b"1,5", b"=A1", b"NaN"]
edits = st.lists(
    st.tuples(
        st.sampled_from(["insert", "delete", "replace", "truncate", "double"]),
        st.floats(0, 1),
        st.one_of(st.sampled_from(TOKENS), st.binary(max_size=3)),
    ),
    min_size=1,
    max_size=6,
)


def mutate(data, changes):
    for kind, place, token in changes:
        at = int(place * len(data))
        if kind == "truncate":
            data = data[:at]
        elif kind == "double":
            data = data[:at] + data[at:] * 2
        elif kind == "delete":
            data = data[:at] + data[at + max(len(token), 1) :]
        else:
            data = data[:at] + token + data[at + (kind == "replace") * len(token) :]
    return data


def check_mutated(data, changes):
    start = time.perf_counter()
    with contextlib.suppress(DataError):  # any other exception fails the test
        frame = read(mutate(data, changes))
        numeric_columns(frame, list(frame.columns))
    assert time.perf_counter() - start < 1


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SEEDS), edits)
def test_mutated_files(data, changes):
    check_mutated(data, changes)


@pytest.mark.nightly
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SEEDS), edits)
def test_many_mutated_files(data, changes):
    check_mutated(data, changes)


def test_a_long_name_does_not_flood_a_message():
    with pytest.raises(DataError, match="no column 'y'; it has 'xxx") as caught:
        require_column(read(b"x" * 5000 + b",b\n1,2\n"), "y")
    assert len(str(caught.value)) < 200
    assert "'b'" in str(caught.value)


def test_long_lists_of_names_are_cut():
    assert listed(["a", "b", "c"], most=2) == "'a', 'b' and 1 more"
    assert listed(["a" * 100]) == f"'{'a' * 79}"
