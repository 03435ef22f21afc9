"""``foreword dive``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from foreword.cli.reading import open_reader, tokenizer_option

MAX_REQUESTS = 200


@click.command("dive", short_help="Lay a request open: layers, what of them is reused, what is out of reach.")
@click.argument("request", metavar="REQUEST|LOG")
@tokenizer_option
@click.option(
    "--html", "page_file", type=click.Path(dir_okay=False, path_type=Path), help="Write one HTML page instead."
)
@click.option("--redact/--no-redact", default=True, show_default=True, help="Leave prompt text out of the HTML page.")
@click.option("--plain", is_flag=True, help="Print the layers instead of opening the viewer.")
def command(request: str, *, tokenizer_path: str | None, page_file: Path | None, redact: bool, plain: bool) -> None:
    """Show the layers of a request, or of every request of a log against the one before it.

    In a terminal, and with the extra `tui`, this opens a viewer: layers left, content right.
    """
    from foreword.diagnose.captures import Capture, load_capture, read_captures
    from foreword.report.layers import dive, table

    reader = open_reader(tokenizer_path)
    single = "#" in request
    captures = [load_capture(request)] if single else list(read_captures(request, limit=MAX_REQUESTS))
    earlier: list[Capture | None] = [None, *captures]
    dives = [dive(now, before, reader.tokenizer, reader.layout) for before, now in zip(earlier, captures, strict=False)]
    if page_file:
        from foreword.report.html import page

        page_file.write_text(page(dives, redact=redact), encoding="utf-8")
        click.echo(page_file)
    elif plain or not sys.stdout.isatty():
        click.echo(table(dives))
    else:
        from foreword.cli.dive_viewer import view

        view(dives)
