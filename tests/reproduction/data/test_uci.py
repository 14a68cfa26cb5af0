from __future__ import annotations

import shutil

import numpy as np
import pytest

from reproduction.data import CATALOGUE, count_duplicates, load_uci, stack_replicas
from whvi.errors import ConfigError, DataError


def serve_folder(root):
    def respond(handler):
        data = (root / handler.path.lstrip("/")).read_bytes()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return respond


class Conformance:
    """What every loaded set must be; joined by the real sets and the made-up one."""

    @staticmethod
    def check(data):
        entry = CATALOGUE[data.name]
        assert data.x.shape == (entry.num_rows, entry.num_columns)
        assert data.y.shape == (entry.num_rows,)
        assert data.x.dtype == data.y.dtype == np.float64
        assert np.isfinite(data.x).all()
        assert np.isfinite(data.y).all()
        assert len(data.splits) == entry.num_splits
        every_row = np.arange(entry.num_rows)
        for train, test in data.splits:
            assert len(test) == pytest.approx(0.1 * entry.num_rows, abs=1)
            np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), every_row)
        assert len({tuple(np.sort(test)) for _, test in data.splits}) == entry.num_splits
        replicas = stack_replicas(data.x, data.y, data.splits)  # equal sizes, or it refuses
        assert len(replicas.x_train) == entry.num_splits
        with pytest.raises(AttributeError):
            data.x = data.x


# Means of the target, and test rows of all splits whose inputs stand in the training part too.
FACTS = {
    "boston": (22.532806324110677, 0),
    "concrete": (35.81796116504854, 101),
    "energy": (22.307200520833334, 0),
    "kin8nm": (0.714283492357422, 0),
    "naval": (0.975, 0),
    "powerplant": (454.3650094063545, 149),
    "protein": (7.748528427727969, 1516),
    "yacht": (10.495357142857142, 0),
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_real_sets(name, uci_root):
    data = load_uci(name, uci_root)
    Conformance.check(data)
    assert data.sha256 == CATALOGUE[name].sha256()
    mean, num_duplicates = FACTS[name]
    assert data.y.mean() == pytest.approx(mean, rel=1e-12)
    constant = np.flatnonzero(np.ptp(data.x, axis=0) == 0)
    assert constant.tolist() == ([8, 11] if name == "naval" else [])
    counts = [count_duplicates(data.x[train], data.x[test]) for train, test in data.splits]
    assert sum(counts) == num_duplicates


def test_made_up_set_from_root(fake_root):
    Conformance.check(load_uci("yacht", fake_root))


def test_the_folder_of_the_sets_itself_is_refused(fake_root):
    sets = fake_root / "UCI_Datasets"
    with pytest.raises(
        DataError, match=f"must name the folder that holds UCI_Datasets: {fake_root}"
    ):
        load_uci("yacht", sets)


def test_root_from_the_environment(fake_root, monkeypatch):
    monkeypatch.setenv("WHVI_DATA", str(fake_root))
    Conformance.check(load_uci("yacht"))


def test_the_argument_wins_over_the_environment(fake_root, monkeypatch):
    monkeypatch.setenv("WHVI_DATA", "/nowhere")
    Conformance.check(load_uci("yacht", fake_root))


def test_download_into_a_cache_and_then_work_offline(fake_root, serve, tmp_path):
    cache = tmp_path / "cache"
    first = load_uci("yacht", cache=cache, base_url=serve(serve_folder(fake_root / "UCI_Datasets")))
    Conformance.check(first)
    second = load_uci("yacht", cache=cache, base_url="http://127.0.0.1:9/")
    np.testing.assert_array_equal(first.x, second.x)
    third = load_uci("yacht", cache)
    np.testing.assert_array_equal(first.y, third.y)


def test_columns_follow_the_index_files(fake_root):
    table = np.loadtxt(fake_root / "UCI_Datasets/yacht/data/data.txt")
    data = load_uci("yacht", fake_root)
    np.testing.assert_array_equal(data.x, table[:, :6])
    np.testing.assert_array_equal(data.y, table[:, 6])


@pytest.mark.parametrize("file", ["data.txt", "index_train_7.txt", "index_target.txt"])
def test_one_changed_byte_is_noticed(fake_root, file):
    path = fake_root / "UCI_Datasets/yacht/data" / file
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"{file} is damaged"):
        load_uci("yacht", fake_root)


def test_a_truncated_file_is_noticed(fake_root):
    path = fake_root / "UCI_Datasets/yacht/data/data.txt"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data\.txt is damaged"):
        load_uci("yacht", fake_root)


def test_swapped_split_files_are_noticed(fake_root):
    folder = fake_root / "UCI_Datasets/yacht/data"
    shutil.copy(folder / "index_train_1.txt", folder / "index_train_0.txt")
    with pytest.raises(DataError, match=r"index_train_0\.txt"):
        load_uci("yacht", fake_root)


def test_a_missing_file_is_named(fake_root):
    (fake_root / "UCI_Datasets/yacht/data/index_test_3.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read .*index_test_3\.txt"):
        load_uci("yacht", fake_root)


def test_a_wrong_root_says_what_it_should_be(tmp_path):
    with pytest.raises(DataError, match=r"has no folder UCI_Datasets; --data-dir or WHVI_DATA"):
        load_uci("yacht", tmp_path)


@pytest.mark.parametrize("name", ["", "Boston", "../yacht", "yacht/", "/etc/passwd"])
def test_names_outside_the_catalogue_touch_no_file(name, tmp_path):
    with pytest.raises(ConfigError, match="choose one of"):
        load_uci(name, tmp_path)
