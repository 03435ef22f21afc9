"""A request as layers, the way a container image is looked at: what each holds, what of it was reused, what was out of reach."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foreword.diagnose.captures import Capture
from foreword.diagnose.diff import Diff, diff_prompts
from foreword.diagnose.layout import Layout, messages_of
from foreword.diagnose.texts import common_prefix
from foreword.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Layer:
    """One tool, system text or message, or the frame that the template puts around them.

    Attributes:
        start: its first token, counted over the layers.
        tokens: how long it is; 0 where the template leaves it out.
        state: "reused", "lost" (identical in an earlier request and out of reach), "new", or "unread" where the
            template leaves it out.
    """

    name: str
    path: str
    text: str
    start: int
    tokens: int
    state: str


@dataclass(frozen=True, slots=True)
class Dive:
    """A request's layers, its length in tokens as rendered, and the verdict against the request before it."""

    source: str
    layers: tuple[Layer, ...]
    tokens: int
    diff: Diff | None

    @property
    def efficiency(self) -> float:
        """The share of tokens that were reused, of those that an earlier request had too."""
        reused = sum(layer.tokens for layer in self.layers if layer.state == "reused")
        lost = sum(layer.tokens for layer in self.layers if layer.state == "lost")
        return reused / (reused + lost) if reused + lost else 1.0


def dive(capture: Capture, earlier: Capture | None, tokenizer: Tokenizer, layout: Layout) -> Dive:
    """Lay a request open, against the one before it where there is one."""
    parts = list(_parts(capture.document))
    known = list(_parts(earlier.document)) if earlier else []
    same = common_prefix([text for _, _, text in parts], [text for _, _, text in known])
    before = {text for _, _, text in known}
    has_tools = _renders_tools(capture.document, layout)
    layers: list[Layer] = []
    start = 0
    for index, (name, path, text) in enumerate(parts):
        if path.startswith("tools[") and not has_tools:
            layers.append(Layer(name, path, text, start, 0, "unread"))
            continue
        count = len(tokenizer.encode(text))
        state = "reused" if index < same else "lost" if text in before else "new"
        layers.append(Layer(name, path, text, start, count, state))
        start += count
    diff = diff_prompts(earlier.document, capture.document, tokenizer, layout=layout) if earlier else None
    total = diff.b_tokens if diff else len(tokenizer.encode(layout(capture.document)))
    if total > start:
        layers.append(Layer("frame", "", "", start, total - start, "reused" if 0 < len(parts) == same else "new"))
    return Dive(capture.source, tuple(layers), total, diff)


def _renders_tools(document: Any, layout: Layout) -> bool:
    """Whether the template puts the tools anywhere; many small models' do not."""
    if isinstance(document, str) or not document.get("tools"):
        return False
    return layout({**document, "tools": None}) != layout(document)


def _parts(document: Any) -> Iterator[tuple[str, str, str]]:
    """Name, path and text of each layer, in the order they are rendered."""
    if isinstance(document, str) or "prompt" in document:
        text = document if isinstance(document, str) else str(document["prompt"])
        yield from ((f"lines {n * 20 + 1}-", f"char {at}", part) for n, (at, part) in enumerate(_chunks(text)))
        return
    for index, tool in enumerate(document.get("tools") or ()):
        function = tool.get("function", tool) if isinstance(tool, dict) else {}
        yield f"tool {function.get('name', index)}", f"tools[{index}]", json.dumps(tool, ensure_ascii=False)
    for index, message in enumerate(messages_of(document)):
        content = message.get("content")
        rest = {key: value for key, value in message.items() if key not in {"role", "content"} and value}
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
        yield (
            str(message.get("role") or message.get("type")),
            f"messages[{index}]",
            text + (json.dumps(rest, ensure_ascii=False) if rest else ""),
        )


def _chunks(text: str, lines: int = 20) -> Iterator[tuple[int, str]]:
    rows, at = text.splitlines(keepends=True), 0
    for start in range(0, len(rows), lines):
        part = "".join(rows[start : start + lines])
        yield at, part
        at += len(part)


def table(dives: Sequence[Dive]) -> str:
    """The layers as lines of text."""
    blocks = []
    for one in dives:
        head = f"{one.source}: {one.tokens:,} tokens, {one.efficiency:.0%} of what could be reused was"
        rows = (
            f"  {layer.start:>8,} {layer.tokens:>7,}  {layer.state:<6}  {layer.name:<20} {layer.text[:60]!r}"
            for layer in one.layers
        )
        blocks.append("\n".join([head, *rows]))
    return "\n\n".join(blocks)
