"""A tokenizer of bytes with a chat template, so that a gateway can be tested without fetching either."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from foreword.errors import TemplateError, TokenizerError
from foreword.tokens.boundaries import Boundaries
from foreword.tokens.tokenizer import SpecialTokens, TokenIds, TokenizerIdentity

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")
_PIECES = re.compile("|".join(map(re.escape, SPECIAL)))


class ByteTokenizer:
    """An id for each UTF-8 byte, and three special tokens from 256 on: ``<s>``, ``<|im_start|>``, ``<|im_end|>``."""

    def __init__(self, name: str = "bytes") -> None:
        self.key = name
        self.boundaries = Boundaries(reason="bytes need no cache")
        self.identity = TokenizerIdentity(name, "foreword.testing", "1", hashlib.sha256(b"bytes").hexdigest())
        self.vocab_size = 256 + len(SPECIAL)
        self.encoder_fallbacks = 0

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:
        """``<s>`` in front when special tokens are asked for, then the bytes."""
        ids = [256] if add_special_tokens else []
        position = 0
        for found in _PIECES.finditer(text):
            ids += text[position : found.start()].encode()
            ids.append(256 + SPECIAL.index(found[0]))
            position = found.end()
        return TokenIds.of(ids + list(text[position:].encode()))

    def check(self, text: str) -> None:
        """Every text will do."""

    def encode_core(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text."""
        return [self.encode(text).buffer for text in texts]

    def assemble(self, core: bytes, add_special_tokens: bool) -> bytes:  # noqa: FBT001 - the protocol's signature
        """The ids of a whole text."""
        return TokenIds.of([256]).buffer + core if add_special_tokens else core

    def with_special_tokens(
        self, allowed: SpecialTokens | None = None, disallowed: SpecialTokens | None = None
    ) -> ByteTokenizer:
        """Refused: its special tokens are fixed."""
        raise TokenizerError(f"The special tokens are fixed: {allowed!r}, {disallowed!r}.")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The bytes' text; what is no UTF-8 becomes U+FFFD."""
        wrong = next((token for token in ids if token >= self.vocab_size), None)
        if wrong is not None:
            raise TokenizerError(f"The id {wrong} is outside the vocabulary of {self.vocab_size}.")
        special = [b"" if skip_special_tokens else token.encode() for token in SPECIAL]
        return b"".join(bytes([i]) if i < 256 else special[i - 256] for i in ids).decode("utf-8", "replace")

    def token_to_id(self, token: str) -> int | None:
        """The id of a special token or of a one-byte string."""
        if token in SPECIAL:
            return 256 + SPECIAL.index(token)
        return ord(token) if len(token) == 1 and token.isascii() else None

    def id_to_token(self, token_id: int) -> str | None:
        """The string of an id."""
        if token_id < 256:
            return chr(token_id)
        return SPECIAL[token_id - 256] if token_id < self.vocab_size else None


class ChatMLTemplate:
    """ChatML with Hermes tools. Refuses the role ``martian``; leaves out messages of the role ``whisper``."""

    source = "<|im_start|> ... <tool_call> ... <think>"

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        /,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt text."""
        text = f"<|im_start|>system\n<tools>{json.dumps(tools)}</tools><|im_end|>\n" if tools else ""
        for message in messages:
            if message["role"] == "martian":
                raise TemplateError("Only system, user, assistant and tool roles are supported!")
            if message["role"] != "whisper":
                text += f"<|im_start|>{message['role']}\n{_body(message)}<|im_end|>\n"
        opened = "<think>" if variables.get("enable_thinking") else ""
        return text + (f"<|im_start|>assistant\n{opened}" if add_generation_prompt else "")


def _body(message: dict[str, Any]) -> str:
    calls = [f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls", ())]
    return "".join([str(message.get("content") or ""), *calls])
