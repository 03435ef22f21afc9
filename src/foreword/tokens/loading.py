"""load_tokenizer: a tokenizer from a path or a name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from foreword.errors import TokenizerError, TokenizerNotFound
from foreword.tokens.huggingface import HuggingFaceTokenizer
from foreword.tokens.tokenizer import CacheableTokenizer

_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model*")


def load_tokenizer(
    path_or_name: str | Path,
    *,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
    encode_special_tokens: bool = False,
    second_encoder: bool = True,
) -> CacheableTokenizer:
    """Load a tokenizer from this machine.

    Args:
        path_or_name: a Hugging Face folder or its tokenizer.json; a tekken*.json or SentencePiece model (extra
            ``mistral``); a *.tiktoken rank file; or the name of a tiktoken encoding.
        pattern: rank file: the regular expression that splits text, which the file does not hold.
        special_tokens: rank file: its special tokens and their ids.
        encode_special_tokens: Hugging Face: encode special tokens in a text as text.
        second_encoder: Hugging Face: load the fast encoder too; without it a command that encodes little starts sooner.

    Raises:
        TokenizerNotFound: there is nothing by that name or at that path.
        TokenizerError: what is there cannot be loaded.
    """
    path = Path(path_or_name)
    if not path.exists():
        from foreword.tokens.tiktoken_backend import is_encoding_name, load_encoding  # noqa: PLC0415 - each backend's library takes its time to import

        if is_encoding_name(str(path_or_name)):
            return load_encoding(str(path_or_name))
    file = _file(path)
    if file.suffix == ".tiktoken":
        return _load_ranks(file, pattern, special_tokens or {})
    if file.suffix == ".json" and not file.name.startswith("tekken"):
        name = path.name if path.is_dir() else file.parent.name
        return HuggingFaceTokenizer(
            _read(file), name=name, encode_special_tokens=encode_special_tokens, second_encoder=second_encoder
        )
    if file.suffix == ".json" or ".model" in file.name:
        from foreword.tokens.mistral_backend import load_mistral  # noqa: PLC0415 - as above

        return load_mistral(file)
    raise TokenizerError(f"{file} is no tokenizer.", hint="Give a tokenizer.json, tekken.json, *.model or *.tiktoken.")


def _load_ranks(file: Path, pattern: str | None, special_tokens: Mapping[str, int]) -> CacheableTokenizer:
    if pattern is None:
        raise TokenizerError(
            f"{file.name} holds ranks and no pattern.", hint="Give pattern= and special_tokens= with it."
        )
    from foreword.tokens.tiktoken_backend import load_rank_file  # noqa: PLC0415 - as above

    return load_rank_file(file, pattern=pattern, special_tokens=special_tokens)


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    found = [file for name in _FILES for file in sorted(path.glob(name))] if path.is_dir() else []
    if not found:
        raise TokenizerNotFound(
            f"There is no tokenizer at {path}.",
            hint="Give a folder with a tokenizer.json, a tokenizer file, or the name of a tiktoken encoding.",
            path=str(path),
        )
    return found[0]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{file} cannot be read: {error}.") from error
