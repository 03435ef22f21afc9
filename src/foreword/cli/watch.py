"""``foreword watch``."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import click

from foreword.cli.numbers import FiniteRange

_TIMEOUT = 10.0
_WIDTH = 24


@click.command("watch", short_help="Follow a gateway's verdicts, a line a request.")
@click.argument("url")
@click.option("--api-key", envvar="FOREWORD_API_KEY", help="An admin's key, where the gateway asks for one.")
@click.option(
    "--interval", type=FiniteRange(0.1, 60), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Print what there is and leave.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["full", "json"]),
    default="full",
    show_default=True,
    help="How it is printed.",
)
def command(url: str, *, api_key: str | None, interval: float, once: bool, style: str) -> None:
    """Follow the verdicts of the gateway at URL: shared and lost tokens of each request, the seam, and its cause.

    A gateway that answered once and is started again is waited for.
    """
    from foreword.errors import ConfigError

    after, answered, waiting = 0, False, False
    while True:
        try:
            last, rows = fetch_rows(url, after, api_key)
        except ConfigError as error:
            if not answered:
                raise
            if not waiting:
                click.echo(f"foreword: {error.message} Waiting for it.", err=True)
            waiting = True
        else:
            answered, waiting = True, False
            if last < after:  # started again, it counts from one
                after = 0
                continue
            for row in rows:
                after = max(after, int(row["number"]))
                click.echo(json.dumps(row) if style == "json" else line_of(row))
        if once:
            return
        time.sleep(interval)


def fetch_rows(url: str, after: int, api_key: str | None) -> tuple[int, list[dict[str, Any]]]:
    """The newest verdict's number, and verdicts numbered above ``after``; raises ConfigError for a gateway that does not answer."""
    from foreword.errors import ConfigError

    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address.", hint="Give the gateway's, like http://127.0.0.1:30000.")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/v1/seams?after={after}&limit=1000", headers=headers)  # noqa: S310 - http checked above
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
            answer = json.load(response)
            return int(answer["last"]), answer["data"]
    except urllib.error.HTTPError as error:
        hint = "Give --api-key with an admin's key." if error.code in {401, 403} else "Is this a Foreword gateway?"
        raise ConfigError(f"{url} answered {error.code}.", hint=hint) from None
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{url} does not answer: {error}.", hint="Is the gateway running?") from None


def line_of(row: dict[str, Any]) -> str:
    """One verdict as a line: time, share as a bar, tokens shared and lost, cause and place."""
    total = max(int(row["prompt_tokens"]), 1)
    kept = round(_WIDTH * int(row["shared_tokens"]) / total)
    lost = min(_WIDTH - kept, round(_WIDTH * int(row["lost_tokens"]) / total))
    bar = "#" * kept + "!" * lost + "." * (_WIDTH - kept - lost)
    at = time.strftime("%H:%M:%S", time.localtime(float(row["time"])))
    head = f"{at} [{bar}] {row['shared_tokens']:>8,}/{row['prompt_tokens']:<8,} "
    if row["seam"] is None:
        return head + str(row["relation"])
    return head + f"lost {row['lost_tokens']:,} at {row['seam']:,}: {row['code']} {row['name']} ({row['path']})"
