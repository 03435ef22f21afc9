"""Byte-stable assembly, its adapters, and the pytest plugin."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.cases.build import tool, tools

from foreword import Prompt, Segment, ToolSet, canonical_json
from foreword.diagnose.adapters import to_chat, to_completions, to_messages, to_responses
from foreword.diagnose.assemble import AssemblyError, Volatility

pytest_plugins = ["pytester"]

RULES = Segment("rules", "Be kind.")
TENANT = Segment("tenant", "Acme.", Volatility.SHARED, owner="sales", budget=1)
SESSION = Segment("session", "Ann, since noon.", Volatility.SESSION)
TURN = Segment("turn", {"open": 3, "done": 1}, Volatility.TURN)


def test_canonical_json_has_one_spelling() -> None:
    """Key order, spaces and escapes do not matter."""
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'
    assert canonical_json({"x": 1, "y": 2}) == canonical_json({"y": 2, "x": 1})


@pytest.mark.parametrize(
    "value, message",
    [
        ({"a": {1, 2}}, r"\$\.a is a set"),
        ([datetime(2026, 1, 1, tzinfo=UTC)], r"\$\[0\] is a datetime"),
        ({"n": float("nan")}, r"\$\.n is nan"),
        ({1: "a"}, "has the key 1"),
        ({"n": Decimal(1)}, r"Pass str"),
        ({"o": object()}, "is a object"),
    ],
)
def test_what_has_no_one_spelling_is_refused(value: Any, message: str) -> None:
    """Sets, dates, NaN, other keys and other types say what to do instead."""
    with pytest.raises(AssemblyError, match=message):
        canonical_json(value)


def test_tools_are_sorted_and_canonical() -> None:
    """Any order and spelling gives the same list."""
    one, other = tools(5), [dict(reversed(list(t.items()))) for t in reversed(tools(5))]
    assert canonical_json(ToolSet(one).as_list()) == canonical_json(ToolSet(other).as_list())
    assert str(ToolSet(one).as_list()) == str(ToolSet(other).as_list())


def test_two_tools_of_one_name_are_refused() -> None:
    """Which of them would be rendered would depend on order."""
    with pytest.raises(AssemblyError, match="Two different tools"):
        ToolSet([tool("a", "x"), tool("a", "y")])


def test_a_volatile_segment_ahead_of_a_stable_one_is_refused() -> None:
    """The error names both, and a reason lets it through."""
    with pytest.raises(AssemblyError, match="'session' \\(session\\) stands ahead of 'rules' \\(static\\)"):
        Prompt([SESSION, RULES])
    assert Prompt([Segment("session", "x", Volatility.SESSION, reason="law"), RULES]).text() == "x\n\nBe kind."


def test_an_epoch_is_first_and_announced(caplog: pytest.LogCaptureFixture) -> None:
    """A new epoch is said to be deliberate, another change to be an accident of its owner."""
    old = Prompt([RULES, TENANT], epoch="2026-10")
    with caplog.at_level(logging.INFO):
        said = Prompt([RULES, TENANT], epoch="2026-11").compare(old)
    assert said == ["epoch is now '2026-11': every cached prefix is invalidated on purpose"]
    assert "prompt.epoch_changed before=2026-10 after=2026-11" in caplog.text
    changed = Prompt([RULES, Segment("tenant", "Beta.", Volatility.SHARED, owner="sales", budget=1)], epoch="2026-10")
    assert changed.compare(old) == ["tenant changed (shared, owned by sales, 1 changes a day allowed)"]


def test_breakpoints_are_where_volatility_changes() -> None:
    """Behind shared, behind session, and on the last message: three, never on what changes each turn."""
    prompt = Prompt([RULES, TENANT, SESSION, TURN], ToolSet(tools(2)), [{"role": "user", "content": "Hi"}])
    body = to_messages(prompt, "claude-sonnet-4-5")
    assert ["cache_control" in block for block in body["system"]] == [False, True, True, False]
    assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert body["system"][3]["text"] == '{"done":1,"open":3}'
    assert body["tools"][0]["input_schema"]["type"] == "object"


def test_the_other_bodies_hold_the_same_text() -> None:
    """Chat, responses and completions carry the system text, sorted tools and the messages."""
    prompt = Prompt([RULES], ToolSet(tools(2)[::-1]), [{"role": "user", "content": "Hi"}])
    assert to_chat(prompt, "m")["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    ]
    assert [t["name"] for t in to_responses(prompt, "m")["tools"]] == ["tool_00", "tool_01"]
    assert to_completions(prompt, "m")["prompt"] == "Be kind.\n\nuser: Hi"


STABLE = """
from foreword import Prompt, Segment, ToolSet
from foreword.diagnose.adapters import to_chat

def build(tools, question):
    return to_chat(Prompt([Segment("rules", "Be kind.")], ToolSet(tools), [{"role": "user", "content": question}]), "m")

def test_stable(assert_prefix_stable):
    tools = [{"name": name, "description": name, "parameters": {"type": "object", "properties": {}}} for name in ("read", "ask")]
    assert_prefix_stable(build, tools, question="Why?")
"""

UNSTABLE = {
    "clock": ('f"Now {datetime.now():%Y-%m-%d %H:%M}. Be kind."', "A1"),
    "set": ('"Tools: " + ", ".join({"read", "write", "ask", "plan", "run", "test"})', "B1"),
    "zone": ('time.strftime("%H h") + " o\'clock. Be kind."', "FOREWORD_CLOCK_SHIFT|TZ"),
}


def test_a_stable_assembler_passes(pytester: pytest.Pytester) -> None:
    """A Prompt renders the same under every condition."""
    pytester.makepyfile(STABLE)
    pytester.runpytest_subprocess("--prompt-stability", "-p", "no:randomly").assert_outcomes(passed=1)


@pytest.mark.parametrize("name", UNSTABLE)
def test_an_unstable_assembler_fails_with_the_seam(pytester: pytest.Pytester, name: str) -> None:
    """Clock, hash seed and time zone each show, with the cause and the place."""
    expression, shown = UNSTABLE[name]
    source = f"""
        import time
        from datetime import datetime

        def build():
            return {{"messages": [{{"role": "system", "content": {expression}}}, {{"role": "user", "content": "Hi"}}]}}

        def test_it(assert_prefix_stable):
            assert_prefix_stable(build)

        def test_other():
            raise SystemExit
    """
    pytester.makepyfile(source)
    result = pytester.runpytest_subprocess("--prompt-stability")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.re_match_lines([r".*(not the same under).*", rf".*({shown}|messages\[0\].content).*"])
