"""Click options made from the table of settings, in its sections, and read through the one way in."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from foreword.config import Config, Setting, load_config, settings


class SettingOption(click.Option):
    """A flag of one setting. Values stay text: ``load_config`` converts and checks those of every source alike."""

    def __init__(self, row: Setting) -> None:
        names = f"{row.flag}/--no-{row.key}" if row.kind is bool else row.flag
        metavar = "|".join(row.choices) or row.metavar or {int: "INTEGER", float: "NUMBER"}.get(row.kind, "TEXT")
        is_flag = row.kind is bool
        super().__init__(
            [row.name, names],
            help=describe(row),
            default=None,
            multiple=row.kind is tuple,
            type=bool if is_flag else str,
            metavar=None if is_flag else metavar,
        )
        self.section = row.section


def describe(row: Setting) -> str:
    """A setting's help with its variable and default."""
    default = "" if row.default in (None, ()) else f"; default {show(row.default)}"
    return f"{row.help} [{row.variable}{default}]"


def show(value: Any) -> str:
    """A value as it is written in a TOML file or on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


class SettingsCommand(click.Command):
    """A command whose options are grouped in the sections of the table, and whose list flags take several words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--worker-urls A B`` as ``--worker-urls A --worker-urls B``."""
        several = {option.opts[0] for option in self.params if option.multiple}
        expanded: list[str] = []
        current = ""
        for position, arg in enumerate(args):
            if arg.startswith("-"):
                current = arg if arg in several else ""
            elif current and args[position - 1] != current:
                expanded.append(current)
            expanded.append(arg)
        return super().parse_args(ctx, expanded)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section at a time."""
        rows = [option for option in self.get_params(ctx) if isinstance(option, SettingOption)]
        for section, options in itertools.groupby(rows, attrgetter("section")):
            with formatter.section(section):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
        others = [option for option in self.get_params(ctx) if not isinstance(option, SettingOption)]
        with formatter.section("Other options"):
            formatter.write_dl([record for option in others if (record := option.get_help_record(ctx))])


def config_option() -> click.Option:
    """``--config FILE``."""
    return click.Option(
        ["config_file", "--config"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML file of settings; its keys are the flags' names without the dashes in front. "
        "[FOREWORD_CONFIG; default ./foreword.toml where there is one]",
    )


def settings_command(name: str, *, short_help: str) -> Callable[[Callable[[Config], None]], SettingsCommand]:
    """Make a command that takes every setting and ``--config``; the function is called with the ``Config``."""

    def decorate(function: Callable[[Config], None]) -> SettingsCommand:
        def callback(config_file: Path | None, **flags: Any) -> None:
            function(load_config(flags, environ=os.environ, file=config_file))

        params: list[click.Parameter] = [*map(SettingOption, settings()), config_option()]
        return SettingsCommand(
            name, params=params, callback=callback, help=inspect.getdoc(function), short_help=short_help
        )

    return decorate
