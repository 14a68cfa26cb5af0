from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from reproduction.data import CATALOGUE, uci
from reproduction.data.fetch import FileRecord


@pytest.fixture
def fake_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up yacht set in the real layout, which the catalogue takes for the true one."""
    entry = CATALOGUE["yacht"]
    folder = tmp_path / "UCI_Datasets" / entry.folder / "data"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    table = rng.normal(size=(entry.num_rows, entry.num_columns + 1))
    lines = [" ".join(repr(float(value)) for value in row) for row in table]
    texts = {
        "data.txt": "\n".join(lines) + "\n\n",  # ends with an empty line, as the true one
        "index_features.txt": "".join(f"{k}\n" for k in range(entry.num_columns)),
        "index_target.txt": f"{entry.num_columns}\n",
        "n_splits.txt": f"{entry.num_splits}\n",
    }
    for k in range(entry.num_splits):
        order = rng.permutation(entry.num_rows)
        texts[f"index_test_{k}.txt"] = "".join(f"{row}\n" for row in order[:31])
        texts[f"index_train_{k}.txt"] = "".join(f"{row}\n" for row in order[31:])
    records = []
    for name, text in sorted(texts.items()):
        (folder / name).write_text(text)
        data = text.encode()
        records.append(FileRecord(entry.path(name), len(data), hashlib.sha256(data).hexdigest()))
    monkeypatch.setattr(uci, "_manifest", lambda: tuple(records))
    monkeypatch.delenv("WHVI_DATA", raising=False)
    return tmp_path


Respond = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Respond], str]]:
    """Start local HTTP servers that answer every GET with a function; yields their addresses."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers: list[ThreadingHTTPServer] = []

    def start(respond: Respond) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                respond(self)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
