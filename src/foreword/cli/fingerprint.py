"""``foreword fingerprint``."""

from __future__ import annotations

from typing import Any

import click

from foreword.cli.reading import open_reader, tokenizer_option


@click.command("fingerprint", short_help="Print the fingerprints of prompts, and when a log's began to move.")
@click.argument("files", nargs=-1, required=True)
@tokenizer_option
@click.option("--model", default="", help="The model folded into the fingerprint, where the request names none.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["full", "json"]),
    default="full",
    show_default=True,
    help="How it is printed.",
)
def command(files: tuple[str, ...], *, tokenizer_path: str | None, model: str, style: str) -> None:
    """Print the fingerprints of every request in FILES: of the prefix in token ids, and of each segment.

    Requests with times are also counted by lane and five-minute window; a segment that begins to move is dated.
    """
    from foreword.cli.render import dump
    from foreword.diagnose.captures import read_captures
    from foreword.diagnose.fingerprint import fingerprint_request
    from foreword.diagnose.ledger import FingerprintLedger
    from foreword.diagnose.sequence import lane_of

    reader = open_reader(tokenizer_path)
    ledger = FingerprintLedger()
    rows: list[dict[str, Any]] = []
    for capture in (capture for file in files for capture in read_captures(file)):
        prints = fingerprint_request(
            capture.document, reader.tokenizer, model=model, layout=reader.layout, template=reader.template
        )
        rows.append({"source": capture.source, **prints.as_log()})
        if capture.time is not None:
            fields = {"prefix_fp": prints.prefix_fp, "tools_fp": prints.tools_fp, "system_fp": prints.system_fp}
            ledger.record(lane_of(capture), fields, capture.time)
    windows = {lane: ledger.counts(lane) for lane in ledger.lanes()}
    onsets = [onset for lane in ledger.lanes() for onset in ledger.onsets(lane)]
    if style == "json":
        click.echo(dump({"requests": rows, "windows": windows, "onsets": onsets}))
        return
    for row in rows:
        segments = "  ".join(f"{name.removesuffix('_fp')} {value or '-'}" for name, value in row["segments"].items())
        click.echo(f"{row['prefix_fp']}  {row['prefix_tokens']:>7} tokens  {segments}  {row['source']}")
    for onset in onsets:
        click.echo(f"{onset.lane}: {onset}")
