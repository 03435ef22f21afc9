"""Fingerprints of a prompt: of its prefix in ids, as the specification has it, and of each segment in neutral text.

``sha256(f"{model}|{tokenizer}|" + ",".join(ids))``, first 16 hex digits; a segment's text stands for its ids, so that a
long history need not be tokenised once more. The tokenizer is its digest, not its name: two vocabularies under one name
are two keys. The gateway's log and ``foreword fingerprint`` both come from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from foreword.diagnose.layout import Layout, messages_of, neutral_layout
from foreword.tokens.tokenizer import Tokenizer


def fingerprint_ids(ids: Iterable[int], tokenizer: str, model: str) -> str:
    """The fingerprint of token ids under a tokenizer's identity and a model."""
    return _digest(f"{model}|{tokenizer}|" + ",".join(map(str, ids)))


def prefix_fingerprint(prefix: str, tokenizer: Tokenizer, model: str) -> str:
    """The fingerprint of a prefix's text."""
    return fingerprint_ids(tokenizer.encode(prefix), tokenizer.identity.digest, model)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class SegmentPrints(TypedDict):
    """Fingerprints of a request's segments; None for one it does not have."""

    tools_fp: str | None
    system_fp: str | None
    history_fp: str | None


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """A request's fingerprints; None for a segment it does not have.

    Attributes:
        prefix_fp: tools and system text, as rendered.
        prefix_tokens: how long that is.
        history_fp: messages up to the last turn.
        template: the chat template's digest, or "neutral".
        bos: whether ids begin with a token the text does not have.
    """

    prefix_fp: str
    prefix_tokens: int
    tools_fp: str | None
    system_fp: str | None
    history_fp: str | None
    template: str
    bos: bool

    def as_log(self) -> dict[str, Any]:
        """The fields of a structured log line."""
        fields = asdict(self)
        segments = {name: fields.pop(name) for name in ("tools_fp", "system_fp", "history_fp")}
        return {**fields, "segments": segments}


def fingerprint_request(
    document: Any, tokenizer: Tokenizer, *, model: str = "", layout: Layout = neutral_layout, template: str = "neutral"
) -> Fingerprints:
    """The fingerprints of a request body or a text."""
    if isinstance(document, str):
        document = {"prompt": document}
    model = model or str(document.get("model") or "")
    identity = tokenizer.identity.digest
    parts = split_request(document)
    head = document if "prompt" in document else {**parts["tools"], **parts["system"], "add_generation_prompt": False}
    ids = (
        tokenizer.encode(layout(head))
        if head.get("messages") or "prompt" in head
        else tokenizer.encode(neutral_layout(head))
    )
    bare = tokenizer.encode("a")
    with_special = tokenizer.encode("a", add_special_tokens=True)
    return Fingerprints(
        prefix_fp=fingerprint_ids(ids, identity, model),
        prefix_tokens=len(ids),
        **segment_fingerprints(parts, identity, model),
        template=template,
        bos=list(bare) != list(with_special),
    )


def segment_fingerprints(parts: Mapping[str, Mapping[str, Any]], tokenizer: str, model: str) -> SegmentPrints:
    """Of each part of ``split_request``; None for one that is not there."""

    def of(body: Mapping[str, Any]) -> str | None:
        if not body:
            return None
        return _digest(f"{model}|{tokenizer}|" + neutral_layout({**body, "add_generation_prompt": False}))

    return {"tools_fp": of(parts["tools"]), "system_fp": of(parts["system"]), "history_fp": of(parts["history"])}


def split_request(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A body's tools, its leading system messages, and its history up to the last turn, each as a body of its own."""
    if "prompt" in document:
        return {"tools": {}, "system": {}, "history": {}}
    messages = messages_of(document)
    start = next(
        (n for n, message in enumerate(messages) if str(message.get("role")) not in {"system", "developer"}),
        len(messages),
    )
    tools = document.get("tools")
    return {
        "tools": {"tools": tools} if tools else {},
        "system": {"messages": messages[:start]} if start else {},
        "history": {"messages": messages[start:-1]} if len(messages) > start + 1 else {},
    }
