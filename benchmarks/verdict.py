"""``python -m benchmarks.verdict``: the running verdict on near-duplicates of about 14k tokens, and `foreword diff` from the shell.

Prints the median over 40 verdicts, of processor time, and the median over 7 runs of the command, of time.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.cases.build import chat, prose, system, talk, tools, user

from benchmarks.processes import timed
from foreword.diagnose.layout import neutral_layout
from foreword.diagnose.verdicts import SeamWatch
from foreword.testing.words import WordTokenizer


def verdict() -> tuple[int, float]:
    """Tokens of a prompt, and the median milliseconds of a verdict on it."""
    tokenizer, watch, times = WordTokenizer(), SeamWatch(), []
    bodies = [
        chat(
            system(f"{prose(900, 1)}\nNow 10:{n:02}:00\n{prose(900, 2)}"),
            *talk(85 + n % 20),
            user("Go"),
            tools=tools(20),
        )
        for n in range(40)
    ]
    bodies = json.loads(json.dumps(bodies))  # as they come, no two sharing a message
    encoded = [tokenizer.encode(neutral_layout(body)) for body in bodies]
    for body, ids in zip(bodies, encoded, strict=True):
        start = time.thread_time()
        watch.observe(body, ids, model="m")
        times.append(time.thread_time() - start)
    return len(encoded[0]), 1000 * statistics.median(times)


def command() -> float:
    """Median seconds of `foreword diff` on two bodies of 200 KB, with the installed tokenizer; bytecode is compiled first."""
    first = chat(system(f"{prose(6000, 3)}\nNow 10:11:12\n{prose(6000, 4)}"), *talk(280), user("Go."), tools=tools(12))
    second = {
        **first,
        "messages": [system(f"{prose(6000, 3)}\nNow 10:15:12\n{prose(6000, 4)}"), *first["messages"][1:]],
    }
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / name) for name in ("a.json", "b.json")]
        for name, body in zip(names, (first, second), strict=True):
            Path(name).write_text(json.dumps(body))
        command = str(Path(sys.executable).with_name("foreword"))
        times = [timed(command, "diff", *names) for _ in range(8)]
    return statistics.median(times[1:])


def main() -> None:
    """Measure and print both."""
    tokens, milliseconds = verdict()
    sys.stdout.write(
        f"verdict on {tokens:,} tokens: {milliseconds:.2f} ms; foreword diff on two 200 KB bodies: {command():.2f} s\n"
    )


if __name__ == "__main__":
    main()
