"""The command group. Commands are named here and imported only when called, so that ``foreword --help`` stays fast."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Any

import click

from foreword import __version__
from foreword.errors import ForewordError

COMMANDS = {
    "cache": "Show what a running server's prefix caches hold.",
    "diff": "Say where two prompts part, why, and what a fix gives back.",
    "dive": "Lay a request open: layers, what of them is reused, what is out of reach.",
    "doctor": "Say what is installed, what is configured and where each value came from.",
    "explain": "Say what a cause code means.",
    "fingerprint": "Print the fingerprints of prompts, and when a log's began to move.",
    "lint": "Find what will break a prefix: in Python source, chat templates, request logs.",
    "models": "Fetch and list models.",
    "route": "Replay a trace through a routing policy, without servers.",
    "savings": "Print what a shared prefix saves, step by step.",
    "serve": "Serve the gateway.",
    "tokenize": "Turn text into token ids.",
    "watch": "Follow a gateway's verdicts, a line a request.",
}


class LazyGroup(click.Group):
    """A group whose commands live in ``foreword.cli.<name>`` as ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Command names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"foreword.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List commands by their one-line help without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Turn Foreword's own errors, and files that cannot be used, into one line on stderr and exit status 2."""
        try:
            return super().invoke(ctx)
        except ForewordError as error:
            click.echo(f"foreword: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly when nobody reads on
                raise
            click.echo(f"foreword: Cannot use {error.filename or 'the output'}: {error.strerror or error}.", err=True)
            sys.exit(2)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="foreword")
def main() -> None:
    """Prefix caching for large language models, exact from text to tokens to blocks to bill."""
