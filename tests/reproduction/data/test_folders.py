from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.data.folders import KINDS, data_folder, data_root
from whvi.errors import ConfigError, DataError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WHVI_DATA", raising=False)
    for kind in KINDS:
        (tmp_path / "data" / kind).mkdir(parents=True)
    return tmp_path / "data"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_below_the_named_folder(
    kind: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_folder(kind, root) == root / kind
    monkeypatch.setenv("WHVI_DATA", str(root))
    assert data_folder(kind) == root / kind
    monkeypatch.setenv("WHVI_DATA", "/nowhere")
    assert data_folder(kind, root) == root / kind  # the argument wins


def test_without_a_name_there_is_no_folder(root: Path) -> None:
    assert data_root() is None
    with pytest.raises(DataError, match=r"WHVI_DATA must name the folder that holds images"):
        data_folder("images")


def test_one_of_the_kinds_itself_is_refused_with_the_folder_to_name(root: Path) -> None:
    with pytest.raises(DataError, match=rf"that holds UCI_Datasets: {root}$"):
        data_folder("UCI_Datasets", root / "UCI_Datasets")


def test_a_folder_without_the_kind_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no folder tables"):
        data_folder("tables", tmp_path)
    with pytest.raises(ConfigError, match="no kind of data 'sound'; choose from UCI_Datasets"):
        data_folder("sound", root)
