"""``python -m benchmarks.lint_requests [REQUESTS]``: ``foreword lint --requests`` beside kvlint on one log, in one run.

3,000 requests of about 3,700 tokens by default: conversations of ten turns; every tenth has a clock that moves, every
tenth another tool order. With ``--every-clock`` the clock moves in each, which is the worst for Foreword: it replays the
fix of every seam. Prints both medians of three runs in turn, and the ratio; bytecode is compiled first. kvlint runs in the environment of ``make scoreboard``.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.cases.build import chat, prose, system, talk, tools, user

from benchmarks.processes import timed
from benchmarks.scoreboard import HOME
from foreword.testing.material import tokenizer_path


def requests(count: int, *, every_clock: bool = False) -> list[Any]:
    """The log's bodies."""
    made: list[Any] = []
    while len(made) < count:
        session = len(made) // 10
        clock = f"10:{session % 60:02}:00" if every_clock or session % 10 == 0 else "10:00:00"
        offered = tools(8)[::-1] if session % 10 == 5 and not every_clock else tools(8)
        text = f"{prose(1400, 1)}\nNow {clock}\n{prose(900, 2)}"
        made += [
            chat(
                system(text), *talk(n, start=10 * session), user(f"What of part {n} of case {session}?"), tools=offered
            )
            for n in range(10)
        ]
    return made[:count]


def main() -> None:
    """Write the log, run both, print."""
    sizes = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    count, every_clock = sizes[0] if sizes else 3000, "--every-clock" in sys.argv
    model = str(tokenizer_path("qwen3"))
    model = model if Path(model).is_dir() else str(Path(model).parent)
    command = Path(sys.executable).with_name("foreword")
    timed(str(command), "lint", "--help")  # compiles bytecode
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        log.write_text("\n".join(map(json.dumps, requests(count, every_clock=every_clock))))
        size = log.stat().st_size
        commands = (
            (str(command), "lint", "--requests", str(log), "--tokenizer-path", model),
            (str(HOME / "bin" / "kvlint"), "lint", str(log), "--model", model),
        )
        rounds = [[timed(*one) for one in commands] for _ in range(3)]
    ours, theirs = (statistics.median(times) for times in zip(*rounds, strict=True))
    sys.stdout.write(
        f"{count} requests, {size / 1e6:.1f} MB: foreword {ours:.1f} s, kvlint {theirs:.1f} s, ratio {theirs / ours:.1f}\n"
    )


if __name__ == "__main__":
    main()
