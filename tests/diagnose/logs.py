"""Logs made up of conversations of all APIs, with faults planted at random and noted nowhere: for comparing two readings."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from tests.cases.build import assistant, block, chat, claude, prose, system, talk, tools, user

Body = Any


def make_log(seed: int, *, conversations: int = 8) -> list[Any]:
    """Log lines: conversations one after another or mingled, some labelled, each request spoilt with some chance."""
    rng = random.Random(seed)
    kept = [_conversation(rng, number) for number in range(conversations)]
    if rng.random() < 0.5:
        lines = [line for conversation in kept for line in conversation]
    else:
        lines = []
        while any(kept):
            lines.append(rng.choice([conversation for conversation in kept if conversation]).pop(0))
    return [json.loads(json.dumps(line)) for line in lines]


def _conversation(rng: random.Random, number: int) -> list[Any]:
    """Four to seven requests of one conversation, each with the faults that this application has."""
    make = rng.choice((_chat, _claude, _responses, _completion))
    faults = [fault for fault in FAULTS if rng.random() < 0.12]
    session = {"session": f"s{number}"} if rng.random() < 0.4 else {}
    head, start = rng.choice((prose(40, 1), prose(40, 1), prose(60, 2))), rng.choice((0, 10 * number))
    lines = []
    for turn in range(rng.randrange(4, 8)):
        asked = rng.choice((f"What of part {turn} of case {number}?", prose(9, 40 * number + turn)))
        body = make(head, talk(turn, start=start), asked, rng)
        for fault in faults:
            body = fault(copy.deepcopy(body), rng, turn)
        lines.append({"request": body, **session} if session or rng.random() < 0.2 else body)
    return lines


def _chat(head: str, turns: list[Body], asked: str, rng: random.Random) -> Body:
    return chat(system(head), *turns, user(asked), tools=tools(4))


def _claude(head: str, turns: list[Body], asked: str, rng: random.Random) -> Body:
    return claude(head, *turns, user([block(asked, marked=True)]))


def _responses(head: str, turns: list[Body], asked: str, rng: random.Random) -> Body:
    return {"model": "gpt-5.2", "instructions": head, "input": [*turns, user(asked)]}


def _completion(head: str, turns: list[Body], asked: str, rng: random.Random) -> Body:
    return {"model": "base", "prompt": "\n".join([head, *(turn["content"] for turn in turns), asked])}


Fault = Callable[[Body, random.Random, int], Body]


def _head(body: Body, change: Callable[[str], str]) -> Body:
    """The body with its system text, or its prompt, changed."""
    for key in ("system", "instructions", "prompt"):
        if isinstance(body.get(key), str):
            return {**body, key: change(body[key])}
    first = body["messages"][0]
    first["content"] = change(first["content"]) if isinstance(first["content"], str) else first["content"]
    return body


def _turns(body: Body) -> list[Body]:
    turns: list[Body] = body.get("messages") or body.get("input") or []
    return turns


def _clock(body: Body, rng: random.Random, turn: int) -> Body:
    return _head(body, lambda text: f"Now 10:{rng.randrange(60):02}:{turn:02}\n{text}")


def _nonce(body: Body, rng: random.Random, turn: int) -> Body:
    return _head(body, lambda text: f"{text}\nchk={rng.randrange(16**5):05x};\n{prose(20, 5)}")


def _shuffled_tools(body: Body, rng: random.Random, turn: int) -> Body:
    rng.shuffle(body.get("tools") or [])
    return body


def _shuffled_keys(body: Body, rng: random.Random, turn: int) -> Body:
    for tool in body.get("tools") or []:
        items = list(tool["function"].items())
        rng.shuffle(items)
        tool["function"] = dict(items)
    return body


def _window(body: Body, rng: random.Random, turn: int) -> Body:
    del _turns(body)[1 : max(1, len(_turns(body)) - 4)]
    return body


def _pruned(body: Body, rng: random.Random, turn: int) -> Body:
    for message in _turns(body)[1:-3]:
        message["content"] = "[pruned]"
    return body


def _reminder(body: Body, rng: random.Random, turn: int) -> Body:
    if _turns(body):
        _turns(body).insert(-1, user(f"<system-reminder>{rng.randrange(9999)} tokens left</system-reminder>"))
    return body


def _note(body: Body, rng: random.Random, turn: int) -> Body:
    if "messages" in body:
        body["messages"].insert(rng.randrange(1, len(body["messages"]) + 1), system("Be brief from now on."))
    return body


def _document(body: Body, rng: random.Random, turn: int) -> Body:
    if _turns(body) and isinstance(_turns(body)[-1]["content"], str):
        _turns(body)[-1]["content"] += "\n" + prose(60, 77)
    return body


def _shape(body: Body, rng: random.Random, turn: int) -> Body:
    for message in _turns(body)[:-1]:
        if rng.random() < 0.3 and isinstance(message["content"], str):
            message["content"] = [block(message["content"])]
    return body


def _reasoning(body: Body, rng: random.Random, turn: int) -> Body:
    for message in _turns(body):
        if message["role"] == "assistant" and rng.random() < 0.5:
            message["reasoning_content"] = prose(12, 3)
    return body


def _spaces(body: Body, rng: random.Random, turn: int) -> Body:
    return _head(body, lambda text: text.replace("\n", rng.choice(("\n", "\r\n", " \n")), 1))


def _model(body: Body, rng: random.Random, turn: int) -> Body:
    return {**body, "reasoning_effort": rng.choice(("low", "high"))}


def _summary(body: Body, rng: random.Random, turn: int) -> Body:
    if turn == 4 and _turns(body):
        _turns(body)[1:-1] = [user(f"Summary of the conversation so far: {prose(20, 8)}"), assistant("Noted.")]
    return body


FAULTS: tuple[Fault, ...] = (
    _clock, _nonce, _shuffled_tools, _shuffled_keys, _window, _pruned, _reminder, _note, _document, _shape, _reasoning,
    _spaces, _model, _summary,
)  # fmt: skip
