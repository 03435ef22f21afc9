"""Write the reference pages that are made from the code: ``python docs/generate.py``; ``--check`` only compares."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from foreword.cli.main import main as main_group
from foreword.cli.options import show
from foreword.config import OTHER_VARIABLES, Setting, settings
from foreword.diagnose.causes import Cause, all_causes
from foreword.gateway.metrics import DEFINITIONS

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


COMMAND_LINE = """# Command line

<!-- Made by `python docs/generate.py` from the commands' own help. -->

Every setting of `foreword serve` has a variable and a TOML key too: see [Configuration](configuration.md).

Results go to standard output, everything else to standard error. Exit status: 0 when all is well, 1 when a command found
problems, 2 when it could not do what was asked.
"""


def command_line() -> str:
    """The page of commands."""
    return COMMAND_LINE + "".join(
        _help(command, context) for context, command in _commands(main_group, "foreword", None)
    )


def _commands(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[tuple[click.Context, click.Command]]:
    """A command and all below it, each with its context."""
    settings_of: dict[str, Any] = {"terminal_width": 100, "max_content_width": 100, **command.context_settings}
    context = click.Context(command, info_name=name, parent=parent, **settings_of)
    yield context, command
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            if below is not None:
                yield from _commands(below, child, context)


def _help(command: click.Command, context: click.Context) -> str:
    return f"\n## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"


METRICS = """# Metrics

<!-- Made by `python docs/generate.py` from src/foreword/gateway/metrics.py. -->

`GET /metrics`, and the port of `--prometheus-port`, serve these in Prometheus's text format. Names begin with the
namespace of `--metrics-namespace`, which is `foreword`; with `smg` the tokenizer cache's metrics have the names of SMG's
specification. With `--api-keys` the main port asks for an admin's key.

A dashboard is in [deploy/grafana](../../deploy/grafana/foreword.json), alert rules are in
[deploy/prometheus](../../deploy/prometheus/alerts.yml). The tokenizer cache's hit ratio by layer:

    sum by (layer) (rate(foreword_tokenizer_cache_lookups_total{result="hit"}[5m]))
    / sum by (layer) (rate(foreword_tokenizer_cache_lookups_total[5m]))

An L0 hit is counted once for each text, whether the level knew the text or `/v1/tokenize` the whole body. A lookup that
misses L0 goes on to L1.

| Metric | Kind | Labels | Meaning |
|---|---|---|---|
"""


def metrics() -> str:
    """The page of metrics."""
    rows = [
        f"| `foreword_{row.exposed_name}` | {row.kind} | {', '.join(f'`{label}`' for label in row.labels)} | {row.help} |\n"
        for row in DEFINITIONS
    ]
    return METRICS + "".join(rows)


CAUSES = """# Causes of prefix-cache misses

<!-- Made by `python docs/generate.py` from src/foreword/diagnose/causes/causes.toml. -->

Every verdict of `foreword diff`, `foreword lint` and the gateway carries one of these codes; `foreword explain CODE` prints
the same text. A *seam* is the first token at which two prompts part. Causes of scope `outside` leave the token ids as they
are; `expected` ones are told and never warned about.

| Code | Cause | Scope | Where the seam lands |
|---|---|---|---|
"""


def causes() -> str:
    """The page of causes."""
    rows = list(all_causes().values())
    table = "".join(f"| [{row.code}](#{row.code.lower()}) | {row.name} | {row.scope} | {row.where} |\n" for row in rows)
    return CAUSES + table + "".join(map(_cause, rows))


def _cause(row: Cause) -> str:
    title = f'\n<a id="{row.code.lower()}"></a>\n\n## {row.code}: {row.name}\n\n{row.why}\n\n'
    return title + f"- Where: {row.where}.\n- Owner: {row.owner}.\n- Edit: {row.edit}\n- For example: `{row.example}`\n"


PAGES: dict[str, Callable[[], str]] = {
    "causes.md": causes,
    "cli.md": command_line,
    "configuration.md": configuration,
    "metrics.md": metrics,
}


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
