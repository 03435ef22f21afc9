"""The ``foreword`` command: one module a command, imported when it is called."""

from foreword.cli.main import main

__all__ = ["main"]
