"""Cache breakpoints of Anthropic's API: where ``cache_control`` stands, how many tokens that is, and what it counts.

The prompt is tools, then system, then messages. A breakpoint's place in tokens is where the prompt would begin to differ
if everything behind it were another text: the prompt is rendered up to the breakpoint's block, and its ids compared with
those of the whole. Only full blocks can be kept, so the place is rounded down to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec

from foreword.errors import TemplateError
from foreword.gateway.chat import ChatPrompt
from foreword.gateway.errors import Refusal
from foreword.gateway.generate import CacheReporting
from foreword.gateway.message_input import chat_messages, chat_tools
from foreword.gateway.messages import require_template, template_messages
from foreword.gateway.protocol.messages import (
    CacheControl,
    CountRequest,
    InputMessage,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    Ttl,
)
from foreword.generation import CacheBreakpoint

MAX_BREAKPOINTS = 4
SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}

_OTHER = "\ue000"
"""A text no prompt begins with, to stand for whatever else could follow a breakpoint."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One ``cache_control``: ``index`` of the tool, system block or message, ``block`` of the block in a message."""

    section: Literal["tools", "system", "messages"]
    index: int
    block: int
    ttl: Ttl
    place: str


def find_marks(request: CountRequest) -> list[Mark]:
    """The marks in the prompt's order, that of the request itself at its end; raises Refusal when a rule is broken."""
    marks = [*_tool_marks(request), *_system_marks(request), *_message_marks(request)]
    automatic = _automatic(request)
    if automatic is not None and automatic.place not in [mark.place for mark in marks]:
        marks.append(automatic)
    _check(marks)
    return marks


def _tool_marks(request: CountRequest) -> Iterator[Mark]:
    for index, tool in enumerate(request.tools or ()):
        if tool.cache_control is not None:
            yield Mark("tools", index, 0, _ttl(tool.cache_control), f"tools[{index}]")


def _system_marks(request: CountRequest) -> Iterator[Mark]:
    for index, block in enumerate(request.system if isinstance(request.system, list) else ()):
        if block.cache_control is not None:
            _check_markable(block, f"system[{index}]")
            yield Mark("system", index, 0, _ttl(block.cache_control), f"system[{index}]")


def _message_marks(request: CountRequest) -> Iterator[Mark]:
    for index, turn in enumerate(request.messages):
        for number, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
            if block.cache_control is not None:
                place = f"messages[{index}].content[{number}]"
                _check_markable(block, place)
                yield Mark("messages", index, number, _ttl(block.cache_control), place)


def _automatic(request: CountRequest) -> Mark | None:
    """The mark that ``cache_control`` of the whole request sets: on the last block."""
    if request.cache_control is None or not request.messages:
        return None
    index, content = len(request.messages) - 1, request.messages[-1].content
    block = max(0, len(content) - 1) if isinstance(content, list) else 0
    return Mark("messages", index, block, _ttl(request.cache_control), f"messages[{index}].content[{block}]")


def _ttl(control: CacheControl) -> Ttl:
    return control.ttl or "5m"


def _check_markable(block: object, place: str) -> None:
    if isinstance(block, ThinkingBlock | RedactedThinkingBlock) or (isinstance(block, TextBlock) and not block.text):
        message = f"{place} has 'cache_control', which neither empty text nor reasoning can have."
        raise Refusal(message, param=f"{place}.cache_control", code="invalid_value")


def _check(marks: Sequence[Mark]) -> None:
    if len(marks) > MAX_BREAKPOINTS:
        message = f"{len(marks)} blocks have 'cache_control', over the limit of {MAX_BREAKPOINTS}."
        raise Refusal(message, param="cache_control", code="too_many")
    for before, after in pairwise(marks):
        if (before.ttl, after.ttl) == ("5m", "1h"):
            message = f"{after.place} has the ttl '1h' behind {before.place} with '5m': longer lives come first."
            raise Refusal(message, param=f"{after.place}.cache_control.ttl", code="invalid_value")


async def locate(
    marks: Sequence[Mark],
    request: CountRequest,
    prompt: ChatPrompt,
    *,
    variables: dict[str, Any],
    block_size: int,
    tenant: str,
) -> list[int]:
    """Where each mark stands: tokens of whole blocks before it. Never all of the prompt: its last token is computed."""
    last, places = (len(prompt.ids) - 1) // block_size * block_size, [0]
    for mark in marks:
        text = _render(prompt, _cut(request, mark), variables)
        common = 0
        if text is not None:
            ids = (await prompt.loaded.encode(text, tenant=tenant)).ids
            common = _common_prefix(ids, prompt.ids) // block_size * block_size
        places.append(max(places[-1], min(common, last)))
    return places[1:]


def _cut(request: CountRequest, mark: Mark) -> CountRequest:
    """The request up to and with the marked block; another message stands for what follows tools or system."""
    other = [InputMessage(role="user", content=_OTHER)]
    if mark.section == "tools":
        return msgspec.structs.replace(
            request, tools=(request.tools or [])[: mark.index + 1], system=None, messages=other
        )
    if mark.section == "system":
        return msgspec.structs.replace(request, system=(request.system or [])[: mark.index + 1], messages=other)
    turn = request.messages[mark.index]
    content = turn.content if isinstance(turn.content, str) else turn.content[: mark.block + 1]
    turns = [*request.messages[: mark.index], InputMessage(role=turn.role, content=content)]
    return msgspec.structs.replace(request, messages=turns)


def _render(prompt: ChatPrompt, request: CountRequest, variables: dict[str, Any]) -> str | None:
    """The prompt's text without an answer begun; None when the template takes no such beginning."""
    template = require_template(prompt.loaded)
    tools = [msgspec.to_builtins(tool) for tool in chat_tools(request.tools)] if prompt.offers_tools else []
    try:
        messages = template_messages(chat_messages(request), template)
        return template.render(messages, tools=tools or None, add_generation_prompt=False, **variables)
    except TemplateError:
        return None


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal: halving, since runs compare faster than single ids."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What a prompt read from the cache and what its breakpoints wrote, in tokens; the rest was neither."""

    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    @property
    def written(self) -> int:
        """Tokens written, whatever their life."""
        return self.written_5m + self.written_1h


def keep(marks: Sequence[Mark], places: Sequence[int]) -> tuple[CacheBreakpoint, ...]:
    """What the worker is asked to keep."""
    return tuple(CacheBreakpoint(place, SECONDS[mark.ttl]) for mark, place in zip(marks, places, strict=True))


def count(cached: int, marks: Sequence[Mark], places: Sequence[int], reporting: CacheReporting) -> CacheUsage:
    """What a worker's cached tokens are in Anthropic's terms.

    Up to the last breakpoint everything is read or written, each part with the life of the breakpoint that ends it;
    behind it, neither. Without breakpoints nothing was asked to be written, and what was found is read.
    """
    if not marks:
        return CacheUsage(reporting.reported(cached))
    read = reporting.reported(min(cached, places[-1]))
    written: dict[Ttl, int] = {"5m": 0, "1h": 0}
    start = read
    for mark, place in zip(marks, places, strict=True):
        end = reporting.reported(place)
        written[mark.ttl] += max(0, end - start)
        start = max(start, end)
    return CacheUsage(read, written["5m"], written["1h"])
