"""Where outputs go: devices, compressed files, long names; and what is left when a command ends."""

from __future__ import annotations

import gzip
import os
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest

from tests.cli.small_tables import QUICK
from whvi.cli import main
from whvi.cli.app import printable
from whvi.cli.commands import TableOptions
from whvi.tabular import load_model


def read_fifo(path, found):
    with open(path, "rb") as stream:
        found.append(stream.read())


@pytest.mark.parametrize("verb", ["predict", "fit", "report"])
def test_a_fifo_is_written_into_and_stays_one(verb, files, tmp_path):
    fifo, found = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=read_fifo, args=(fifo, found), daemon=True)
    reader.start()
    words = {
        "predict": ["predict", files["house"], files["new"], "-q"],
        "fit": ["fit", files["train"], "-t", "price", *QUICK, "--likelihood", "gaussian"],
        "report": ["report", files["house"], files["test"], "-q"],
    }[verb]
    assert main([*words, "-o", str(fifo)]) == 0
    reader.join(10)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert found[0]
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]
    if verb == "fit":
        (tmp_path / "m").write_bytes(found[0])
        assert load_model(tmp_path / "m").target_name_ == "price"


def test_devices_stay_devices(files, capfd):
    before = os.stat("/dev/null")
    for output in ("/dev/null", "/dev/stdout"):
        assert main(["predict", files["house"], files["new"], "-q", "-o", output]) == 0
    assert os.stat("/dev/null").st_rdev == before.st_rdev
    assert len(capfd.readouterr().out.splitlines()) == 11


def test_a_device_in_a_folder_that_cannot_be_written_to(files, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/dev")
    assert main(["predict", files["house"], files["new"], "-q", "-o", "/dev/null"]) == 0


@pytest.mark.parametrize("name", ["out.csv.gz", "out.tsv.gz", "out.parquet", "out.xlsx"])
def test_the_name_says_what_is_written(name, files, tmp_path, capsys):
    output = tmp_path / name
    assert main(["predict", files["house"], files["new"], "-q", "-o", str(output)]) == 0
    assert main(["predict", files["house"], files["new"], "-q"]) == 0
    plain = tmp_path / "plain.csv"
    plain.write_text(capsys.readouterr().out)
    if name.endswith(".gz"):
        text = gzip.decompress(output.read_bytes()).decode()
        assert text.replace("\t", ",") == plain.read_text()
    else:
        read = pd.read_parquet if name.endswith("parquet") else pd.read_excel
        pd.testing.assert_frame_equal(read(output), pd.read_csv(plain), rtol=1e-15)


@pytest.mark.parametrize("name", ["o.xls", "o.zip", "o.csv.bz2", "o.parquet.gz", "o.json", "o.ods"])
def test_formats_that_cannot_be_written_are_refused(name, files, tmp_path, capsys):
    assert main(["predict", files["house"], files["new"], "-o", str(tmp_path / name)]) == 2
    assert ".parquet or .xlsx" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["new.csv.gz", "new.zip", "new.xlsx", "new.parquet"])
def test_packed_tables_predict_the_same(name, files, tmp_path, capsys):
    packed, table = tmp_path / name, pd.read_csv(files["new"])
    if name.endswith("xlsx"):
        table.to_excel(packed, index=False)
    elif name.endswith("parquet"):
        table.to_parquet(packed)
    else:
        table.to_csv(packed, index=False)
    assert main(["predict", files["house"], files["new"], "-q"]) == 0
    plain = capsys.readouterr().out
    assert main(["predict", files["house"], str(packed), "-q"]) == 0
    assert capsys.readouterr().out == plain


def test_identifiers_of_parquet_stay_whole_beside_holes(files, tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    numbers = {"size": [1.0, 2.0], "age": pyarrow.array([3, None], pyarrow.int64())}
    ids = pyarrow.array([10**17 + 7, None], pyarrow.int64())
    data = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({**numbers, "town": ["A", "B"], "id": ids}), data)
    assert main(["predict", files["house"], str(data), "--keep", "id", "--keep", "age", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(",")[:2] for line in lines] == [["100000000000000007", "3"], ["", ""]]
    columns = TableOptions().open(str(data)).frame(["age"])  # for the model as ever
    assert columns["age"].dtype == np.float64


def test_excel_gets_texts_for_what_it_cannot_hold(files, tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("openpyxl")
    when = pd.to_datetime(["2020-01-01T10:00Z", None])
    table = {"size": 1.0, "age": 2, "town": ["A", "B"], "when": when, "odd\x07": ["a\x1bb", "c"]}
    data, output = tmp_path / "t.parquet", tmp_path / "p.xlsx"
    pd.DataFrame(table).to_parquet(data)
    keep = ["--keep", "when", "--keep", "odd\x07", "-q"]
    assert main(["predict", files["house"], str(data), "-o", str(output), *keep]) == 0
    found = pd.read_excel(output)
    assert found["when"].fillna("").tolist() == ["2020-01-01T10:00:00+00:00", ""]
    assert found["odd\\x07"].tolist() == ["a\\x1bb", "c"]


def test_a_long_name_is_refused_before_training(files, tmp_path, capsys):
    call = ["fit", files["train"], "-t", "price", "--steps", "1000000", "-o"]
    assert main([*call, str(tmp_path / ("m" * 300))]) == 2
    assert "longer than 255 bytes" in capsys.readouterr().err


def test_columns_of_any_name(files, tmp_path):
    """``self`` was an argument of pandas, and a traceback."""
    names = ["self", "table", "name", "cls"]
    data, model, out = tmp_path / "t.csv", str(tmp_path / "m"), tmp_path / "r.html"
    rows = "".join(f"{k},{k % 5},{'ab'[k % 2]},{k % 7}\n" for k in range(40))
    data.write_text(",".join(names) + "\n" + rows)
    assert (
        main(["fit", str(data), "-t", "cls", "-o", model, "--likelihood", "gaussian", *QUICK]) == 0
    )
    assert main(["report", model, str(data), "-o", str(out), "-q"]) == 0
    keep = ["--keep", "self", "--keep", "name"]
    assert main(["predict", model, str(data), *keep, "-o", str(tmp_path / "o.csv")]) == 0
    assert (tmp_path / "o.csv").read_text().splitlines()[2].startswith("1,b,")


# How a command ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:113] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
    ],
)
def test_no_memory_is_one_line(error, files, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr("whvi.cli.commands.load_predictor", fail)
    assert main(["predict", files["house"], files["new"]]) == 2
    assert capsys.readouterr().err == "error: not enough memory for a table or model of this size\n"


def test_other_errors_are_not_hidden(files, monkeypatch):
    def fail(*_):
        raise RuntimeError("a mistake of our own")

    monkeypatch.setattr("whvi.cli.commands.load_predictor", fail)
    with pytest.raises(RuntimeError, match="our own"):
        main(["predict", files["house"], files["new"]])


SLOW_WRITE = """
import os, sys, time
import whvi.cli.commands
from whvi.cli import main
def slow(descriptor):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = slow
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_leaves_nothing_behind(files, tmp_path):
    command = ["predict", files["house"], files["new"], "-q", "-o", str(tmp_path / "out.csv")]
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITE, *command], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "writing\n"
        assert list(tmp_path.iterdir())  # the temporary file
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# What reaches a terminal ----------------------------------------------------------------------

EVIL = "\x1b[31mred\x1b[0m\x07\u202e"


def test_printable():
    assert printable("Größe 面積\n") == "Größe 面積\n"
    assert printable(EVIL) == r"\x1b[31mred\x1b[0m\x07\u202e"


def test_names_do_not_steer_the_terminal(files, tmp_path, capsys):
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    rows = "".join(f"{k},{EVIL if k % 2 else 'b'},{k % 7}\n" for k in range(40))
    data.write_text(f"{EVIL},town,price\n" + rows)
    fit = ["fit", str(data), "-t", "price", "-o", model, "--likelihood", "gaussian"]
    assert main([*fit, *QUICK]) == 0
    table = tmp_path / "new.csv"
    table.write_text(f"{EVIL},town,{EVIL}x\n1,{EVIL}z,3\n")
    calls = [["predict", model, str(table)], ["info", model], ["evaluate", model, str(table)]]
    for call in (
        *calls,
        ["predict", model, files["new"]],
        ["fit", f"{EVIL}.csv", "-t", "a", "-o", "b"],
    ):
        main(call)
        captured = capsys.readouterr()
        for text in (captured.err, captured.out):
            assert "\x1b" not in text
            assert "\x07" not in text


def test_a_report_says_nothing_of_fonts(tmp_path, capfd):
    pytest.importorskip("matplotlib")
    data, model = tmp_path / "t.csv", str(tmp_path / "m")
    data.write_text("面積,y\n" + "".join(f"{k},{k % 7}\n" for k in range(40)))
    assert main(["fit", str(data), "-t", "y", "-o", model, "--likelihood", "gaussian", *QUICK]) == 0
    assert main(["report", model, str(data), "-o", str(tmp_path / "r.html"), "-q"]) == 0
    assert capfd.readouterr().err == ""


def test_info_counts_the_parameters_of_one_network(files, tmp_path, capsys):
    model = str(tmp_path / "m")
    call = ["fit", files["train"], "-t", "price", "--drop", "kind", "--likelihood", "gaussian"]
    assert main([*call, "--members", "3", "--hidden", "8", "--steps", "5", "-q", "-o", model]) == 0
    assert main(["info", model]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "of one network" in x)
    fitted = load_model(model)
    modules = (fitted.model_, fitted.network_likelihood_)
    total = sum(p.numel() for module in modules for p in module.parameters())
    assert int(line.split()[-1].replace(",", "")) == total // 3
