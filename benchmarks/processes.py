"""Commands and servers that are measured from outside: started, waited for, timed, ended."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, path: str, text: bytes = b"", environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """A server, once it answers a path with a text; without its output."""
    variables = os.environ | (environment or {})
    process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, path, text, process=process)
        yield port
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def wait_for(
    port: int, path: str, text: bytes, seconds: float = 120, *, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Return when a server answers a path with a text; raises RuntimeError when it does not, or its process has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer,
        ):
            if text in answer.read():
                return
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the server for port {port} ended with {process.returncode}")
        time.sleep(0.1)
    raise RuntimeError(f"nothing useful at {port}{path}")


def timed(*command: str) -> float:
    """Seconds that a command takes, with the bytecode kept that it compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run(command, check=False, capture_output=True, env=environment)
    return time.perf_counter() - start
