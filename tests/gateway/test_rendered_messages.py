"""What a chat template leaves out is noticed, whatever else the prompt says."""

from __future__ import annotations

from typing import Any

import pytest

from foreword.gateway.errors import Refusal
from foreword.gateway.messages import render_prompt
from foreword.gateway.protocol.chat import Function, Tool
from foreword.gateway.tokenizers import LoadedTokenizer
from foreword.testing.chat import ByteTokenizer
from foreword.tokens.chat_template import ChatTemplate
from foreword.tokens.token_cache import CachedTokenizer

WITHOUT_TOOLS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
WITH_TOOLS = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}" + WITHOUT_TOOLS
TOOLS = [Tool(function=Function(name="weather")), Tool(function=Function(name="time"))]
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "weather time"}]


def loaded(source: str) -> LoadedTokenizer:
    """A tokenizer with this chat template."""
    return LoadedTokenizer("m", "here", CachedTokenizer(ByteTokenizer("m")), ChatTemplate(source))


def test_tools_whose_names_are_in_a_message() -> None:
    """A template without a place for tools refuses them though the user says their names."""
    with pytest.raises(Refusal, match="no place for tools: 'weather'") as caught:
        render_prompt(loaded(WITHOUT_TOOLS), ASKED, TOOLS, {})
    assert caught.value.param == "tools"


def test_tools_that_are_shown() -> None:
    """The prompt is the template's own, without a trace of how it was checked."""
    assert render_prompt(loaded(WITH_TOOLS), ASKED, TOOLS, {}) == "weather time user: weather time\n"


def test_one_tool_of_two_is_shown() -> None:
    """A template that shows the first tool only leaves the second out."""
    first = WITH_TOOLS.replace("tools or []", "(tools or [])[:1]")
    with pytest.raises(Refusal, match="'time' is not in the prompt"):
        render_prompt(loaded(first), ASKED, TOOLS, {})


def test_a_role_whose_words_are_in_another_message() -> None:
    """A template that leaves out tool results refuses them though the user says the same."""
    template = loaded("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(Refusal, match="no place for the role 'tool'") as caught:
        render_prompt(template, [*ASKED, {"role": "tool", "content": "weather"}], [], {})
    assert caught.value.param == "messages[1].role"
