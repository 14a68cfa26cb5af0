"""The atomic writer: a file is all new or all old, whatever happens."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading

import pytest

from whvi._files import atomic_write


def write(path, content=b"new", **options):
    with atomic_write(path, **options) as stream:
        stream.write(content)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_file_holds_what_was_written(tmp_path):
    write(tmp_path / "a")
    write(str(tmp_path / "b"), "ä\n", mode="w", encoding="utf-8", newline="\r\n")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "b").read_bytes() == "ä\r\n".encode()
    assert names(tmp_path) == ["a", "b"]


def test_a_new_file_has_the_permissions_of_an_opened_one(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "b").open("w").close()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_an_existing_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    for mode in (0o600, 0o640, 0o755):
        path.chmod(mode)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_nothing_is_seen_of_a_write_before_its_end(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with atomic_write(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", ["old", None])
def test_an_exception_leaves_everything_as_it_was(tmp_path, error, old):
    path = tmp_path / "a"
    if old is not None:
        path.write_text(old)
    before = names(tmp_path)

    def interrupted():
        with atomic_write(path, "w") as stream:
            stream.write("new")
            raise error

    with pytest.raises(error):
        interrupted()
    assert names(tmp_path) == before
    assert old is None or path.read_text() == old


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch, call):
    path = tmp_path / "a"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_file_and_folder_are_flushed_around_the_replacement(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def kind(descriptor):
        return "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"

    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(kind(fd)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    write(tmp_path / "a")
    assert calls == ["file", "replace", "folder"]


def test_a_link_is_followed_unless_it_is_to_be_replaced(tmp_path):
    victim, link, dangling = tmp_path / "victim", tmp_path / "link", tmp_path / "dangling"
    victim.write_text("old")
    link.symlink_to("victim")
    write(link)
    assert link.is_symlink()
    assert victim.read_text() == "new"
    write(link, b"newer", follow_symlinks=False)
    assert not link.is_symlink()
    assert victim.read_text() == "new"
    dangling.symlink_to("absent")
    write(dangling)
    assert (tmp_path / "absent").read_text() == "new"


def test_folders_and_missing_folders_are_refused(tmp_path):
    for path, error in ((tmp_path, IsADirectoryError), (tmp_path / "a" / "b", FileNotFoundError)):
        with pytest.raises(error):
            write(path)
    assert names(tmp_path) == []


def test_a_fifo_stays_a_fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    received = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    write(path)
    reader.join(timeout=30)
    assert received == [b"new"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_devices_stay_devices():
    write(os.devnull, "text", mode="w")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


ECHO = """
from whvi._files import atomic_write
for links in (True, False):
    with atomic_write("/dev/stdout", "w", follow_symlinks=links) as stream:
        stream.write("new")
"""


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="a system without /dev/stdout")
def test_standard_output_is_written_to_wherever_it_goes(tmp_path):
    command = [sys.executable, "-c", ECHO]
    piped = subprocess.run(command, check=True, capture_output=True)
    assert piped.stdout == b"newnew"
    log = tmp_path / "log"
    log.write_text("old")
    with log.open("ab") as stream:
        subprocess.run(command, check=True, stdout=stream)
    assert log.read_text() == "oldnewnew"
    assert names(tmp_path) == ["log"]
