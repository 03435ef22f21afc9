"""``foreword doctor``: what is installed, what is configured and from where, and what cannot work."""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from foreword import __version__
from foreword.cli.options import config_option, show
from foreword.config import OTHER_VARIABLES, Config, load_config, redact_url, settings
from foreword.errors import ConfigError, ForewordError


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that cannot work, and the one thing to do about it."""

    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything ``foreword doctor`` says; ``settings`` are (flag, value, source)."""

    versions: dict[str, str]
    settings: list[tuple[str, str, str]]
    variables: dict[str, str]
    models: list[tuple[str, str, str]]
    problems: list[Problem]


@click.command(
    "doctor",
    short_help="Say what is installed, what is configured and where each value came from.",
    params=[config_option()],
)
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(config_file: Path | None, style: str) -> None:
    """Say what is installed, what `foreword serve` would do with the configuration as it is, and what cannot work.

    Exit status: 0 when all is well, 1 when something cannot work.
    """
    report = examine(config_file)
    click.echo(json.dumps(asdict(report), indent=2) if style == "json" else render(report))
    sys.exit(1 if report.problems else 0)


def examine(config_file: Path | None) -> Report:
    """Look at everything."""
    problems: list[Problem] = []
    try:
        config = load_config(environ=os.environ, file=config_file)
    except ConfigError as error:
        problems.append(Problem(error.message, error.hint or "Correct it, or take it out."))
        config = Config()
    for check in CHECKS:
        problems += check(config)
    variables = {name: _variable(name) for name in OTHER_VARIABLES}
    return Report(_versions(), _settings(config), variables, _models(), problems)


def _variable(name: str) -> str:
    """A variable's value; of a key only that it is set."""
    value = os.environ.get(name, "")
    return "set" if value and name.endswith("_KEY") else value


def _versions() -> dict[str, str]:
    """Foreword, Python, and every library it names, optional ones included."""
    names = sorted({_project(line) for line in metadata.requires("foreword") or ()})
    libraries = {name: _version(name) for name in names}
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"foreword": __version__, "python": platform.python_version(), "machine": machine, **libraries}


def _project(requirement: str) -> str:
    name = "".join(c if c.isalnum() or c in "-_." else " " for c in requirement).split()[0]
    return name.lower().replace("_", "-")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _settings(config: Config) -> list[tuple[str, str, str]]:
    rows = []
    for row in settings():
        value = getattr(config, row.name)
        shown = "" if value in (None, ()) else redact_url(show(value))
        rows.append((row.flag, shown, config.source(row.name)))
    return rows


def _models() -> list[tuple[str, str, str]]:
    """Name, state and folder of each model in the store."""
    from foreword.models import ModelStore

    store = ModelStore()
    return [(model.name, "; ".join(model.problems()) or "installed", str(model.folder)) for model in store.installed()]


def _check_port(config: Config) -> Iterator[Problem]:
    from foreword.cli.serve import bind

    try:
        bind(config).close()
    except ConfigError as error:
        yield Problem(error.message, error.hint)


def _check_prometheus_port(config: Config) -> Iterator[Problem]:
    from dataclasses import replace

    if config.prometheus_port is None:
        return
    for problem in _check_port(replace(config, port=config.prometheus_port)):
        yield Problem(problem.problem, problem.remedy.replace("--port", "--prometheus-port"))


def _check_references(config: Config) -> Iterator[Problem]:
    """Model and tokenizer must be there or fetchable by name; nothing is fetched to find out."""
    from foreword.models import ModelStore, resolve_tokenizer
    from foreword.tokens.tiktoken_backend import is_encoding_name

    for flag, reference in (("--model-path", config.model_path), ("--tokenizer-path", config.tokenizer_path)):
        if reference is None or is_encoding_name(reference) or _would_be_fetched(reference):
            continue
        try:
            resolve_tokenizer(reference, store=ModelStore(), pull=_pull_nothing)
        except ForewordError as error:
            yield Problem(f"{flag}: {error.message}", error.hint)


def _would_be_fetched(reference: str) -> bool:
    """Whether it is a name or hub id, and no path."""
    from foreword.models import CATALOGUE
    from foreword.models.resolve import existing_path, is_hub_id

    return existing_path(reference) is None and (reference in CATALOGUE or is_hub_id(reference))


def _pull_nothing(name: str, _store: Any) -> Any:
    raise ConfigError(f"{name} is not here.", hint=f"Fetch it with `foreword models pull {name}`.")


def _check_files(config: Config) -> Iterator[Problem]:
    for flag, path in (("--api-keys", config.api_keys), ("--chat-template", config.chat_template)):
        if path is not None and not os.access(path, os.R_OK):
            yield Problem(f"{flag}: {path} cannot be read.", "Create it, or correct the path.")
    keys = config.api_keys
    if keys is not None and keys.exists() and keys.stat().st_mode & stat.S_IROTH:
        yield Problem(f"--api-keys: every user of this machine can read {keys}.", f"chmod 600 {keys}")


def _check_exposure(config: Config) -> Iterator[Problem]:
    if config.host not in ("127.0.0.1", "localhost", "::1") and config.api_keys is None:
        yield Problem(
            f"--host {config.host} lets other machines in and no API key is asked for.", "Give --api-keys FILE."
        )


def _check_models(_config: Config) -> Iterator[Problem]:
    for name, state, _folder in _models():
        if state != "installed":
            yield Problem(f"The model {name} is damaged: {state}.", f"foreword models pull {name}")


def _check_cache_folder(_config: Config) -> Iterator[Problem]:
    from foreword.models import cache_folder

    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        yield Problem(f"Models cannot be kept in {folder}.", "Name a folder you may write to with FOREWORD_CACHE.")
    elif shutil.disk_usage(existing).free < 500_000_000:
        yield Problem(f"The disk of {folder} has less than 500 MB free.", "Make room, or set FOREWORD_CACHE.")


CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _check_port,
    _check_prometheus_port,
    _check_references,
    _check_files,
    _check_exposure,
    _check_models,
    _check_cache_folder,
)


def render(report: Report) -> str:
    """The report as text."""
    parts = [
        _table("Installed", list(report.versions.items())),
        _table("Configured (flag, value, where from)", report.settings),
        _table("Variables", [(name, value or "not set") for name, value in report.variables.items()]),
        _table("Models", report.models or [("none", "`foreword serve` fetches smollm2-135m when it needs it")]),
    ]
    lines = [f"  {problem.problem}\n    {problem.remedy}" for problem in report.problems]
    count = len(lines)
    heading = f"{count} problem{'s' * (count != 1)}" if count else "No problems"
    return "\n\n".join([*parts, "\n".join([heading, *lines])])


def _table(heading: str, rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([heading, *(f"  {line}" for line in lines)])
