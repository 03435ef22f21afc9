"""Small words for building cases: stable prose, request bodies, tools, logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foreword.diagnose.layout import Layout, neutral_layout

Body = Any
_WORDS = [
    "answer",
    "carefully",
    "keep",
    "records",
    "short",
    "never",
    "promise",
    "delivery",
    "dates",
    "ask",
    "before",
    "closing",
    "tickets",
    "prefer",
    "plain",
    "words",
    "check",
    "the",
    "order",
    "number",
    "twice",
    "thank",
    "people",
    "once",
    "be",
    "exact",
    "about",
    "money",
    "say",
    "what",
    "you",
    "know",
    "hand",
    "over",
    "to",
    "a",
    "person",
    "when",
    "unsure",
    "quote",
    "the",
    "policy",
    "by",
    "section",
]


def prose(words: int, seed: int = 0) -> str:
    """Stable prose of that many words, in lines of twelve."""
    rng = random.Random(seed)
    chosen = [rng.choice(_WORDS) for _ in range(words)]
    return "\n".join(" ".join(chosen[i : i + 12]) + "." for i in range(0, words, 12))


def user(text: Any) -> Body:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: Any, **fields: Any) -> Body:
    """An assistant message."""
    return {"role": "assistant", "content": text, **fields}


def system(text: Any) -> Body:
    """A system message."""
    return {"role": "system", "content": text}


def talk(turns: int, start: int = 0) -> list[Body]:
    """That many finished exchanges, the same ones each time."""
    pairs = [
        (user(f"Question {n}: {prose(20, n)}"), assistant(f"Answer {n}: {prose(40, n + 500)}"))
        for n in range(start, start + turns)
    ]
    return [message for pair in pairs for message in pair]


def chat(*messages: Body, **fields: Any) -> Body:
    """A chat-completions body."""
    return {"model": "gpt-5.2", **fields, "messages": list(messages)}


def claude(system_text: Any, *messages: Body, **fields: Any) -> Body:
    """A messages body."""
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 1024,
        **fields,
        "system": system_text,
        "messages": list(messages),
    }


def tool(name: str, description: str = "", **properties: str) -> Body:
    """A function tool in chat form."""
    fields = {key: {"type": kind} for key, kind in (properties or {"path": "string"}).items()}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description or f"{name}: {prose(20, len(name))}",
            "parameters": schema,
        },
    }


def tools(count: int) -> list[Body]:
    """That many tools, in the order of their names."""
    return [tool(f"tool_{n:02d}", f"Tool {n} does this: {prose(25, n)}") for n in range(count)]


def block(text: str, *, marked: bool = False) -> Body:
    """A text block, with a cache marker or without."""
    return {"type": "text", "text": text, **({"cache_control": {"type": "ephemeral"}} if marked else {})}


@dataclass(frozen=True)
class Case:
    """One reproduction: its inputs, and the verdict a tool should give.

    Attributes:
        number: the case's number in the collection it was taken from.
        code: the cause that must come first.
        more: codes that must be among the others.
        a: the earlier request, or None for a log.
        b: the later one.
        fixed: the two requests after the fix, written by hand; gains are checked against them.
        log: lines of a log, for causes that one pair does not show.
        make_tokenizer: for cases about tokenizers: A's and B's.
        layouts: A's and B's layout.
        ids: the ids as logged, for cases about ids.
    """

    number: str
    code: str
    title: str
    a: Body = None
    b: Body = None
    fixed: tuple[Body, Body] | None = None
    log: Sequence[Any] = ()
    more: tuple[str, ...] = ()
    layouts: tuple[Layout, Layout] = (neutral_layout, neutral_layout)
    ids: tuple[Sequence[int], Sequence[int]] | None = None
    bos: bool = False
    same_session: bool | None = None
    provider: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


CASES: list[Callable[[], Case]] = []


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    """Put a case on the list."""
    CASES.append(function)
    return function
