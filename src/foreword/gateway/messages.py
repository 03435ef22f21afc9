"""Messages of a request as the chat template wants them, and the prompt text it makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from foreword.errors import TemplateError
from foreword.gateway.errors import Refusal
from foreword.gateway.protocol.chat import Message, Tool
from foreword.gateway.tokenizers import ChatTemplate, LoadedTokenizer

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content parts that are text, and the field it is in."""

RESERVED_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message", "template", "documents")
"""Template variables that are not for ``chat_template_kwargs``."""

Json = dict[str, Any]


def template_messages(messages: Sequence[Message], template: ChatTemplate) -> list[Json]:
    """The messages as plain objects: parts joined, arguments parsed, ``developer`` named as the template knows it."""
    if not messages:
        raise Refusal("'messages' is empty.", param="messages", code="invalid_value")
    return [_template_message(message, index, template) for index, message in enumerate(messages)]


def _template_message(message: Message, index: int, template: ChatTemplate) -> Json:
    plain: Json = msgspec.to_builtins(message)
    plain["content"] = _text_of(message.content, f"messages[{index}].content")
    if message.role == "developer" and "developer" not in template.source:
        plain["role"] = "system"
    for call in plain.get("tool_calls", ()):
        call["function"]["arguments"] = _parsed_arguments(call["function"]["arguments"])
    return plain


def _text_of(content: str | list[Json] | None, place: str) -> str:
    """The text of a content; raises Refusal for a part that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type")
        text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
        if not isinstance(text, str):
            message = f"{place}[{index}] has the type {str(kind)[:50]!r}; this model takes text only."
            raise Refusal(message, param=f"{place}[{index}]", code="unsupported_content")
        texts.append(text)
    return "\n".join(texts)


def _parsed_arguments(arguments: str | Json) -> str | Json:
    """Arguments as an object where they are JSON of one: templates print objects, and would quote a text twice."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def render_prompt(loaded: LoadedTokenizer, messages: Sequence[Json], tools: Sequence[Tool], variables: Json) -> str:
    """The prompt text; raises TemplateError or Refusal when the template has no place for a role or for tools."""
    template = require_template(loaded)
    reserved = next((name for name in RESERVED_VARIABLES if name in variables), None)
    if reserved is not None:
        text = f"'chat_template_kwargs' has {reserved!r}, which the request itself says."
        raise Refusal(text, param="chat_template_kwargs", code="invalid_value")
    plain_tools = [msgspec.to_builtins(tool) for tool in tools]
    prompt = template.render(messages, tools=plain_tools or None, add_generation_prompt=True, **variables)
    if plain_tools or any(map(_may_be_dropped, messages)):
        _check_nothing_dropped(loaded, messages, plain_tools, variables)
    return prompt


def require_template(loaded: LoadedTokenizer) -> ChatTemplate:
    """The tokenizer's chat template; raises Refusal when it has none."""
    if loaded.template is None:
        hint = "Use /v1/completions, or start the server with --chat-template."
        raise Refusal(f"The model {loaded.name!r} has no chat template.", code="no_chat_template", hint=hint)
    return loaded.template


def _may_be_dropped(message: Json) -> bool:
    """Whether its role is none of the usual three, which templates often leave out without a word."""
    return message["role"] not in ("system", "user", "assistant") and bool(message["content"].strip())


def _check_nothing_dropped(
    loaded: LoadedTokenizer, messages: Sequence[Json], tools: Sequence[Json], variables: Json
) -> None:
    """Raise Refusal for a tool or a role that the template leaves out.

    Rendered once more with a mark on each: the name or the words themselves may stand elsewhere in the prompt.
    """
    marked = [
        {**message, "content": message["content"] + _mark("role", index)} if _may_be_dropped(message) else message
        for index, message in enumerate(messages)
    ]
    renamed = [
        {**tool, "function": {**tool["function"], "name": tool["function"]["name"] + _mark("tool", index)}}
        for index, tool in enumerate(tools)
    ]
    try:
        probe = require_template(loaded).render(marked, tools=renamed or None, add_generation_prompt=True, **variables)
    except TemplateError:  # it minds the marks; it took what was sent
        return
    for index, message in enumerate(messages):
        if _may_be_dropped(message) and _mark("role", index) not in probe:
            text = f"The chat template has no place for the role {message['role'][:50]!r}."
            raise Refusal(text, param=f"messages[{index}].role", code="unsupported_role")
    for index, tool in enumerate(tools):
        if _mark("tool", index) not in probe:
            name = tool["function"]["name"][:100]
            text = f"The chat template of {loaded.name!r} has no place for tools: {name!r} is not in the prompt."
            raise Refusal(text, param="tools", code="unsupported_value")


def _mark(kind: str, index: int) -> str:
    """A word that no one writes, ended by a letter so that none begins another."""
    return f"_probe_{kind}_{index}z"
