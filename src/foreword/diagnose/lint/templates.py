"""Lint chat templates: is every prompt the beginning of the next one, and what makes it another?

For each kind of turn a template meets (plain, thinking on and off, tool calls, empty reasoning), the prompt the reply was
generated for is compared with the prompt once the reply is history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from foreword.diagnose.lint.findings import LintFinding
from foreword.errors import ConfigError, TemplateError
from foreword.tokens.chat_template import ChatTemplate, check_prefix_stability, load_chat_template

Message = dict[str, Any]
_HISTORY: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}]
_NEXT: Message = {"role": "user", "content": "And 3 + 3?"}
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
}
_RESULT: Message = {"role": "tool", "tool_call_id": "call12345", "name": "add", "content": "4"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of turn: the reply, what follows it, and the template's options."""

    name: str
    reply: tuple[Message, ...]
    options: dict[str, Any]


SCENARIOS = (
    Scenario("plain reply", ({"role": "assistant", "content": "4"}, _NEXT), {}),
    Scenario("thinking off", ({"role": "assistant", "content": "4"}, _NEXT), {"enable_thinking": False}),
    Scenario(
        "reasoning kept",
        ({"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}, _NEXT),
        {"enable_thinking": True},
    ),
    Scenario(
        "reasoning empty",
        ({"role": "assistant", "content": "4", "reasoning_content": ""}, _NEXT),
        {"enable_thinking": True},
    ),
    Scenario(
        "think block in the text", ({"role": "assistant", "content": "<think>\n2 and 2\n</think>\n\n4"}, _NEXT), {}
    ),
    Scenario("tool call", (_CALL, _RESULT), {"tools": [_TOOL]}),
    Scenario(
        "reply behind a tool call", (_CALL, _RESULT, {"role": "assistant", "content": "4"}, _NEXT), {"tools": [_TOOL]}
    ),
)


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """What a scenario showed: stable, broken at a character, or refused by the template."""

    scenario: str
    state: str
    seam: int = 0
    earlier: str = ""
    later: str = ""


def check_template(template: ChatTemplate) -> list[TemplateRow]:
    """A row for every scenario."""
    return [_check(template, scenario) for scenario in SCENARIOS]


def _check(template: ChatTemplate, scenario: Scenario) -> TemplateRow:
    try:
        result = check_prefix_stability(template, _HISTORY, scenario.reply, **scenario.options)
    except TemplateError as error:
        return TemplateRow(scenario.name, "refused", later=str(error)[:120])
    if result.stable:
        return TemplateRow(scenario.name, "stable", len(result.earlier))
    at = result.seam
    return TemplateRow(
        scenario.name, "breaks", at, result.earlier[max(0, at - 24) : at + 24], result.later[max(0, at - 24) : at + 24]
    )


def lint_template(path: Path) -> list[LintFinding]:
    """E1 for every scenario that breaks, A1 for a template that writes the date, E4 for a parameter ahead of the system text.

    Raises:
        ConfigError: there is no chat template at the path.
    """
    template = load_chat_template(path)
    if template is None:
        raise ConfigError(f"There is no chat template at {path}.", hint="Give a Jinja file or a model's folder.")
    findings = [
        LintFinding(
            "E1",
            f"{row.scenario}: the next prompt differs from character {row.seam}: {row.earlier!r} -> {row.later!r}",
            str(path),
            snippet=row.scenario,
        )
        for row in check_template(template)
        if row.state == "breaks"
    ]
    return [*findings, *_date(path, template), *_effort(path, template)]


def _date(path: Path, template: ChatTemplate) -> Iterator[LintFinding]:
    if not template.reads_clock:
        return
    texts = []
    for day in (1, 2):
        other = load_chat_template(path, now=lambda day=day: datetime(2026, 12, day, 9, 30))  # type: ignore[misc]  # noqa: DTZ001 - the reader's day
        texts.append(_rendered(other) if other else "")
    if texts[0] != texts[1]:
        at = next((n for n, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), 0)
        yield LintFinding(
            "A1",
            f"the template writes the date at character {at}: every prefix changes at midnight",
            str(path),
            snippet="date",
        )


def _effort(path: Path, template: ChatTemplate) -> Iterator[LintFinding]:
    low, high = (_rendered(template, reasoning_effort=effort) for effort in ("low", "high"))
    if low != high and low and high:
        at = next((n for n, (x, y) in enumerate(zip(low, high, strict=False)) if x != y), 0)
        yield LintFinding(
            "E4",
            f"reasoning_effort is written at character {at}, ahead of the conversation",
            str(path),
            snippet="effort",
        )


def _rendered(template: ChatTemplate, **options: Any) -> str:
    try:
        return template.render(_HISTORY, add_generation_prompt=True, **options)
    except TemplateError:
        return ""
