"""``foreword explain``."""

from __future__ import annotations

import click


@click.command("explain", short_help="Say what a cause code means.")
@click.argument("code", required=False)
@click.option(
    "--format",
    "style",
    type=click.Choice(["full", "json"]),
    default="full",
    show_default=True,
    help="How it is printed.",
)
def command(code: str | None, style: str) -> None:
    """Say what a cause CODE means: where its seam lands, why, who owns it, and the edit. Without CODE: all of them."""
    from foreword.cli.render import dump
    from foreword.diagnose.causes import all_causes, explain

    chosen = [explain(code)] if code else list(all_causes().values())
    if style == "json":
        click.echo(dump(chosen[0] if code else chosen))
    elif code:
        cause = chosen[0]
        lines = {
            "where": cause.where,
            "why": cause.why,
            "owner": cause.owner,
            "edit": cause.edit,
            "like": cause.example,
        }
        click.echo(f"{cause.code} {cause.name}\n\n" + "\n".join(f"{key:>6}: {text}" for key, text in lines.items()))
    else:
        click.echo("\n".join(f"{cause.code}  {cause.name}" for cause in chosen))
