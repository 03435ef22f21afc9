"""Group B: order, serialisation and shape."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.cases.build import Case, assistant, case, chat, claude, prose, system, talk, tool, tools, user
from tests.cases.templates import render_thinking

from foreword.diagnose.layout import template_layout

RULES = prose(300, 11)


def _shuffled(items: list[Any], seed: int) -> list[Any]:
    return random.Random(seed).sample(items, len(items))


@case
def tools_from_a_hash_map() -> Case:
    """Twelve tools, shuffled per turn."""
    a = chat(system(RULES), *talk(2), user("Go."), tools=tools(12))
    b = chat(system(RULES), *talk(3), user("On."), tools=_shuffled(tools(12), 3))
    fixed = chat(system(RULES), *talk(3), user("On."), tools=tools(12))
    return Case("26", "B1", "tool order from a hash map", a, b, fixed=(a, fixed))


@case
def sections_and_lists_swapped() -> Case:
    """Tools, sections and a list in the text, all reordered at equal length."""
    sections = [f"## Section {n}\n{prose(30, n)}" for n in range(4)]

    def body(kit: list[Any], parts: list[str]) -> Any:
        return chat(system("\n\n".join([prose(80, 1), *parts, prose(150, 2)])), user("Go."), tools=kit)

    a, b = body(tools(8), sections), body(_shuffled(tools(8), 5), [sections[2], sections[0], sections[3], sections[1]])
    return Case("27", "B1", "tools and sections reordered", a, b, more=("B1",))


@case
def shuffled_by_the_gateway() -> Case:
    """What the client sent and what the gateway sent on."""
    sent = chat(system(RULES), user("Go."), tools=tools(10))
    return Case(
        "28",
        "B1",
        "tool order changed by a gateway",
        sent,
        {**sent, "tools": _shuffled(tools(10), 9)},
        extra={"hops": True},
    )


@case
def fingerprints_only() -> Case:
    """Rows of fingerprints: the tools' moves, the prefix' stays."""
    log = [
        {"time": 1000 + n, "input_fp": "a1", "tools_fp": f"t{n % 9}{n}", "cached_tokens": 0, "input_tokens": 9000}
        for n in range(27)
    ]
    return Case("29", "B1", "fingerprints of tools move alone", log=log)


@case
def list_inside_the_text() -> Case:
    """Lines ``- tool: description`` of the system text in another order."""
    lines = [f"- {name}: {prose(9, n)}" for n, name in enumerate(("search", "open", "patch", "run", "ask", "plan"))]
    a = chat(system("\n".join([prose(60, 1), *lines, prose(200, 2)])), user("Go."))
    b = chat(system("\n".join([prose(60, 1), *_shuffled(lines, 4), prose(200, 2)])), user("Go."))
    return Case("31", "B1", "list of tools inside the text", a, b, fixed=(a, a))


@case
def servers_that_answer_in_any_order() -> Case:
    """Two servers' tools in either order, by session."""
    first, second = tools(4), [tool(f"mail_{n}", prose(20, n + 60)) for n in range(4)]
    a, b = (chat(system(RULES), user("Go."), tools=kit) for kit in (first + second, second + first))
    return Case("32", "B1", "two servers answer in either order", a, b, same_session=False)


@case
def reconnect_moves_tools_to_the_end() -> Case:
    """Every five minutes one server's tools are taken out and put at the end."""
    kit, log = tools(9), []
    for n in range(12):
        if n and n % 4 == 0:
            kit = kit[3:] + kit[:3]
        log.append(
            {"time": 1000 + 75 * n, "session": "s", "body": chat(system(RULES), *talk(n), user("Next"), tools=kit)}
        )
    return Case("33", "B1", "tools rotate on every reconnect", log=log)


@case
def schema_keys_rotate() -> Case:
    """Keys inside parameters in another order."""

    def body(keys: list[str]) -> Any:
        schema = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
        first = {
            "type": "function",
            "function": {"name": "read", "description": "Read.", "parameters": {k: schema[k] for k in keys}},
        }
        return chat(system(RULES), user("Go."), tools=[first, *tools(3)])

    a, b = body(["type", "properties", "additionalProperties"]), body(["additionalProperties", "type", "properties"])
    return Case("35", "B2", "key order of a tool schema", a, b, fixed=(a, a))


@case
def results_reencoded() -> Case:
    """A HAR of three requests; the tool result is encoded anew each time."""
    result = {"id": 4, "name": "Ann", "city": "Porto", "rank": 3, "tags": ["a", "b"]}
    entries = []
    for n in range(3):
        keys = _shuffled(list(result), n)
        call = assistant(
            None,
            tool_calls=[{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":"ann"}'}}],
        )
        reply = {"role": "tool", "tool_call_id": "c1", "content": json.dumps({k: result[k] for k in keys})}
        body = chat(system(RULES), user("Find Ann."), call, reply, *talk(n), user("Next"), tools=tools(2))
        entries.append(
            {
                "startedDateTime": f"2026-11-30T10:0{n}:00Z",
                "request": {"method": "POST", "postData": {"text": json.dumps(body)}},
            }
        )
    return Case("40", "B3", "tool results encoded anew, from a HAR", log=entries, extra={"har": True})


@case
def arguments_reformatted() -> Case:
    """The model wrote ``{"a": 1}``; the history has ``{"a":1}``."""

    def body(arguments: str, turns: int) -> Any:
        call = assistant(
            None, tool_calls=[{"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}]
        )
        return chat(
            system(RULES),
            user("Add."),
            call,
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            *talk(turns),
            user("Go."),
        )

    a, b = body('{"a": 1, "b": 2}', 2), body('{"a":1,"b":2}', 3)
    return Case("42", "B3", "separators of replayed arguments", a, b, fixed=(a, body('{"a": 1, "b": 2}', 3)))


@case
def envelope_sorted() -> Case:
    """The same body with its own keys sorted."""
    a = claude(RULES, user("Go."), tools=[])
    return Case("43", "B4", "fields of the request in another order", a, dict(sorted(a.items())))


@case
def empty_content_dropped() -> Case:
    """A reasoning item echoed without its empty content."""

    def body(item: dict[str, Any], turns: int) -> Any:
        return {
            "model": "gpt-5.2",
            "instructions": RULES,
            "input": [user("Hi"), item, assistant("Hello."), *talk(turns), user("Go.")],
        }

    item = {"type": "reasoning", "summary": [], "content": []}
    return Case(
        "45",
        "B5",
        "empty content dropped from a reasoning item",
        body(item, 1),
        body({"type": "reasoning", "summary": []}, 2),
    )


@case
def empty_reasoning_added() -> Case:
    """``reasoning_content: ""`` where there was none, and a template that tells them apart."""
    layout = template_layout(render_thinking)

    def body(turns: int, **fields: Any) -> Any:
        return chat(
            system(RULES), user("Hi"), assistant("Hello there, how can I help?", **fields), *talk(turns), user("Go.")
        )

    return Case(
        "46",
        "B5",
        "empty reasoning_content with a thinking template",
        body(1),
        body(2, reasoning_content=""),
        layouts=(layout, layout),
    )
