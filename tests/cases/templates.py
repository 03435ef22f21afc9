"""Tiny chat templates, each with the fault its case needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _text(message: dict[str, Any]) -> str:
    return str(message.get("content") or "")


def render_plain(messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any) -> str:
    """A template with no fault."""
    return "".join(_turn(m["role"], _text(m)) for m in messages) + "<|im_start|>assistant\n" * add_generation_prompt


def render_thinking(messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any) -> str:
    """Renders a think block whenever the field is there, empty or not."""
    turns = []
    for message in messages:
        reasoning = message.get("reasoning_content")
        think = f"<think>\n{reasoning}\n</think>\n\n" if reasoning is not None else ""
        turns.append(_turn(message["role"], think + _text(message)))
    return "".join(turns) + "<|im_start|>assistant\n" * add_generation_prompt


def render_always_thinking(messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any) -> str:
    """Renders an empty think block where reasoning is absent."""
    turns = []
    for message in messages:
        think = (
            f"<think>\n{message.get('reasoning_content') or ''}\n</think>\n\n" if message["role"] == "assistant" else ""
        )
        turns.append(_turn(message["role"], think + _text(message)))
    return "".join(turns) + "<|im_start|>assistant\n" * add_generation_prompt


def render_no_think_opening(messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any) -> str:
    """Puts an empty think block into the generation prompt only."""
    return (
        render_plain(messages, add_generation_prompt=add_generation_prompt)
        + "<think>\n\n</think>\n\n" * add_generation_prompt
    )


def render_think_opening(messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any) -> str:
    """Opens a think block in the generation prompt; the history has the reply alone."""
    return render_plain(messages, add_generation_prompt=add_generation_prompt) + "<think>\n" * add_generation_prompt


def render_hoisting(messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any) -> str:
    """Renders all system messages first."""
    head = [m for m in messages if m["role"] == "system"]
    return render_plain(
        head + [m for m in messages if m["role"] != "system"], add_generation_prompt=add_generation_prompt
    )


def render_effort(
    messages: Sequence[dict[str, Any]],
    *,
    add_generation_prompt: bool = True,
    reasoning_effort: str = "medium",
    **_: Any,
) -> str:
    """Writes the reasoning effort ahead of everything."""
    head = _turn("system", f"Reasoning Effort: {reasoning_effort}")
    return head + render_plain(messages, add_generation_prompt=add_generation_prompt)


def render_headers(messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **_: Any) -> str:
    """Another family's markers."""
    turns = "".join(f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{_text(m)}<|eot_id|>" for m in messages)
    return turns + "<|start_header_id|>assistant<|end_header_id|>\n\n" * add_generation_prompt
