"""Write the reference pages that are made from the code: ``python docs/generate.py``; ``--check`` only compares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from foreword.cli.options import show
from foreword.config import OTHER_VARIABLES, Setting, settings

REFERENCE = Path(__file__).parent / "reference"

CONFIGURATION = """# Configuration

<!-- Made by `python docs/generate.py` from src/foreword/config/table.py. -->

Every setting of `foreword serve` can be given in three ways. Later ones win: a TOML file, the environment, a flag.

| | Name | Example |
|---|---|---|
| TOML file | the flag's name without the dashes in front | `max-body-bytes = 1048576` in `foreword.toml` |
| Environment | `FOREWORD_` and the name in capitals | `FOREWORD_MAX_BODY_BYTES=1048576` |
| Flag | | `--max-body-bytes 1048576` |

The file is `foreword.toml` in the folder the command is called in, or the one that `--config FILE` or `FOREWORD_CONFIG`
names. A name that is no setting is an error that says which one was meant. `foreword doctor` prints every value and
where it came from. A boolean is `true` or `false` in a file or variable, and `--flag` or `--no-flag` on the command
line. An empty variable counts as not set.
"""


def configuration() -> str:
    """The page of settings."""
    parts = [CONFIGURATION]
    for section, rows in groupby(settings(), attrgetter("section")):
        parts.append(f"\n## {section}\n\n| Setting | Default | Values | Meaning |\n|---|---|---|---|\n")
        parts += [_row(row) for row in rows]
    parts.append("\n## Variables that have no flag\n\n| Variable | Meaning |\n|---|---|\n")
    parts += [f"| `{name}` | {text} |\n" for name, text in OTHER_VARIABLES.items()]
    return "".join(parts)


def _row(row: Setting) -> str:
    default = "" if row.default in (None, ()) else f"`{show(row.default)}`"
    return f"| `{row.flag}` | {default} | {_values(row)} | {row.help} |\n".replace("path|id", "path or id")


def _values(row: Setting) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    if row.minimum is not None and row.maximum is not None:
        return f"{row.minimum:.15g} to {row.maximum:.15g}"
    if row.kind is bool:
        return "boolean"
    return "list" if row.kind is tuple else row.metavar.lower() or "text"


PAGES: dict[str, Callable[[], str]] = {"configuration.md": configuration}


def main() -> int:
    """Write or compare every page; the exit status is the number of pages that are out of date."""
    stale = 0
    for name, render in PAGES.items():
        path = REFERENCE / name
        if "--check" in sys.argv:
            stale += not path.exists() or path.read_text(encoding="utf-8") != render()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(render(), encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
