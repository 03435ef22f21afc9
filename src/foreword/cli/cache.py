"""``foreword cache``: what a running server's prefix caches hold."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from foreword.cli.options import config_option
from foreword.errors import WorkerUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

Json = dict[str, Any]

TIMEOUT = 30.0
"""Seconds to wait for the server."""


@click.command("cache", short_help="Show what a running server's prefix caches hold.", params=[config_option()])
@click.argument("url", required=False)
@click.option("--api-key", envvar="FOREWORD_API_KEY", show_envvar=True, metavar="KEY", help="An admin's key.")
@click.option(
    "--limit", type=click.IntRange(0, 1000), default=10, show_default=True, help="Hottest prefixes of each worker."
)
@click.option("--json", "as_json", is_flag=True, help="Print what the server answered.")
def command(config_file: Path | None, url: str | None, api_key: str | None, limit: int, *, as_json: bool) -> None:
    """Show usage, hit rate, evictions and the hottest prefixes of the server at URL, by default the configured one.

    It is asked over HTTP and changes nothing. A prefix is shown by how it begins; hits are requests that found all of it.
    """
    answer = _ask(url or _configured_url(config_file), api_key, limit)
    if as_json:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        _print(answer)


def _configured_url(config_file: Path | None) -> str:
    from foreword.config import load_config

    config = load_config(environ=os.environ, file=config_file)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104 - the reverse of binding
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def _ask(url: str, api_key: str | None, limit: int) -> Json:
    """What the server says of its caches; raises WorkerUnavailable when it says nothing, or no."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is no http:// or https:// URL.", param_hint="URL")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = Request(f"{url.rstrip('/')}/v1/prefix_cache?limit={limit}", headers=headers)  # noqa: S310 - checked above
    try:
        with urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310 - checked above
            answer: Json = json.load(response)
    except HTTPError as error:
        with error:
            message = f"{url} answered {error.code}: {_reason(error.read())}"
        raise WorkerUnavailable(message, hint=_remedy(error.code)) from None
    except (URLError, TimeoutError, ValueError) as error:
        raise WorkerUnavailable(f"{url} cannot be asked: {error}.", hint="Is the server running there?") from None
    return answer


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason given."


def _remedy(status: int) -> str:
    return "Give an admin's key with --api-key or FOREWORD_API_KEY." if status in (401, 403) else ""


def _print(answer: Json) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for worker in answer["workers"]:
        console.print(Text(f"{worker['worker']} ({worker['model']})", style="bold"))
        console.print(_numbers(worker))
        console.print(_hottest(worker["hottest"]) if worker["hottest"] else "  nothing is cached")
    if answer["not_inspectable"]:
        console.print(Text(f"These workers do not show their caches: {', '.join(answer['not_inspectable'])}"))
    elif not answer["workers"]:
        console.print("This server has no workers.")


def _numbers(worker: Json) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2))
    rows = (
        ("blocks held", f"{worker['held']:,} of {worker['num_blocks']:,}, {worker['block_size']} tokens each"),
        ("usage", _percent(worker["usage"])),
        ("hit rate", f"{_percent(worker['hit_rate'])} ({worker['hits']:,} of {worker['queries']:,} tokens)"),
        ("evicted", f"{worker['evicted']:,}, of them {worker['expired']:,} expired, {worker['reset']:,} by resets"),
    )
    for name, value in (*rows, *_disk(worker["disk"])):
        table.add_row(name, value)
    return table


def _disk(disk: Json | None) -> list[tuple[str, str]]:
    """What is kept for 24 hours, where a worker keeps it on disk."""
    if disk is None:
        return []
    held = f"{disk['held']:,} blocks, {disk['bytes'] / (1 << 20):,.0f} of {disk['max_bytes'] / (1 << 20):,.0f} MiB"
    gone = f"{disk['evicted']:,}, of them {disk['expired']:,} expired, {disk['reset']:,} by resets, {disk['damaged']:,} damaged"
    return [
        ("on disk", held),
        ("disk traffic", f"{disk['stored']:,} written, {disk['read']:,} read"),
        ("disk evicted", gone),
    ]


def _hottest(prefixes: list[Json]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, expand=True)
    for name in ("hits", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("organisation", no_wrap=True)
    table.add_column("prefix", no_wrap=True, overflow="ellipsis", ratio=1)
    for prefix in prefixes:
        owner = (prefix["organisation"] or "") + (" (salted)" if prefix["salted"] else "")
        table.add_row(f"{prefix['hits']:,}", f"{prefix['tokens']:,}", Text(owner), Text(_visible(prefix["text"])))
    return table


def _visible(text: str) -> str:
    """The text on one line, control characters shown instead of obeyed."""
    return "".join(c if c.isprintable() else "↵" if c == "\n" else repr(c)[1:-1] for c in text)


def _percent(ratio: float | None) -> str:
    return "none yet" if ratio is None else f"{ratio:.1%}"
