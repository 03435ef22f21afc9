"""``python -m benchmarks.lint_requests [REQUESTS]``: ``foreword lint --requests`` beside kvlint on one log, in one run.

3,000 requests of about 3,700 tokens by default: conversations that grow, every tenth with a clock or another tool order.
Prints both times and the ratio. kvlint runs in the environment of ``make scoreboard``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cases.build import chat, prose, system, talk, tools, user

from benchmarks.scoreboard import HOME
from foreword.testing.material import tokenizer_path


def requests(count: int) -> list[Any]:
    """The log's bodies."""
    made: list[Any] = []
    while len(made) < count:
        session = len(made)
        clock = f"10:{session % 60:02}:00" if session % 10 == 0 else "noon"
        text = f"{prose(1400, 1)}\nNow {clock}\n{prose(900, 2)}"
        made += [chat(system(text), *talk(n, start=session), user("Next?"), tools=tools(8)) for n in range(10)]
    return made[:count]


def timed(*command: str) -> float:
    """Seconds that one command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=False, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Write the log, run both, print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    model = str(tokenizer_path("qwen3"))
    model = model if Path(model).is_dir() else str(Path(model).parent)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        log.write_text("\n".join(map(json.dumps, requests(count))))
        size = log.stat().st_size
        ours = timed(
            str(Path(sys.executable).with_name("foreword")), "lint", "--requests", str(log), "--tokenizer-path", model
        )
        theirs = timed(str(HOME / "bin" / "kvlint"), "lint", str(log), "--model", model)
    sys.stdout.write(
        f"{count} requests, {size / 1e6:.1f} MB: foreword {ours:.1f} s, kvlint {theirs:.1f} s, ratio {theirs / ours:.1f}\n"
    )


if __name__ == "__main__":
    main()
