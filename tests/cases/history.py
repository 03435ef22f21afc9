"""Groups C and D: placement, and history that is not what was sent."""

from __future__ import annotations

from typing import Any

from tests.cases.build import Body, Case, assistant, block, case, chat, claude, prose, system, talk, tools, user
from tests.cases.templates import render_always_thinking, render_hoisting

from foreword.diagnose.layout import template_layout

RULES = prose(300, 21)
DOCUMENT = f"<document>\n{prose(700, 22)}\n</document>"


@case
def steer_message_hoisted() -> Case:
    """A system message in mid-conversation, and a template that renders system messages first."""
    layout = template_layout(render_hoisting)
    a = chat(system(RULES), *talk(5), user("Go."))
    b = chat(system(RULES), *talk(5), user("Go."), assistant("Going."), system("Be brief from now on."), user("On."))
    return Case("49", "C1", "system message hoisted by the template", a, b, layouts=(layout, layout))


@case
def steer_message_merged_by_the_adapter() -> Case:
    """The adapter appends a mid-conversation system message to the top-level system text."""
    a = claude(RULES, *talk(5), user("Go."))
    b = claude(f"{RULES}\n\nBe brief from now on.", *talk(5), user("Go."), assistant("Going."), user("On."))
    return Case("50", "C1", "system message merged by the adapter", a, b)


@case
def breakpoint_on_a_reminder() -> Case:
    """The last marker sits on a trailing reminder that is replaced next turn."""

    def reminder(left: int) -> Body:
        return user([block(f"<system-reminder>{left} tokens left</system-reminder>", marked=True)])

    a = claude(RULES, *talk(4), user("Go."), reminder(5000))
    b = claude(RULES, *talk(4), user("Go."), assistant(prose(30, 3)), user("On."), reminder(4100))
    return Case("52", "C2", "breakpoint on a reminder", a, b)


@case
def document_follows_the_last_message() -> Case:
    """A whole document attached to the newest user message."""
    a = chat(system(RULES), user(f"Summarise it.\n{DOCUMENT}"))
    b = chat(system(RULES), user("Summarise it."), assistant("It says: keep records."), user(f"What else?\n{DOCUMENT}"))
    return Case("53", "C3", "document moves to the newest message", a, b)


@case
def chunks_in_the_system_text() -> Case:
    """Chunks of this query inside the system text."""

    def body(seed: int, question: str) -> Body:
        chunks = "\n".join(f"[{n}] {prose(40, seed * 10 + n)}" for n in range(3))
        return chat(system(f"{prose(40, 1)}\nUse these passages:\n{chunks}\n{prose(300, 2)}"), user(question))

    return Case("54", "C3", "chunks by query in the system text", body(3, "Returns?"), body(4, "Shipping?"))


@case
def system_behind_the_history() -> Case:
    """Messages, then the system text with this turn's contexts, then the question."""

    def body(turns: int, seed: int) -> Body:
        return chat(*talk(turns), system(f"{RULES}\nContexts:\n{prose(50, seed)}"), user(f"Question {turns}"))

    return Case("55", "C3", "system text behind the history", body(3, 70), body(4, 71))


@case
def memory_taken_out_again() -> Case:
    """A memory message ahead of the newest turn, gone from the earlier one."""

    def memory(seed: int) -> Body:
        return user(f"[memory] {prose(60, seed)}")

    a = chat(system(RULES), *talk(3), memory(80), user("Go."))
    b = chat(system(RULES), *talk(3), user("Go."), assistant("Going."), memory(81), user("On."))
    return Case("56", "C3", "memory message taken out again", a, b)


@case
def image_first() -> Case:
    """The image stands ahead of the stable text."""

    def body(name: str) -> Body:
        picture = {"type": "image_url", "image_url": {"url": f"https://img.example.com/{name}.png"}}
        return chat(user([picture, {"type": "text", "text": prose(400, 5)}]), assistant("A cat."), user("And this?"))

    return Case("57", "C4", "image ahead of stable text", body("cat-01"), body("dog-02"))


@case
def image_attached_again() -> Case:
    """The image leaves its message and is attached to the newest one."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 40}}
    a = claude(RULES, user([picture, block("What is it?")]))
    b = claude(
        RULES,
        user([block("What is it?")]),
        assistant("A chart of sales."),
        user([picture, block("And the second bar?")]),
    )
    return Case("58", "C4", "image attached again", a, b)


@case
def sliding_window() -> Case:
    """A limit of twenty messages in a log of sixty turns."""
    everything, log = talk(60), []
    for n in range(2, 60, 2):
        window = everything[max(0, 2 * n - 20) : 2 * n]
        log.append({"time": 1000 + n, "session": "s", "body": chat(system(RULES), *window, user("Next"))})
    return Case("59", "D1", "sliding window of twenty messages", log=log)


@case
def short_sessions() -> Case:
    """Two-turn sessions reach 74 %, thirty-turn sessions more: nothing is wrong."""
    log = []
    for s in range(4):
        usages = ((900, 0), (1400, 900))
        for n, (size, cached) in enumerate(usages):
            later = [assistant(prose(200, s)), user("And then?")] if n else []
            body = chat(system(RULES), user(f"Task {s}: {prose(40, s + 90)}"), *later)
            usage = {"prompt_tokens": size, "prompt_tokens_details": {"cached_tokens": cached}}
            log.append(
                {"time": 1000 + s * 1000 + n, "session": f"s{s}", "body": {**body, "model": "local"}, "usage": usage}
            )
    return Case("62", "D2", "two-turn sessions start cold", log=log)


@case
def reasoning_left_out() -> Case:
    """48 tokens of reasoning are not replayed; the template renders an empty block."""
    layout = template_layout(render_always_thinking)

    def body(turns: int, **fields: Any) -> Body:
        return chat(
            system(RULES),
            user("Plan it."),
            assistant(f"The plan: {prose(800, 3)}", **fields),
            *talk(turns),
            user("Go."),
        )

    a, b = body(0, reasoning_content=prose(40, 9)), body(1)
    return Case("63", "D3", "reasoning left out, empty block rendered", a, b, layouts=(layout, layout))


@case
def reasoning_omitted_on_resend() -> Case:
    """``reasoning_content`` omitted when the turn is sent again."""
    a = chat(system(RULES), user("Why?"), assistant("Because.", reasoning_content=prose(90, 4)), *talk(1), user("Go."))
    b = chat(system(RULES), user("Why?"), assistant("Because."), *talk(2), user("Go."))
    return Case("65", "D3", "reasoning omitted on resend", a, b)


@case
def frames_pruned_each_turn() -> Case:
    """Each turn the frame that left the recent window is replaced by a placeholder."""
    log = []
    for n in range(3, 9):
        turns = talk(n)
        for k in range(n - 2):
            turns[2 * k] = user("[pruned]")
        log.append(
            {"time": 1000 + n, "session": "s", "body": chat(system(RULES), *turns, user("Next"), tools=tools(2))}
        )
    return Case("66", "D4", "old turns pruned one by one", log=log)
