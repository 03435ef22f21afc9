"""``foreword diff``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from foreword.cli.reading import format_option, open_reader, tokenizer_option

if TYPE_CHECKING:
    from foreword.cli.reading import Reader
    from foreword.diagnose.captures import Capture
    from foreword.diagnose.diff import Diff


@click.command("diff", short_help="Say where two prompts part, why, and what a fix gives back.")
@click.argument("a")
@click.argument("b")
@tokenizer_option
@click.option("--other-tokenizer-path", metavar="PATH|NAME", help="B's tokenizer and template, where they are not A's.")
@click.option("--block-size", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens a block.")
@click.option("--provider", help="The provider whose price is taken for --model.")
@click.option("--model", help="The model whose price turns lost tokens into dollars.")
@click.option(
    "--fix",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write both requests, repaired, to this folder.",
)
@format_option()
def command(a: str, b: str, *, tokenizer_path: str | None, other_tokenizer_path: str | None, block_size: int, provider: str | None, model: str | None, folder: Path | None, style: str) -> None:  # fmt: skip
    """Compare prompts A and B in token ids: texts, request bodies, or entries of a JSONL log or HAR (log.har#12).

    Exit status: 0 identical or appended, 1 a seam, 2 an error.
    """
    from foreword.diagnose.captures import load_capture

    if provider and not model:
        raise click.UsageError("--provider says whose price --model has: give --model too.")
    first, second = load_capture(a), load_capture(b)
    reader = open_reader(tokenizer_path)
    other = open_reader(other_tokenizer_path) if other_tokenizer_path else None
    diff = compare(first, second, reader, other, block_size=block_size, price=_price(model, provider))
    click.echo(render(diff, reader, b, style))
    if folder:
        _write(folder, diff, (a, b))
    sys.exit(1 if diff.seams else 0)


def compare(
    a: Capture,
    b: Capture,
    reader: Reader,
    other: Reader | None = None,
    *,
    block_size: int = 16,
    price: Callable[[int], Decimal] | None = None,
) -> Diff:
    """The verdict on two captures: on their ids where the log kept them, else on their bodies."""
    from foreword.diagnose.diff import diff_ids, diff_prompts
    from foreword.diagnose.sequence import explain_pair

    if a.token_ids and b.token_ids:
        return diff_ids(a.token_ids, b.token_ids, reader.tokenizer, block_size=block_size)
    sessions = a.session, b.session
    diff = diff_prompts(
        a.document, b.document, reader.tokenizer, layout=reader.layout, block_size=block_size,
        other_tokenizer=other.tokenizer if other else None,
        other_layout=other.layout if other and other.template != reader.template else None,
        same_session=sessions[0] == sessions[1] if all(sessions) else None, price=price,
    )  # fmt: skip
    return explain_pair(a, b, diff)


def render(diff: Diff, reader: Reader, file: str, style: str) -> str:
    """The verdict in one of the formats."""
    from foreword.cli import render as renderers
    from foreword.diagnose.describe import describe_diff, headline

    if style == "full":
        return describe_diff(diff, footer=reader.note)
    if style == "json":
        return renderers.dump(renderers.diff_as_json(diff, reader.tokenizer.identity.name))
    rows = renderers.rows_of_diff(diff, file)
    if style == "concise":
        return renderers.concise(rows) or headline(diff)
    return renderers.sarif(rows) if style == "sarif" else renderers.github(rows)


def _price(model: str | None, provider: str | None) -> Callable[[int], Decimal] | None:
    if model is None:
        return None
    from foreword.billing.prices import price_of

    return price_of(model, provider).lost


def _write(folder: Path, diff: Diff, inputs: tuple[str, str]) -> None:
    """Write both repaired requests; raises ConfigError where one would take the place of what was read."""
    import json

    from foreword.errors import ConfigError

    if diff.repaired is None:
        click.echo("Nothing to repair.", err=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in zip("ab", diff.repaired, strict=True):
        file = folder / (f"{name}.txt" if isinstance(document, str) else f"{name}.json")
        if any(Path(read.partition("#")[0]).resolve() == file.resolve() for read in inputs):
            raise ConfigError(f"--fix would overwrite {file}, which was read.", hint="Name another folder.")
        text: Any = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False, indent=2)
        with file.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        click.echo(f"Wrote {file}", err=True)
