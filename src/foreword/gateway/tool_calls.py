"""Tool calls in generated text: Hermes/Qwen, Llama 3, Mistral and pythonic forms, found while the text streams."""

from __future__ import annotations

import ast
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_CALLS = 128


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call the model made; ``arguments`` is JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way that models write calls.

    Attributes:
        markers: a call begins with one of these; text before it is content.
        only_at_start: a marker counts only at the start of the answer.
        parse: the calls in the text from a marker on; None when it is not calls after all.
        special: the marker is a special token, which must not be skipped when decoding.
    """

    name: str
    markers: tuple[str, ...]
    parse: Callable[[str], list[ParsedCall] | None]
    only_at_start: bool = False
    special: bool = False


class ToolCallParser:
    """Splits a stream of text into content and calls. A possible marker is held back until it is decided."""

    def __init__(self, format_: ToolFormat) -> None:
        self._format = format_
        self._held = ""
        self._in_calls = False
        self._at_start = True

    def push(self, text: str) -> str:
        """Take more text; returns what is certainly content."""
        self._held += text
        if self._in_calls:
            return ""
        if self._format.only_at_start and not self._at_start:
            return self._release(len(self._held))
        place = self._find_marker()
        if place is not None:
            self._in_calls = True
            return self._release(place)
        return self._release(len(self._held) - self._possible_marker())

    def finish(self) -> tuple[str, list[ParsedCall]]:
        """The end of the text: content still held, and the calls."""
        calls = self._format.parse(self._held) if self._in_calls else None
        rest, self._held = self._held, ""
        return ("", calls[:MAX_CALLS]) if calls else (rest, [])

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        if text.strip():
            self._at_start = False
        return text

    def _find_marker(self) -> int | None:
        if self._format.only_at_start:
            start = len(self._held) - len(self._held.lstrip())
            return start if self._held.startswith(self._format.markers, start) else None
        places = [place for marker in self._format.markers if (place := self._held.find(marker)) >= 0]
        return min(places, default=None)

    def _possible_marker(self) -> int:
        """Characters at the end that could be the start of a marker."""
        longest = max(map(len, self._format.markers))
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(marker.startswith(self._held[-length:]) for marker in self._format.markers):
                return length
        if self._format.only_at_start and not self._held.strip():
            return len(self._held)
        return 0


def _call_of(value: Any) -> ParsedCall | None:
    """A call from ``{"name", "arguments" | "parameters"}``."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ParsedCall(value["name"], text)


def _calls_of(values: Sequence[Any]) -> list[ParsedCall] | None:
    calls = [call for value in values if (call := _call_of(value)) is not None]
    return calls if calls and len(calls) == len(values) else None


_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def parse_hermes(text: str) -> list[ParsedCall] | None:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number of them."""
    try:
        return _calls_of([json.loads(found) for found in _HERMES.findall(text)])
    except (ValueError, RecursionError):
        return None


def parse_mistral(text: str) -> list[ParsedCall] | None:
    """``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or since v11 ``[TOOL_CALLS]name[ARGS]{...}`` or ``name{...}``."""
    calls: list[ParsedCall] = []
    for part in filter(None, map(str.strip, text.split("[TOOL_CALLS]"))):
        try:
            found = _calls_of(json.loads(part)) if part.startswith("[") else _named_call(part)
        except (ValueError, RecursionError):
            return None
        if not found:
            return None
        calls += found
    return calls or None


def _named_call(text: str) -> list[ParsedCall] | None:
    name, brace, arguments = text.partition("{")
    name = name.replace("[ARGS]", "").partition("[CALL_ID]")[0].strip()
    if not name or not brace:
        return None
    json.loads(brace + arguments)
    return [ParsedCall(name, brace + arguments)]


def parse_llama3(text: str) -> list[ParsedCall] | None:
    """``{"name": ..., "parameters": {...}}``, several separated by ``;``, with or without ``<|python_tag|>`` in front."""
    decoder = json.JSONDecoder()
    rest = text.strip().removeprefix("<|python_tag|>").strip()
    values: list[Any] = []
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        values.append(value)
        rest = rest[end:].lstrip(" \n;")
    return _calls_of(values)


def parse_pythonic(text: str) -> list[ParsedCall] | None:
    """``[get_weather(city="Paris"), now()]``: a Python list of calls with literal keyword arguments."""
    try:
        tree = ast.parse(text.strip().removeprefix("<|python_start|>").removesuffix("<|python_end|>"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.List) or not tree.elts:
        return None
    calls = [_pythonic_call(node) for node in tree.elts]
    return None if None in calls else [call for call in calls if call is not None]


def _pythonic_call(node: ast.expr) -> ParsedCall | None:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        return None
    if not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    try:
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        return ParsedCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))
    except (ValueError, TypeError, RecursionError):
        return None


HERMES = ToolFormat("hermes", ("<tool_call>",), parse_hermes)
MISTRAL = ToolFormat("mistral", ("[TOOL_CALLS]",), parse_mistral, special=True)
LLAMA3 = ToolFormat("llama3", ("<|python_tag|>", '{"name"', '{ "name"'), parse_llama3, only_at_start=True, special=True)
PYTHONIC = ToolFormat("pythonic", ("[",), parse_pythonic, only_at_start=True)


def detect_format(template: str) -> ToolFormat:
    """The form that a chat template teaches its model; Hermes when it says nothing, being the most common."""
    for format_, signs in (
        (MISTRAL, ("[TOOL_CALLS]",)),
        (HERMES, ("<tool_call>",)),
        (PYTHONIC, ("func_name1(", "[func_name", "<|python_start|>")),
        (LLAMA3, ("<|python_tag|>", '"parameters": dictionary', "<|eom_id|>")),
    ):
        if any(sign in template for sign in signs):
            return format_
    return HERMES
