"""Bodies of /v1/tokenize, /v1/detokenize and /v1/tokenizers."""

from __future__ import annotations

from typing import Annotated

import msgspec

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class TokenizeRequest(msgspec.Struct):
    """Text to turn into ids; a list of texts gives lists."""

    model: str
    prompt: str | list[str]
    add_special_tokens: bool = False


class DetokenizeRequest(msgspec.Struct):
    """Ids to turn into text."""

    model: str
    tokens: list[TokenId]
    skip_special_tokens: bool = True


class AddTokenizerRequest(msgspec.Struct):
    """A tokenizer to load: ``source`` is a folder, a file or a hub id; ``name`` defaults to it."""

    source: Name
    name: Name | None = None
