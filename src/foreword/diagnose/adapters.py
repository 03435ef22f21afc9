"""A Prompt as the body of each of the four APIs, with breakpoints where its volatility changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foreword.diagnose.assemble import Prompt, Volatility, tool_name

MAX_BREAKPOINTS = 4
_MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}


def to_chat(prompt: Prompt, model: str, **fields: Any) -> dict[str, Any]:
    """A chat-completions body: the system text as one message, tools sorted, prefix found by the provider."""
    tools = [_as_function(tool) for tool in prompt.tools.as_list()]
    system = [{"role": "system", "content": prompt.text()}] if prompt.ordered() else []
    body = {"model": model, "messages": [*system, *map(dict, prompt.messages)], **fields}
    return {**body, "tools": tools} if tools else body


def to_responses(prompt: Prompt, model: str, **fields: Any) -> dict[str, Any]:
    """A responses body: the system text as instructions."""
    tools = [{"type": "function", **_as_function(tool)["function"]} for tool in prompt.tools.as_list()]
    body = {"model": model, "instructions": prompt.text(), "input": [dict(m) for m in prompt.messages], **fields}
    return {**body, "tools": tools} if tools else body


def to_completions(prompt: Prompt, model: str, **fields: Any) -> dict[str, Any]:
    """A completions body: everything as one text, messages as they are read."""
    turns = [f"{message['role']}: {message['content']}" for message in prompt.messages]
    return {"model": model, "prompt": "\n\n".join([prompt.text(), *turns]), **fields}


def to_messages(prompt: Prompt, model: str, *, max_tokens: int = 1024, **fields: Any) -> dict[str, Any]:
    """A messages body with at most four breakpoints.

    One behind what is static or shared (it covers the tools too), one behind what lasts the session, one on the last
    message of the history, each only where there is something to cover.
    """
    blocks: list[dict[str, Any]] = [{"type": "text", "text": segment.render()} for segment in prompt.ordered()]
    for level in (Volatility.SHARED, Volatility.SESSION):
        last = max((n for n, s in enumerate(prompt.ordered()) if s.volatility <= level), default=-1)
        stable = all(s.volatility <= level for s in prompt.ordered()[: last + 1])
        if last >= 0 and stable:
            blocks[last] = {**blocks[last], **_MARK}
    body = {"model": model, "max_tokens": max_tokens, "system": blocks, "messages": _marked(prompt), **fields}
    tools = [_as_input_schema(tool) for tool in prompt.tools.as_list()]
    return {**body, "tools": tools} if tools else body


def _marked(prompt: Prompt) -> list[dict[str, Any]]:
    """The messages, the last that will stand in the history next turn too carrying a breakpoint."""
    messages = [dict(message) for message in prompt.messages]
    if messages:
        content = messages[-1].get("content")
        blocks: list[dict[str, Any]] = [{"type": "text", "text": content}]
        parts = blocks if isinstance(content, str) else [dict(part) for part in content or ()]
        if parts:
            parts[-1] = {**parts[-1], **_MARK}
            messages[-1]["content"] = parts
    return messages


def _as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(tool.get("function"), Mapping):
        return dict(tool)
    schema = tool.get("parameters", tool.get("input_schema", {}))
    function = {"description": tool.get("description", ""), "name": tool_name(tool), "parameters": schema}
    return {"function": function, "type": "function"}


def _as_input_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = _as_function(tool)["function"]
    return {
        "description": function.get("description", ""),
        "input_schema": function.get("parameters", {}),
        "name": function["name"],
    }
