"""Cache breakpoints: which there are, where they stand in tokens, and what they count."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from foreword.gateway.breakpoints import CacheUsage, Mark, count, find_marks, keep, locate
from foreword.gateway.chat import ChatPrompt
from foreword.gateway.errors import Refusal
from foreword.gateway.generate import CacheReporting
from foreword.gateway.message_input import chat_messages, chat_tools
from foreword.gateway.messages import render_prompt, template_messages
from foreword.gateway.protocol.messages import CountRequest
from foreword.gateway.tokenizers import LoadedTokenizer
from foreword.generation import CacheBreakpoint
from foreword.testing.chat import ByteTokenizer, ChatMLTemplate
from foreword.tokens.token_cache import CachedTokenizer

Json = dict[str, Any]
FIVE: Json = {"cache_control": {"type": "ephemeral"}}
HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
EXACT = CacheReporting()


class SystemInUser(ChatMLTemplate):
    """A template that puts the system text into the first user message, as Gemma's does."""

    def render(self, messages: Any, /, **options: Any) -> str:
        """The prompt text."""
        first, *rest = messages
        if first["role"] == "system":
            first, *rest = rest
            first = {**first, "content": f"{messages[0]['content']}\n\n{first['content']}"}
        return super().render([first, *rest], **options)


class RefusesToEndInSystem(ChatMLTemplate):
    """A template that takes no prompt of fewer than two messages."""

    def render(self, messages: Any, /, **options: Any) -> str:
        """The prompt text."""
        if len(messages) < 3:
            from foreword.errors import TemplateError

            raise TemplateError("Too few messages.")
        return super().render(messages, **options)


def parse(**fields: Any) -> CountRequest:
    """A request as it comes over the wire."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return msgspec.json.decode(msgspec.json.encode(body), type=CountRequest)


def text(content: str, **more: Any) -> Json:
    """A text block."""
    return {"type": "text", "text": content, **more}


def user(*blocks: Json) -> Json:
    """A user's message."""
    return {"role": "user", "content": list(blocks)}


def prepare(request: CountRequest, template: ChatMLTemplate) -> tuple[ChatPrompt, str]:
    """The prompt of a request."""
    loaded = LoadedTokenizer("m", "here", CachedTokenizer(ByteTokenizer()), template)
    tools = chat_tools(request.tools)
    prompt = render_prompt(loaded, template_messages(chat_messages(request), template), tools, {})
    return ChatPrompt(prompt, loaded.tokenizer.encode(prompt), loaded, None, bool(tools)), prompt


async def places(request: CountRequest, template: ChatMLTemplate | None = None, block_size: int = 1) -> list[str]:
    """The text in front of each mark: a block of one token makes places exact."""
    prompt, _ = prepare(request, template or ChatMLTemplate())
    found = await locate(find_marks(request), request, prompt, variables={}, block_size=block_size, tenant="")
    loaded = prompt.loaded.tokenizer
    return [loaded.decode(list(prompt.ids)[:place], skip_special_tokens=False) for place in found]


async def test_order_is_tools_system_messages() -> None:
    """Each mark stands at the end of its block, before whatever the template puts behind it."""
    tool = {"name": "clock", "input_schema": {"type": "object"}}
    request = parse(
        messages=[user(text("Hello there.", **FIVE)), {"role": "assistant", "content": "Hi."}, user(text("Bye."))],
        system=[text("Be brief.", **FIVE), text("Be kind.")],
        tools=[{**tool, **FIVE}, {**tool, "name": "watch"}],
    )
    tools, system, message = await places(request)
    assert tools.endswith('{"name": "clock", "parameters": {"type": "object"}}}')
    assert system.endswith(
        'watch", "parameters": {"type": "object"}}}]</tools><|im_end|>\n<|im_start|>system\nBe brief.'
    )
    assert message.endswith(
        "<|im_start|>system\nBe brief.\nBe kind.<|im_end|>\n<|im_start|>user\nHello there.<|im_end|>\n"
    )


async def test_full_blocks_only_and_never_the_last_token() -> None:
    """A place is rounded down to full blocks, and the prompt's last token is always left to compute."""
    request = parse(system=[text("x" * 40, **FIVE)], messages=[user(text("y" * 60, **FIVE))])
    prompt, _ = prepare(request, ChatMLTemplate())
    marks = find_marks(request)
    found = await locate(marks, request, prompt, variables={}, block_size=16, tenant="")
    assert found == [48 // 16 * 16, (8 + 40 + 2 + 6 + 60 + 2) // 16 * 16]
    large = await locate(marks, request, prompt, variables={}, block_size=len(prompt.ids), tenant="")
    assert large == [0, 0]


async def test_mark_inside_a_message() -> None:
    """A mark on one of several blocks stands where the next block begins."""
    request = parse(messages=[user(text("The document.", **FIVE), text("The question."))])
    assert await places(request) == ["<|im_start|>user\nThe document."]


async def test_template_that_moves_the_system_text() -> None:
    """Where the template puts the system text into the user's message, the mark stands behind it there."""
    request = parse(system=[text("Be brief.", **FIVE)], messages=[user(text("Hello"))])
    assert await places(request, SystemInUser()) == ["<|im_start|>user\nBe brief.\n\n"]


async def test_beginning_that_the_template_refuses() -> None:
    """A mark whose beginning cannot be rendered counts as the mark before it: nothing is promised that is not known."""
    turns = [user(text("One")), {"role": "assistant", "content": "Two"}, user(text("Three", **FIVE))]
    request = parse(system=[text("Be brief.", **FIVE)], messages=turns)
    system, message = await places(request, RefusesToEndInSystem())
    assert system == ""
    assert message.endswith("Three<|im_end|>\n")


async def test_tool_results_and_calls_can_be_marked() -> None:
    """Marks on calls and results stand behind them."""
    turns = [
        user(text("Time?")),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "clock", "input": {}, **FIVE}]},
        user({"type": "tool_result", "tool_use_id": "t", "content": "noon", **FIVE}, text("So?")),
    ]
    call, result = await places(parse(messages=turns))
    assert call.endswith("</tool_call><|im_end|>\n")
    assert result.endswith("<|im_start|>tool\nnoon<|im_end|>\n")


def test_automatic_mark() -> None:
    """A mark on the request itself is one on its last block, unless that has one."""
    (mark,) = find_marks(parse(**HOUR, messages=[user(text("a"), text("b"))]))
    assert (mark.place, mark.ttl) == ("messages[0].content[1]", "1h")
    assert [mark.ttl for mark in find_marks(parse(**FIVE))] == ["5m"]
    assert [mark.ttl for mark in find_marks(parse(**FIVE, messages=[user(text("a", **HOUR))]))] == ["1h"]


@pytest.mark.parametrize(
    "fields,param",
    [
        ({"messages": [user(*[text(str(n), **FIVE) for n in range(5)])]}, "cache_control"),
        ({"system": [text("a", **FIVE)] * 4, **FIVE}, "cache_control"),
        (
            {"system": [text("a", **FIVE)], "messages": [user(text("b", **HOUR))]},
            "messages[0].content[0].cache_control.ttl",
        ),
        ({"messages": [user(text("", **FIVE))]}, "messages[0].content[0].cache_control"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x", **FIVE}]}]},
            "messages[0].content[0].cache_control",
        ),
    ],
)
def test_rules(fields: Json, param: str) -> None:
    """At most four marks, longer lives first, none on empty text or reasoning."""
    with pytest.raises(Refusal) as caught:
        find_marks(parse(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


def marks(*ttls: Any) -> list[Mark]:
    """Marks with these lives."""
    return [Mark("messages", index, 0, ttl, "") for index, ttl in enumerate(ttls)]


@pytest.mark.parametrize(
    "cached,ttls,places,usage",
    [
        (0, [], [], CacheUsage(0)),
        (96, [], [], CacheUsage(96)),
        (0, ["5m"], [64], CacheUsage(0, 64)),
        (64, ["5m"], [64], CacheUsage(64)),
        (96, ["5m"], [64], CacheUsage(64)),
        (32, ["5m"], [64], CacheUsage(32, 32)),
        (0, ["1h", "5m"], [64, 96], CacheUsage(0, 32, 64)),
        (64, ["1h", "5m"], [64, 96], CacheUsage(64, 32, 0)),
        (80, ["1h", "5m"], [64, 96], CacheUsage(80, 16, 0)),
        (640, ["1h", "5m"], [592, 896], CacheUsage(640, 256, 0)),  # the example of docs/prompt-caching.md
        (16, ["1h", "1h", "5m"], [32, 64, 64], CacheUsage(16, 0, 48)),
    ],
)
def test_counts(cached: int, ttls: list[Any], places: list[int], usage: CacheUsage) -> None:
    """Read up to the hit, written from there to each mark with its life, nothing behind the last."""
    assert count(cached, marks(*ttls), places, EXACT) == usage


def test_counts_under_a_provider_rule() -> None:
    """Places and hits are told in the provider's steps, and those under its minimum not at all."""
    rule = CacheReporting(1024, 128)
    assert count(0, marks("5m"), [1008], rule) == CacheUsage()
    assert count(0, marks("1h", "5m"), [1008, 2000], rule) == CacheUsage(0, 1920, 0)
    assert count(1152, marks("5m"), [1300], rule) == CacheUsage(1152, 128)


def test_what_the_worker_is_asked_to_keep() -> None:
    """Each place with its life in seconds."""
    assert keep(marks("1h", "5m"), [64, 96]) == (CacheBreakpoint(64, 3600), CacheBreakpoint(96, 300))
