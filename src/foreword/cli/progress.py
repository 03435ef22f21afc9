"""What a download shows: a bar on a terminal, one line each when piped; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from foreword.models.download import Progress


@contextmanager
def download_progress() -> Iterator[Progress]:
    """A callback for ``download`` that shows how far it is."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        tasks = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield show


class _Lines:
    """Says when a file begins to come and when it is there."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        begun = self.started.setdefault(name, time.monotonic())
        if done == total and total > 1 << 20:
            click.echo(f"Fetched {name}: {total / 1e6:,.1f} MB in {time.monotonic() - begun:.1f} s", err=True)
