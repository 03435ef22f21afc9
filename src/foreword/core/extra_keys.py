"""What besides its tokens tells a block apart: LoRA adapter, multi-modal items, cache salt, prompt embeddings.

The order and the two forms are vLLM's (``generate_block_hash_extra_keys`` in vllm/v1/core/kv_cache_utils.py). Since 0.32
each value goes into the hash tagged with its source, so that no value can pass for one of another kind; older releases
hashed the bare values. KV events carry the bare values in every release.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

ExtraKeys = tuple[Any, ...]

_FRAMED = "org:"


@dataclass(frozen=True, slots=True)
class MultiModalItem:
    """One image, sound or video: its content's ``identifier``, and the tokens that stand for it in the prompt."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """A prompt given as embeddings: the rows' bytes, one row of ``bytes_per_token`` a token."""

    data: bytes
    bytes_per_token: int

    def digest(self, start: int, end: int) -> bytes:
        """SHA-256 of the rows of tokens ``start`` to ``end``; rows past the prompt's end count as absent."""
        return hashlib.sha256(self.data[start * self.bytes_per_token : end * self.bytes_per_token]).digest()


@dataclass(frozen=True, slots=True)
class CacheKeys:
    """Whom a request's blocks may be shared with: only requests whose keys are equal where they touch a block.

    Attributes:
        cache_salt: separates tenants; counts in the first block, and through the chain in all. "" is none, as in vLLM.
        lora: the adapter's name and path.
        mm: multi-modal items in the order of their offsets.
        prompt_embeds: embeddings in place of token ids.
    """

    cache_salt: str | None = None
    lora: tuple[str, str] | None = None
    mm: tuple[MultiModalItem, ...] = ()
    prompt_embeds: PromptEmbeds | None = None

    @property
    def vary_by_block(self) -> bool:
        """Whether blocks after the first can have keys unlike their neighbours'."""
        return bool(self.mm) or self.prompt_embeds is not None

    def of_block(self, start: int, end: int) -> ExtraKeys | None:
        """The tagged keys of the block of tokens ``start`` to ``end``; None when it has none."""
        keys: list[tuple[Any, ...]] = []
        if self.lora:
            keys.append(("lora", *map(_fresh, self.lora)))
        keys += [
            ("mm", _fresh(item.identifier), item.offset - start)
            for item in self.mm
            if item.offset < end and item.offset + item.length > start
        ]
        if self.cache_salt and start == 0:
            keys.append(("cache_salt", _fresh(self.cache_salt)))
        if self.prompt_embeds is not None:
            keys.append(("prompt_embeds", self.prompt_embeds.digest(start, end)))
        return tuple(keys) or None


NO_KEYS = CacheKeys()


def untag(keys: ExtraKeys | None) -> ExtraKeys | None:
    """The bare form of tagged keys: what releases before 0.32 hashed, and what KV events carry."""
    return keys and tuple(key[1:] if key[0] == "mm" else key[1] for key in keys)


def _fresh(text: str) -> str:
    """An equal string that is an object of its own.

    Pickle writes a second reference to one object as a back-reference, so the same keys would hash to two values
    depending on who made the strings. In an engine each came over the wire and is its own object; here too.
    """
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")


def frame_salt(organisation: str | None, cache_salt: str | None = None) -> str | None:
    """One cache salt for an organisation's own salt; no two pairs give the same one.

    Without an organisation the salt stays as it is (and so the hashes stay an engine's), unless it looks framed.
    """
    if organisation is not None:
        return f"{_FRAMED}{len(organisation)}:{organisation}:{cache_salt or ''}"
    return f"{_FRAMED}:{cache_salt}" if cache_salt and cache_salt.startswith(_FRAMED) else cache_salt


def parse_salt(framed: str | None) -> tuple[str | None, str | None]:
    """Organisation and salt of a salt made by :func:`frame_salt`; an unframed salt has no organisation."""
    if not framed or not framed.startswith(_FRAMED):
        return None, framed or None
    length, _, rest = framed.removeprefix(_FRAMED).partition(":")
    if not length.isdecimal():
        return None, rest
    return rest[: int(length)], rest[int(length) + 1 :] or None
