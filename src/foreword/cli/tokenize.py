"""``foreword tokenize``: text in, token ids out."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from foreword.config import load_config
from foreword.errors import ModelNotFound, TokenizerError

if TYPE_CHECKING:
    from pathlib import Path

    from foreword.models import InstalledModel, ModelStore
    from foreword.tokens.tokenizer import Tokenizer

_COLOURS = ((190, 227, 219), (255, 214, 165), (200, 200, 255), (253, 200, 220), (214, 234, 190))


@click.command("tokenize", short_help="Turn text into token ids.")
@click.argument("text", required=False)
@click.option(
    "--tokenizer-path",
    metavar="PATH|ID",
    help="A folder, a tokenizer file, a GGUF file, a hub id, or the name of a tiktoken encoding. Defaults to what "
    "`foreword serve` is configured with, else to the small model that `foreword models pull` fetches.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["ids", "chips", "json"]),
    default="ids",
    show_default=True,
    help="Ids on a line; the text with its tokens in colours; or everything.",
)
@click.option("--add-special-tokens", is_flag=True, help="Add what the tokenizer adds around a text, such as BOS.")
def command(text: str | None, tokenizer_path: str | None, style: str, *, add_special_tokens: bool) -> None:
    """Turn TEXT into token ids, or what stands on standard input when TEXT is - or left out.

    Input is taken as it is, its last line break included.
    """
    content = _read_text(text)
    tokenizer = _load(tokenizer_path)
    ids = list(tokenizer.encode(content, add_special_tokens=add_special_tokens))
    click.echo(_RENDERERS[style](tokenizer, content, ids))


def _read_text(text: str | None) -> str:
    if text not in (None, "-"):
        return str(text)
    if text is None and sys.stdin.isatty():
        raise click.UsageError("Give a TEXT, or pipe one in.")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise TokenizerError(f"Standard input is not UTF-8 ({error}).", hint="Convert it first.") from error


def _load(tokenizer_path: str | None) -> Tokenizer:
    from foreword.models import DEFAULT_MODEL, ModelStore, resolve_tokenizer
    from foreword.tokens import load_tokenizer

    config = load_config(environ=os.environ)
    reference = tokenizer_path or config.tokenizer_path or config.model_path or DEFAULT_MODEL
    path: str | Path = reference
    if not _is_encoding(reference):
        path = resolve_tokenizer(reference, store=ModelStore(), pull=_refuse_to_pull)
    return load_tokenizer(path)


def _is_encoding(reference: str) -> bool:
    from foreword.tokens.tiktoken_backend import is_encoding_name

    return is_encoding_name(reference)


def _refuse_to_pull(name: str, store: ModelStore) -> InstalledModel:
    raise ModelNotFound(
        f"{name} is not in {store.folder}.",
        hint=f"Fetch it with `foreword models pull {name}`, or give --tokenizer-path.",
    )


def _show_ids(_tokenizer: Tokenizer, _text: str, ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def _show_chips(tokenizer: Tokenizer, _text: str, ids: Sequence[int]) -> str:
    """Each token in the next colour; in brackets where there are no colours."""
    pieces = [_visible(piece) for piece in _pieces(tokenizer, ids)]
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return "".join(f"[{piece}]" for piece in pieces)
    colours = itertools.cycle(_COLOURS)
    return "".join(click.style(piece, fg="black", bg=next(colours)) for piece in pieces)


def _show_json(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> str:
    identity = tokenizer.identity
    rows = [{"id": token_id, "text": piece} for token_id, piece in zip(ids, _pieces(tokenizer, ids), strict=True)]
    content = {
        "tokenizer": {"name": identity.name, "library": identity.library, "digest": identity.digest},
        "count": len(ids),
        "char_count": len(text),
        "tokens": rows,
    }
    return json.dumps(content, ensure_ascii=False, indent=2)


def _pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; of one that is part of a character, the vocabulary's own spelling."""
    known: dict[int, str] = {}
    for token_id in ids:
        if token_id not in known:
            text = tokenizer.decode([token_id], skip_special_tokens=False)
            spelled = tokenizer.id_to_token(token_id) or ""
            known[token_id] = spelled if "\ufffd" in text or not text else text
    return [known[token_id] for token_id in ids]


def _visible(piece: str) -> str:
    """Line breaks shown and kept, other control characters shown."""
    shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in piece)
    return shown.replace("\n", "↵\n")


_RENDERERS: dict[str, Callable[[Tokenizer, str, Sequence[int]], str]] = {
    "ids": _show_ids,
    "chips": _show_chips,
    "json": _show_json,
}
