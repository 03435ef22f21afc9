"""What the diagnosing commands share: the tokenizer and template they read prompts with, and their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from foreword.diagnose.layout import Layout, neutral_layout, template_layout
from foreword.errors import ConfigError, TemplateError, TokenizerError
from foreword.tokens.tokenizer import Tokenizer

FORMATS = ("full", "concise", "json", "sarif", "github")
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reader:
    """A tokenizer, a layout, and what to tell the user about them."""

    tokenizer: Tokenizer
    layout: Layout
    template: str
    note: str


def tokenizer_option(function: _Command) -> _Command:
    """The option --tokenizer-path."""
    text = "A tokenizer folder, file or tiktoken name. Without it: the model that `make serve` installed."
    return click.option("--tokenizer-path", metavar="PATH|NAME", help=text)(function)


def format_option(*formats: str) -> Callable[[_Command], _Command]:
    """The option --format, of all or some formats."""
    choices = click.Choice(formats or FORMATS)
    return click.option(
        "--format", "style", type=choices, default="full", show_default=True, help="How results are printed."
    )


def open_reader(path: str | None, *, much: bool = False) -> Reader:
    """The tokenizer at a path (or the installed one), with the chat template beside it; ``much`` for logs of many MB."""
    from foreword.tokens import load_tokenizer

    found = path or _installed()
    tokenizer = load_tokenizer(found, second_encoder=much)
    render, digest = _template(Path(found))
    layout = template_layout(render) if render else neutral_layout
    what = "and its chat template" if render else "with a neutral layout"
    note = f"Tokenizer: {tokenizer.identity.name} {what}"
    return Reader(
        tokenizer, layout, digest, note + ("." if path else ", the installed one; --tokenizer-path names another.")
    )


def _installed() -> str:
    from foreword.models import CATALOGUE, DEFAULT_MODEL, ModelStore

    model = next((m for m in ModelStore().installed() if m.name == DEFAULT_MODEL), None)
    if model is None:
        raise ConfigError(
            "No tokenizer is given and none is installed.",
            hint=f"Give --tokenizer-path, or run: foreword models pull {DEFAULT_MODEL}",
            known=list(CATALOGUE),
        )
    return str(model.folder)


def _template(path: Path) -> tuple[Callable[..., str] | None, str]:
    from foreword.tokens.chat_template import load_chat_template

    folder = path if path.is_dir() else path.parent
    if not path.exists():
        return None, "neutral"
    try:
        template = load_chat_template(folder)
    except (TemplateError, TokenizerError, OSError):
        return None, "neutral"
    return (template.render, template.digest) if template else (None, "neutral")
