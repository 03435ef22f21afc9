"""Finding tool calls in generated text, whatever pieces it comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.gateway.tool_calls import (
    HERMES,
    LLAMA3,
    MISTRAL,
    PYTHONIC,
    ToolCallParser,
    ToolFormat,
    detect_format,
)

Json = dict[str, Any]
FORMATS = (HERMES, LLAMA3, MISTRAL, PYTHONIC)


def read(format_: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, Json]]]:
    """Content and calls of a text in pieces."""
    parser = ToolCallParser(format_)
    content = "".join(parser.push(piece) for piece in pieces)
    rest, calls = parser.finish()
    return content + rest, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(
    "format_,text,content,calls",
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "", [("f", {"x": 1})]),
        (
            HERMES,
            'Ok. <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>{"name": "g", "arguments": {"s": "}<"}}</tool_call>',
            "Ok. ",
            [("f", {}), ("g", {"s": "}<"})],
        ),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}}', "", [("f", {})]),
        (LLAMA3, '{"name": "f", "parameters": {"x": [1]}}', "", [("f", {"x": [1]})]),
        (LLAMA3, '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "",
         [("f", {}), ("g", {})]),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', "",
         [("f", {"x": 1}), ("g", {})]),
        (MISTRAL, 'Hm.[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g{"y": 2}', "Hm.", [("f", {"x": 1}), ("g", {"y": 2})]),
        (PYTHONIC, "[f(x=1, y=['a', None]), g()]", "", [("f", {"x": 1, "y": ["a", None]}), ("g", {})]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls(format_: ToolFormat, text: str, content: str, calls: list[Any], size: int) -> None:
    """Each form is read the same in pieces of any size."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert read(format_, pieces) == (content, calls)


@pytest.mark.parametrize(
    "format_,text",
    [
        (HERMES, "a < b and <tool_ca"),
        (HERMES, "<tool_call>not json</tool_call>"),
        (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
        (LLAMA3, '{"names": ["x"]}'),
        (LLAMA3, '{"name": "f", "parameters": '),
        (LLAMA3, 'The call is {"name": "f", "parameters": {}}'),
        (MISTRAL, "[TOOL_CALLS]"),
        (MISTRAL, "[TOOL_CALLS] nothing"),
        (PYTHONIC, "[1, 2, 3]"),
        (PYTHONIC, "[f(1)]"),
        (PYTHONIC, "[__import__('os').system(x=open('/etc/passwd'))]"),
        (PYTHONIC, "[" * 10_000),
    ],
)
def test_what_is_no_call_is_content(format_: ToolFormat, text: str) -> None:
    """Nothing is lost: text that only looks like a call is given back as content."""
    assert read(format_, list(text)) == (text, [])


@given(st.sampled_from(FORMATS), st.lists(st.text(alphabet='<>[]{}"\\:tol_cal/TOOL_CALLS|pyn (),=1 ', max_size=20)))
def test_nothing_is_lost(format_: ToolFormat, pieces: list[str]) -> None:
    """Without calls the content is the text, whatever the pieces; the pieces never change the result."""
    text = "".join(pieces)
    content, calls = read(format_, pieces)
    assert (content, calls) == read(format_, [text])
    if not calls:
        assert content == text
    else:
        assert text.startswith(content)


@pytest.mark.parametrize(
    "template,format_",
    [
        ("... <tool_call></tool_call> ...", HERMES),
        ("... [TOOL_CALLS] ...", MISTRAL),
        ('... <|python_tag|> {"name": function name, "parameters": dictionary ...', LLAMA3),
        ("... [func_name1(params_name1=params_value1)] ...", PYTHONIC),
        ("nothing", HERMES),
    ],
)
def test_detection(template: str, format_: ToolFormat) -> None:
    """The template says what its model writes."""
    assert detect_format(template) is format_
