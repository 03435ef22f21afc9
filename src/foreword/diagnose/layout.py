"""A request body as the text a model reads: by the model's own chat template, or by a neutral layout where it is hidden.

Providers put tools before the system text and that before the messages; the neutral layout does so in a ChatML-like
frame. It is right about order and content, and only nearly right about token counts, which the verdict's confidence says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from foreword.errors import RequestError

Surface = Literal["text", "ids", "chat", "completions", "responses", "messages"]
Document = Any
"""A request body (dict) or a text (str)."""
Layout = Callable[[Document], str]
RenderTemplate = Callable[..., str]
"""``render(messages, tools=..., add_generation_prompt=True, **parameters) -> str``."""

_PARAMETERS = ("reasoning_effort", "enable_thinking", "thinking", "chat_template_kwargs", "documents")


def surface_of(document: Document) -> Surface:
    """Which API a body belongs to, by its fields; raises RequestError for a body of none."""
    if isinstance(document, str):
        return "text"
    if "messages" in document:
        return "messages" if _looks_like_anthropic(document) else "chat"
    if "input" in document or "instructions" in document:
        return "responses"
    if "prompt" in document:
        return "completions"
    raise RequestError(
        "This JSON is no request body: it has none of messages, input and prompt.",
        hint="Give a body of chat completions, completions, responses or messages.",
        keys=sorted(document)[:20],
    )


def _looks_like_anthropic(body: Mapping[str, Any]) -> bool:
    if "system" in body or str(body.get("model", "")).startswith(("claude", "anthropic")):
        return True
    if any(isinstance(tool, dict) and "input_schema" in tool for tool in _list(body.get("tools"))):
        return True
    blocks = (b for m in _list(body.get("messages")) if isinstance(m, dict) for b in _list(m.get("content")))
    return any(isinstance(block, dict) and str(block.get("type")) in {"tool_use", "tool_result"} for block in blocks)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def neutral_layout(document: Document) -> str:
    """Tools, system, messages in ChatML-like turns; JSON as it came, key order and all."""
    if isinstance(document, str):
        return document
    if "prompt" in document and "messages" not in document:
        prompt = document["prompt"]
        return prompt if isinstance(prompt, str) else "\n".join(map(str, _list(prompt)))
    tools = [_dump(tool) for tool in _list(document.get("tools"))]
    head = "<|im_start|>tools\n" + "\n".join(tools) + "<|im_end|>\n" if tools else ""
    turns = [_turn(message) for message in messages_of(document)]
    opening = "<|im_start|>assistant\n" if document.get("add_generation_prompt", True) else ""
    return head + "".join(turns) + opening


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The body's messages in chat form, the system text of the messages and responses APIs first."""
    system = body.get("system") if "system" in body else body.get("instructions")
    head = [{"role": "system", "content": system}] if system else []
    turns = body.get("messages") if "messages" in body else body.get("input")
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    return head + [turn if isinstance(turn, dict) else {"role": "user", "content": str(turn)} for turn in _list(turns)]


def _turn(message: Mapping[str, Any]) -> str:
    role = message.get("role") or message.get("type") or "user"
    parts = [_reasoning(message), _content(message.get("content"))]
    parts += [_dump(call.get("function", call)) for call in _list(message.get("tool_calls")) if isinstance(call, dict)]
    if "content" not in message and "tool_calls" not in message:
        parts.append(_block(message))
    return f"<|im_start|>{role}\n" + "\n".join(part for part in parts if part) + "<|im_end|>\n"


def _reasoning(message: Mapping[str, Any]) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return f"<think>\n{reasoning}\n</think>\n" if isinstance(reasoning, str) else ""


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block(block) for block in _list(content))


def _block(block: Any) -> str:
    """One content block: its text, or its JSON without what never reaches the model."""
    if not isinstance(block, dict):
        return str(block)
    for key in ("text", "thinking", "output"):
        if isinstance(block.get(key), str):
            return str(block[key])
    if block.get("type") == "tool_result":
        return _content(block.get("content"))
    hidden = {"cache_control", "id", "call_id", "status", "prompt_cache_breakpoint"}
    return _dump({key: value for key, value in block.items() if key not in hidden})


def _dump(value: Any) -> str:
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key != "cache_control"}
    return json.dumps(value, ensure_ascii=False)


def template_layout(render: RenderTemplate) -> Layout:
    """A layout that renders bodies through a chat template; texts and completions pass as they are."""

    def layout(document: Document) -> str:
        if isinstance(document, str) or ("prompt" in document and "messages" not in document):
            return neutral_layout(document)
        parameters = {key: document[key] for key in _PARAMETERS if key in document}
        parameters |= parameters.pop("chat_template_kwargs", None) or {}
        messages = [_flat_message(message) for message in messages_of(document)]
        if not messages:
            return ""  # templates refuse it, and it shares nothing with any request
        generate = document.get("add_generation_prompt", True)
        tools = _list(document.get("tools")) or None
        return render(messages, tools=tools, add_generation_prompt=generate, **parameters)

    return layout


def _flat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Content blocks of text as one string, as most templates want it; everything else untouched."""
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": _content(content)}
    return dict(message)


def layer_of(path: Sequence[str | int]) -> str:
    """tools, system, history, parameters or prompt: the part of the request a path lies in."""
    head = path[0] if path else ""
    names = {"tools": "tools", "system": "system", "instructions": "system", "messages": "history", "input": "history"}
    return names.get(str(head), "prompt" if head in {"", "prompt"} else "parameters")


def format_path(path: Sequence[str | int]) -> str:
    """``messages[0].content`` for ("messages", 0, "content")."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")
