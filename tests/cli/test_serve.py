"""`foreword serve` as a process: it says where it listens, answers, and ends when told to."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foreword.testing.gguf_files import TINY_TOKENIZER, gguf_bytes
from foreword.testing.material import CACHE

SMOLLM2 = (CACHE / "smollm2_gguf").absolute()


@contextmanager
def serving(*args: str) -> Iterator[tuple[str, list[str], "subprocess.Popen[str]"]]:
    """A server; gives its URL, the lines it printed until it was ready, and the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "foreword", "serve", "--port", "0", "--log-level", "warning", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert process.stdout
    assert process.stderr
    try:
        lines = [process.stdout.readline()]
        assert lines[0], process.stderr.read()
        while not lines[-1].startswith("  -d "):
            lines.append(process.stdout.readline())
        found = re.search(r"at (http://\S+)$", lines[0])
        assert found, lines
        yield found[1], lines, process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def post(url: str, body: Any) -> Any:
    """POST JSON, read JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_a_tokenizer_alone_is_served(tokenizer_folder: Path) -> None:
    """With --tokenizer-path only, the gateway tokenizes; the request it prints works as it stands; SIGTERM ends it."""
    with serving("--tokenizer-path", str(tokenizer_folder), "--tokenizer-cache-enable-l0") as (url, lines, process):
        answer = post(f"{url}/v1/tokenize", {"model": "tiny", "prompt": "abc"})
        assert (answer["tokens"], answer["count"]) == ([4, 3], 2)

        text = "".join(lines)
        assert "none: it only tokenizes" in text
        assert "L0 cache   10,000 entries, 256 MiB" in text
        assert "L1 cache   off (--tokenizer-cache-enable-l1)" in text
        pasted = subprocess.run(
            ["sh", "-c", "".join(lines[lines.index("Try:\n") + 1 :])], capture_output=True, text=True, check=True
        )
        assert json.loads(pasted.stdout)["char_count"] == 30

        process.send_signal(signal.SIGTERM)
        assert process.wait(10) in (0, -signal.SIGTERM)


def test_another_tokenizer_is_loaded_on_request(tokenizer_folder: Path, tmp_path: Path) -> None:
    """POST /v1/tokenizers takes whatever --tokenizer-path takes, a GGUF file here; what is not there is a 4xx."""
    (tmp_path / "m.gguf").write_bytes(gguf_bytes({**TINY_TOKENIZER, "tokenizer.ggml.merges": []}))
    with serving("--tokenizer-path", str(tokenizer_folder)) as (url, _, _process):
        post(f"{url}/v1/tokenizers", {"name": "second", "source": str(tmp_path / "m.gguf")})
        assert post(f"{url}/v1/tokenize", {"model": "second", "prompt": "ab"})["tokens"] == [1, 2]
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(f"{url}/v1/tokenizers", {"name": "third", "source": "./nowhere"})
        with caught.value as answer:
            assert answer.code in (400, 404)
            assert "nowhere" in json.load(answer)["error"]["message"]
        for source, status in (("a" * 256, 404), ("~nobody-of-that-name/x", 404), ("o/rrr", 502)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                post(f"{url}/v1/tokenizers", {"name": "third", "source": source})
            with caught.value as answer:
                assert answer.code == status, source


@pytest.mark.material("smollm2_gguf")
def test_the_embedded_engine_answers() -> None:
    """With a model the request it prints is a chat, and the answer names Paris."""
    with serving("--model-path", str(SMOLLM2)) as (url, lines, _):
        body = json.loads("".join(lines).partition("-d '")[2].rpartition("'")[0])
        answer = post(f"{url}/v1/chat/completions", body | {"temperature": 0})
    assert "Paris" in answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "args,message",
    [
        (["--tokenizer-path", "nowhere"], "There is no file, folder or model 'nowhere'."),
        (["--worker-urls", "gopher://h:1"], "this release has no client for workers at 'gopher://h:1'."),
        (["--model-path", "tiny", "--api-keys", "none"], "none"),
        (["--model-path", "~nobody-of-that-name/x"], "There is no file, folder or model '~nobody"),
        (["--tokenizer-path", "tiny", "--host", "a" * 300], "is no address to listen on"),
        (["--tokenizer-path", "tiny", "--host", "ü..x"], "is no address to listen on"),
        (["--worker-urls", "http://[::1"], "cannot be read: Invalid IPv6 URL"),
        (["--api-keys", "~nobody-of-that-name/x"], "is not a path"),
    ],
)
def test_mistakes_end_it_with_one_line(args: list[str], message: str, tokenizer_folder: Path) -> None:
    """What cannot be served is said in one line, with exit status 2 and no traceback."""
    command = [sys.executable, "-m", "foreword", "serve", "--port", "0", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tokenizer_folder.parent, timeout=60)
    assert done.stderr.startswith("foreword: ")
    assert message in done.stderr
    assert (done.stdout, done.stderr.count("\n"), done.returncode) == ("", 1, 2)


def test_a_taken_port_is_said_before_anything_is_loaded() -> None:
    """Another process on the port is found at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "foreword", "serve", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == f"foreword: 127.0.0.1:{port} is in use by another process. Choose another port with --port.\n"
    assert done.returncode == 2


@pytest.mark.material("smollm2_gguf")
@pytest.mark.parametrize("fault", ["memory", "cut"])
def test_an_engine_that_cannot_start_ends_it_with_one_line(fault: str, tmp_path: Path) -> None:
    """A damaged GGUF file or more memory than there is: one line and exit status 2."""
    args = ["--model-path", str(SMOLLM2), "--kv-cache-memory", str(2**48)]
    if fault == "cut":
        whole = next(SMOLLM2.glob("*.gguf"))
        with whole.open("rb") as source:
            (tmp_path / "cut.gguf").write_bytes(source.read(50_000_000))
        args = ["--model-path", str(tmp_path / "cut.gguf")]
    command = [sys.executable, "-m", "foreword", "serve", "--port", "0", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.startswith("foreword: The embedded engine cannot start")
    assert (done.stdout, done.stderr.count("\n"), done.returncode) == ("", 1, 2)
