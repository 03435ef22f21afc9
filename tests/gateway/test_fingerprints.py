"""Fingerprints of the gateway's log: those that `foreword fingerprint` prints for the same request."""

from __future__ import annotations

from typing import Any

import pytest

from foreword.diagnose.fingerprint import fingerprint_request
from foreword.diagnose.layout import template_layout
from foreword.gateway.fingerprints import SegmentFingerprints
from foreword.testing.server import load_bytes

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello to you."},
    {"role": "user", "content": "What is the capital of France?"},
]


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_the_log_says_what_the_command_says(tools: list[dict[str, Any]]) -> None:
    """One request has one set of fingerprints, live in the gateway and later on the command line."""
    loaded = load_bytes("here", "m")
    assert loaded.template is not None
    prompt = loaded.template.render(MESSAGES, tools=tools or None, add_generation_prompt=True)
    live = SegmentFingerprints().of(loaded, MESSAGES, tools, prompt)
    body = {"model": "m", "messages": MESSAGES, "tools": tools}
    later = fingerprint_request(body, loaded.tokenizer, layout=template_layout(loaded.template.render))
    for name in ("prefix_fp", "tools_fp", "system_fp", "history_fp"):
        assert getattr(live, name) == getattr(later, name), name


def test_the_order_of_keys_counts() -> None:
    """The model reads tools in the order they came in: moved keys move the fingerprint."""
    moved = [{"function": {"parameters": {"type": "object", "properties": {}}, "name": "look"}, "type": "function"}]
    of = SegmentFingerprints().of
    loaded = load_bytes("here", "m")
    assert of(loaded, MESSAGES, [TOOL], "").tools_fp != of(loaded, MESSAGES, moved, "").tools_fp
