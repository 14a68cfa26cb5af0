from __future__ import annotations

import re
from pathlib import Path

import pytest

import reproduction
from reproduction.data import CATALOGUE, load_uci
from reproduction.data.uci import BASE_URL, COMMIT
from whvi.errors import ConfigError

PAGE = (Path(reproduction.__file__).parent / "data.md").read_text()
COLUMNS = PAGE[PAGE.index("## Columns, sources, licences") : PAGE.index("## Splits")]
NAMES = ["boston", "concrete", "energy", "kin8nm", "naval", "powerplant", "protein", "yacht"]


def test_the_eight_sets_of_the_paper():
    assert list(CATALOGUE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_lists_every_file_with_its_checksum(name):
    entry = CATALOGUE[name]
    files = {file.path: file for file in entry.files()}
    expected = {"data.txt", "index_features.txt", "index_target.txt", "n_splits.txt"}
    for k in range(entry.num_splits):
        expected |= {f"index_train_{k}.txt", f"index_test_{k}.txt"}
    assert set(files) == {entry.path(each) for each in expected}
    for file in files.values():
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.num_bytes > 0
        assert ".." not in file.path
        assert not file.path.startswith("/")


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_complete_and_frozen(name):
    entry = CATALOGUE[name]
    (line,) = [line for line in COLUMNS.splitlines() if line.startswith(f"| {name} |")]
    _, inputs, target, source, licence = (cell.strip() for cell in line.strip("|").split("|"))
    assert len(set(inputs.split("; "))) == entry.num_columns
    assert target
    assert source
    assert licence
    with pytest.raises(AttributeError):
        entry.name = "other"


def test_checksums_of_the_sets_differ():
    assert len({entry.sha256() for entry in CATALOGUE.values()}) == 8


def test_the_address_pins_the_commit():
    assert COMMIT in BASE_URL
    assert BASE_URL.startswith("https://")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match="'bosten'; choose one of boston, concrete"):
        load_uci("bosten")
