"""Prompts that are the same bytes every time: ordered segments with an owner, a volatility and a change budget.

A prompt is a Dockerfile whose layers are blocks of tokens: what never changes first, what always changes last. Assembly
refuses a segment that changes more often than one behind it, unless it is told why.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import IntEnum
from typing import Any

from foreword.errors import ForewordError

_log = logging.getLogger("foreword.assemble")


class AssemblyError(ForewordError, ValueError):
    """A prompt cannot be assembled the same way every time; ``evidence`` names the segment."""


class Volatility(IntEnum):
    """How often a segment changes: never, rarely for everyone, once a session, once a turn."""

    STATIC = 0
    SHARED = 1
    SESSION = 2
    TURN = 3


def canonical_json(value: Any) -> str:
    """One spelling for each value: sorted keys, compact separators, UTF-8 as it is.

    Raises:
        AssemblyError: a set (no order), a date or time (no one format), NaN, a key that is no string, or what JSON
            cannot say.
    """
    _check(value, "$", 0)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


_MAX_DEPTH = 100


def _check(value: Any, path: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise AssemblyError(f"{path} is nested deeper than {_MAX_DEPTH}.", path=path)
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise AssemblyError(
                    f"{path} has the key {key!r}, which is no string.", hint="Name keys with strings.", path=path
                )
            _check(inner, f"{path}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check(inner, f"{path}[{index}]", depth + 1)
    else:
        _check_leaf(value, path)


def _check_leaf(value: Any, path: str) -> None:
    if isinstance(value, AbstractSet):
        raise AssemblyError(
            f"{path} is a set, whose order changes by process.", hint="Give sorted(...) of it.", path=path
        )
    if isinstance(value, date | datetime | time):
        raise AssemblyError(
            f"{path} is a {type(value).__name__}.", hint="Format it yourself, to the day, and pass the text.", path=path
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise AssemblyError(f"{path} is {value}, which JSON cannot say.", path=path)
    if not isinstance(value, str | int | float | None | bool):
        hint = "Pass str(...) of it." if isinstance(value, Decimal) else "Pass a JSON value."
        raise AssemblyError(f"{path} is a {type(value).__name__}.", hint=hint, path=path)


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a prompt.

    Attributes:
        name: what it is called in fingerprints and findings.
        text: its text; anything but a string is written as canonical JSON.
        volatility: how often it changes.
        owner: who may change it.
        budget: how many times a day it may change; 0 for what must not.
        reason: why it stands ahead of what changes less often; None where it does not.
    """

    name: str
    text: Any
    volatility: Volatility = Volatility.STATIC
    owner: str = ""
    budget: int = 0
    reason: str | None = None

    def render(self) -> str:
        """The segment's text."""
        return self.text if isinstance(self.text, str) else canonical_json(self.text)


class ToolSet:
    """Tools in the order of their names, each in canonical form, whatever order and spelling they came in."""

    __slots__ = ("_tools",)

    def __init__(self, tools: Iterable[Mapping[str, Any]] = ()) -> None:
        by_name: dict[str, dict[str, Any]] = {}
        for tool in tools:
            name = tool_name(tool)
            if name in by_name and canonical_json(by_name[name]) != canonical_json(dict(tool)):
                raise AssemblyError(
                    f"Two different tools are called {name!r}.", hint="Give each a name of its own.", name=name
                )
            by_name[name] = json.loads(canonical_json(dict(tool)))
        self._tools = [by_name[name] for name in sorted(by_name)]

    def as_list(self) -> list[dict[str, Any]]:
        """The tools, ready for a request body."""
        return json.loads(canonical_json(self._tools))  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._tools)


def tool_name(tool: Mapping[str, Any]) -> str:
    """A tool's name in any of the APIs' forms; raises AssemblyError where it has none."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    if not isinstance(name, str) or not name:
        raise AssemblyError("A tool has no name.", hint="Give it one: tools are sorted by name.", tool=str(tool)[:80])
    return name


@dataclass(frozen=True)
class Prompt:
    """Ordered segments, tools and messages that assemble to the same bytes every time.

    Attributes:
        segments: the system text's parts, in order.
        tools: what is rendered ahead of them.
        messages: the conversation; history is kept as it was first sent.
        epoch: put first as a segment of its own; changing it invalidates every cached prefix on purpose.
    """

    segments: Sequence[Segment] = ()
    tools: ToolSet = field(default_factory=ToolSet)
    messages: Sequence[Mapping[str, Any]] = ()
    epoch: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.segments))
        object.__setattr__(self, "messages", tuple(self.messages))
        self._check_order()

    def _check_order(self) -> None:
        worst: Segment | None = None
        for segment in self.segments:
            if worst is not None and segment.volatility < worst.volatility and not worst.reason:
                raise AssemblyError(
                    f"Segment {worst.name!r} ({worst.volatility.name.lower()}) stands ahead of {segment.name!r} "
                    f"({segment.volatility.name.lower()}), so each change of it loses everything behind.",
                    hint=f"Move {worst.name!r} back, or give it a reason.",
                    segment=worst.name,
                    behind=segment.name,
                )
            if worst is None or (segment.volatility > worst.volatility and not segment.reason):
                worst = segment

    def ordered(self) -> tuple[Segment, ...]:
        """All segments, the epoch's first."""
        if self.epoch is None:
            return tuple(self.segments)
        return (Segment("epoch", f"[prompt epoch {self.epoch}]", owner="deliberate invalidation"), *self.segments)

    def text(self) -> str:
        """The system text."""
        return "\n\n".join(segment.render() for segment in self.ordered())

    def stable_text(self, up_to: Volatility = Volatility.SHARED) -> str:
        """The leading segments that change no more often than ``up_to``: what a breakpoint goes behind."""
        leading = []
        for segment in self.ordered():
            if segment.volatility > up_to:
                break
            leading.append(segment.render())
        return "\n\n".join(leading)

    def fingerprints(self) -> dict[str, str]:
        """A sha256 of each segment's text and of the tools, first 16 hex digits."""
        parts = {segment.name: segment.render() for segment in self.ordered()}
        parts["tools"] = canonical_json(self.tools.as_list())
        return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in parts.items()}

    def compare(self, earlier: Prompt) -> list[str]:
        """What changed since an earlier prompt, in words; a new epoch is told apart from an accident and is logged."""
        before, after = earlier.fingerprints(), self.fingerprints()
        moved = [name for name in after if before.get(name) != after[name]]
        if "epoch" in moved:
            _log.info("prompt.epoch_changed before=%s after=%s", earlier.epoch, self.epoch)
        owners = {segment.name: segment for segment in self.ordered()}
        return [_describe(name, owners.get(name), self.epoch) for name in moved]


def _describe(name: str, segment: Segment | None, epoch: str | None) -> str:
    if name == "epoch":
        return f"epoch is now {epoch!r}: every cached prefix is invalidated on purpose"
    if segment is None:
        return f"{name} changed"
    owner = f", owned by {segment.owner}" if segment.owner else ""
    return f"{name} changed ({segment.volatility.name.lower()}{owner}, {segment.budget} changes a day allowed)"
