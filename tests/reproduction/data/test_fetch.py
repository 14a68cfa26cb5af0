"""Downloads against a local server: what is wrong is refused and leaves the cache as it was."""

from __future__ import annotations

import contextlib
import hashlib
import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pooch
import pytest

from reproduction.data import DownloadError
from reproduction.data.fetch import FileRecord, fetch_files
from whvi.errors import DataError

CONTENT = b"0.5 1.5\n" * 5000
GOOD = FileRecord("yacht/data/data.txt", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def send(handler: BaseHTTPRequestHandler, body: bytes, announced: int | None) -> None:
    handler.send_response(200)
    if announced is not None:
        handler.send_header("Content-Length", str(announced))
    handler.end_headers()
    handler.wfile.write(body)


def respond_well(handler: BaseHTTPRequestHandler) -> None:
    assert handler.path == "/" + GOOD.path
    send(handler, CONTENT, len(CONTENT))


def respond_truncated(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT[:1000], len(CONTENT))


def respond_truncated_silently(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT[:1000], None)


def respond_empty(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"", 0)


def respond_altered(handler: BaseHTTPRequestHandler) -> None:
    send(handler, b"9" + CONTENT[1:], len(CONTENT))


def respond_larger(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT * 2, 2 * len(CONTENT))


def respond_larger_than_announced(handler: BaseHTTPRequestHandler) -> None:
    send(handler, CONTENT + b"more", len(CONTENT) - 8)


def respond_missing(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(404)


def respond_error(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(500)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


REFUSED = [
    respond_truncated,
    respond_truncated_silently,
    respond_empty,
    respond_altered,
    respond_larger,
    respond_larger_than_announced,
    respond_missing,
    respond_error,
]


def test_a_good_file_arrives_and_is_not_fetched_twice(serve, tmp_path):
    calls = []

    def respond(handler):
        calls.append(handler.path)
        respond_well(handler)

    url = serve(respond)
    for _ in range(2):
        fetch_files([GOOD], tmp_path, base_url=url)
        assert (tmp_path / GOOD.path).read_bytes() == CONTENT
    assert calls == ["/" + GOOD.path]


def test_a_damaged_file_in_the_cache_is_replaced(serve, tmp_path):
    path = tmp_path / GOOD.path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    fetch_files([GOOD], tmp_path, base_url=serve(respond_well))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("respond", REFUSED)
@pytest.mark.parametrize("before", [None, b"damaged before"])
def test_what_is_wrong_is_refused_and_the_cache_unchanged(serve, tmp_path, respond, before):
    (tmp_path / "other.txt").write_bytes(b"other")
    if before is not None:
        (tmp_path / GOOD.path).parent.mkdir(parents=True)
        (tmp_path / GOOD.path).write_bytes(before)
    old = snapshot(tmp_path)
    with pytest.raises(DownloadError, match=r"yacht/data/data\.txt"):
        fetch_files([GOOD], tmp_path, base_url=serve(respond))
    assert snapshot(tmp_path) == old


def test_an_endless_download_is_cut_off(serve, tmp_path):
    num_sent = 0

    def respond(handler):
        nonlocal num_sent
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client hangs up, as it should
            for _ in range(5000):  # 200 MB
                handler.wfile.write(CONTENT)
                num_sent += 1

    with pytest.raises(DownloadError, match="larger than its 40000 bytes"):
        fetch_files([GOOD], tmp_path, base_url=serve(respond))
    assert num_sent < 1000  # what the buffers of the two sockets hold, and no more
    assert snapshot(tmp_path) == {}


def test_offline_says_what_to_do_and_leaves_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as unused:  # bound but not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(DownloadError, match=r"without a network.*WHVI_DATA"):
            fetch_files([GOOD], tmp_path, base_url=url)
    assert snapshot(tmp_path) == {}


def test_an_unwritable_cache_is_a_download_error(serve, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DownloadError):
        fetch_files([GOOD], tmp_path / "file", base_url=serve(respond_well))


def test_download_errors_are_data_errors_and_os_errors():
    assert issubclass(DownloadError, DataError)
    assert issubclass(DownloadError, OSError)


def test_the_logger_of_pooch_is_put_back(serve, tmp_path, capsys):
    level = pooch.get_logger().level
    fetch_files([GOOD], tmp_path, base_url=serve(respond_well))
    assert pooch.get_logger().level == level
    assert capsys.readouterr().err == ""
