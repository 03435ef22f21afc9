"""``make scoreboard``: the cases and harmless pairs put to other tools of the kind, and a table of what each said.

Each tool runs at a pinned version in a virtual environment of its own under .cache/scoreboard. *Found*: it says that the
prefix broke. *Named*: its words say what kind of cause. *Silent*: it sees no break where there is one. *False alarm*: it
reports a break on a harmless pair. Only pairs of chat or messages bodies are put to it, since that is what all read.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from tests.cases.build import Case
from tests.cases.catalogue import all_cases
from tests.cases.test_harmless import PAIRS

from benchmarks.scoreboard_tools import WORDS
from foreword.diagnose.diff import diff_prompts
from foreword.diagnose.layout import Layout, neutral_layout
from foreword.testing.material import tokenizer_path
from foreword.testing.words import WordTokenizer

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".cache" / "scoreboard"
PAGE = ROOT / "docs" / "scoreboard.md"
PINNED = ("kvlint==0.1.1", "promptcachelint==0.1.0", "cachelint==0.1.0a2", "prefixguard==0.2.1")
HARMLESS = 80


def main() -> int:
    """Run every tool over every pair and write the page."""
    python = _install()
    cases = [case for case in all_cases() if _is_chat(case)]
    harmless = [pair for pair in (maker(random.Random(seed)) for maker, seed in PAIRS) if isinstance(pair[0], dict)][
        :HARMLESS
    ]
    pairs = [*((case.a, case.b) for case in cases), *harmless]
    said = _ask(python, pairs)
    said["foreword"] = [
        *(_foreword(case.a, case.b, case.layouts[0]) for case in cases),
        *(_foreword(*pair) for pair in harmless),
    ]
    table = _table(said, cases, len(harmless))
    PAGE.write_text(_PAGE.format(table=table, cases=len(cases), harmless=len(harmless), tools=", ".join(PINNED)))
    sys.stdout.write(table)
    return 0


def _is_chat(case: Case) -> bool:
    """A pair of bodies whose seam does not depend on a template of its own."""
    return (
        isinstance(case.a, dict)
        and "messages" in case.a
        and case.layouts[0] is case.layouts[1]
        and case.code[0] in "ABCD"
        and case.code != "B4"
    )


def _install() -> Path:
    python = HOME / "bin" / "python"
    if not (HOME / ".ready").exists():
        venv.create(HOME, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--pre", *PINNED], check=True)
        (HOME / ".ready").touch()
    return python


def _ask(python: Path, pairs: list[tuple[Any, Any]]) -> dict[str, list[str]]:
    """What each tool says of each pair; "" where it sees no break."""
    given = json.dumps({"pairs": pairs, "tokenizer": str(tokenizer_path("qwen3"))})
    script = Path(__file__).with_name("scoreboard_tools.py")
    done = subprocess.run([python, script], input=given, capture_output=True, text=True, check=True)
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def _foreword(a: Any, b: Any, layout: Layout = neutral_layout) -> str:
    diff = diff_prompts(a, b, WordTokenizer(), layout=layout)
    return " ".join(f"{seam.code} {seam.name} {seam.evidence}" for seam in diff.seams)


def _table(said: dict[str, list[str]], cases: list[Case], harmless: int) -> str:
    rows = [f"| tool | found of {len(cases)} | named | silent | false alarms of {harmless} |", "|---|---|---|---|---|"]
    for tool, answers in sorted(said.items(), key=lambda item: item[0] != "foreword"):
        faults, quiet = answers[: len(cases)], answers[len(cases) :]
        found = sum(map(bool, faults))
        named = sum(
            any(word in text.lower() for word in WORDS[case.code]) for text, case in zip(faults, cases, strict=True)
        )
        rows.append(f"| {tool} | {found} | {named} | {len(cases) - found} | {sum(map(bool, quiet))} |")
    return "\n".join(rows) + "\n"


_PAGE = """# Scoreboard

<!-- Made by `make scoreboard`. -->

{cases} pairs of requests built from prefix-cache misses met in the field, and {harmless} harmless ones (appends, new sessions,
compaction, retries, other bytes with the same ids), put to tools that look at recorded requests: {tools}. *Found* means the tool
says that the prefix broke; *named* that its words say what kind of cause, by a list of words for each cause in
`benchmarks/scoreboard_tools.py`; *silent* that it sees no break. A break reported on a harmless pair is a false alarm. Some of
these tools look at whole sessions or at usage, which a pair does not show. Where a case has a chat template of its own, Foreword
reads it; the others have no place to give one. The cases are Foreword's own test suite, so its row says
that the suite passes and not how it does on requests it has never seen.

{table}"""


if __name__ == "__main__":
    sys.exit(main())
