"""Log probabilities in the shapes of chat and of text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreword.gateway.tokenizers import LoadedTokenizer
from foreword.generation import TokenLogprobs

FLOOR = -9999.0
"""Stands for minus infinity, which JSON has not."""


def chat_logprobs(rows: Sequence[TokenLogprobs], loaded: LoadedTokenizer, top: int) -> dict[str, Any]:
    """``logprobs`` of a chat choice."""
    return {"content": [_chat_row(row, loaded, top) for row in rows]}


def _chat_row(row: TokenLogprobs, loaded: LoadedTokenizer, top: int) -> dict[str, Any]:
    likeliest = [_token(token, logprob, loaded) for token, logprob in row.top[:top]]
    return {**_token(row.token_id, row.logprob, loaded), "top_logprobs": likeliest}


def _token(token: int, logprob: float, loaded: LoadedTokenizer) -> dict[str, Any]:
    text = loaded.tokenizer.decode([token], skip_special_tokens=False)
    return {"token": text, "logprob": max(logprob, FLOOR), "bytes": list(text.encode())}


def completion_logprobs(
    rows: Sequence[TokenLogprobs], loaded: LoadedTokenizer, top: int, offset: int
) -> dict[str, Any]:
    """``logprobs`` of a text choice whose text so far is ``offset`` characters."""
    texts = [loaded.tokenizer.decode([row.token_id], skip_special_tokens=False) for row in rows]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(row.logprob, FLOOR) for row in rows],
        "top_logprobs": [_likeliest(row, loaded, top) for row in rows],
        "text_offset": offsets,
    }


def _likeliest(row: TokenLogprobs, loaded: LoadedTokenizer, top: int) -> dict[str, float]:
    pairs = row.top[:top]
    return {
        loaded.tokenizer.decode([token], skip_special_tokens=False): max(logprob, FLOOR) for token, logprob in pairs
    }
