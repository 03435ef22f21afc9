"""Two or three causes planted at once: all are listed, and gains alone and together equal a replay after the edit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cases.build import assistant, chat, prose, system, tool, tools, user

from foreword.diagnose.diff import diff_prompts
from foreword.diagnose.layout import neutral_layout
from foreword.testing.words import WordTokenizer

Body = Any


@dataclass(frozen=True)
class Plant:
    """A fault: its code, how to put it into a base request, and both sides of the repaired pair."""

    code: str
    place: int
    spoil: Callable[[Body, Body], None]
    mend: Callable[[Body, Body], None]


def base(rng: random.Random, turns: int) -> Body:
    """A request with marks where faults go: tools, system text in sections, finished turns with a tool call."""
    text = "\n".join(
        [
            prose(40, 1),
            "Now: {clock}",
            prose(60, 2),
            "chk={nonce};",
            prose(50, 3),
            "Home: {path}/notes",
            prose(70, 4),
            "{lines}",
            prose(60, 5),
        ]
    )
    call = assistant(
        None,
        tool_calls=[
            {"id": "c1", "type": "function", "function": {"name": "tool_01", "arguments": '{"a": 1, "b": [2]}'}}
        ],
    )
    history = [
        user("Start with the list."),
        call,
        {"role": "tool", "tool_call_id": "c1", "content": '{"x": 1, "y": 2}'},
        assistant(prose(60, 9)),
    ]
    more = [message for n in range(turns) for message in (user(f"Step {n} {prose(9, n)}"), assistant(prose(30, n)))]
    kit = [tool("tool_url", "See {url} for help. " + prose(20, 6)), *tools(4)]
    return chat(system(text), *history, *more, user("Next, please."), tools=kit)


def _fill(body: Body, **values: str) -> None:
    for message in (body["messages"][0],):
        for name, value in values.items():
            message["content"] = message["content"].replace("{" + name + "}", value)


def _tail(body: Body, value: str) -> None:
    body["messages"][-1]["content"] += "\n" + value


def _both(put: Callable[[Body, str], None], x: str, y: str) -> Callable[[Body, Body], None]:
    """Put one value into each side."""

    def apply(a: Body, b: Body) -> None:
        put(a, x)
        put(b, y)

    return apply


def _leave(a: Body, b: Body) -> None:
    """Both sides as they were."""


def _value(code: str, place: int, name: str, x: str, y: str) -> Plant:
    """A value in the system text, which its fix moves to the end."""

    def mend(a: Body, b: Body) -> None:
        for body, value in ((a, x), (b, y)):
            _fill(body, **{name: ""})
            _tail(body, value)

    return Plant(code, place, _both(lambda body, value: _fill(body, **{name: value}), x, y), mend)


def _url(x: str, y: str) -> Plant:
    def put(body: Body, value: str) -> None:
        function = body["tools"][0]["function"]
        function["description"] = function["description"].replace("{url}", value)

    def mend(a: Body, b: Body) -> None:
        for body, value in ((a, x), (b, y)):
            put(body, "https://h.example.com/")
            _tail(body, value.rpartition("/")[2])

    return Plant("A5", 0, _both(put, x, y), mend)


def _lines() -> Plant:
    one, two = "- ask: x\n- plan: y\n- run: z", "- run: z\n- ask: x\n- plan: y"

    def fill(body: Body, value: str) -> None:
        _fill(body, lines=value)

    return Plant("B1", 5, _both(fill, one, two), _both(fill, one, one))


def _result() -> Plant:
    def spoil(a: Body, b: Body) -> None:
        b["messages"][3]["content"] = '{"y": 2, "x": 1}'

    return Plant("B3", 6, spoil, _leave)


def _arguments() -> Plant:
    def spoil(a: Body, b: Body) -> None:
        b["messages"][2]["tool_calls"][0]["function"]["arguments"] = '{"a":1,"b":[2]}'

    return Plant("B3", 6, spoil, _leave)


def _pruned() -> Plant:
    def spoil(a: Body, b: Body) -> None:
        b["messages"][4]["content"] = "[pruned]"

    return Plant("D4", 7, spoil, _leave)


def plants(rng: random.Random) -> list[Plant]:
    """Two or three faults in different places, in the order in which they are rendered."""
    n = rng.randrange(10, 60)
    known = [
        _url(f"https://h.example.com/session_{n}AbC", f"https://h.example.com/session_{n + 7}XyZ"),
        _value("A1", 1, "clock", f"09:{n}:14", f"10:{n}:55"),
        _value("A2", 2, "nonce", f"a{n}f3", f"0{n}cd"),
        _lines(), rng.choice([_result(), _arguments()]), _pruned(),
    ]  # fmt: skip
    return sorted(rng.sample(known, rng.choice((2, 3))), key=lambda plant: plant.place)


DEFAULTS = {"clock": "noon", "nonce": "none", "path": "/data", "lines": "- ask: x\n- plan: y\n- run: z"}


def build(seed: int, mended: set[int]) -> tuple[Body, Body, list[Plant]]:
    """Both requests with every fault planted but those mended, as a repaired assembler would send them."""
    rng = random.Random(seed)
    chosen = plants(rng)
    a = base(rng, seed % 4)
    b = copy.deepcopy(a)
    b["messages"] = [*b["messages"], assistant(prose(20, 40)), user("And then?")]
    for index, plant in enumerate(chosen):
        (plant.mend if index in mended else plant.spoil)(a, b)
    for body in (a, b):
        _fill(body, **DEFAULTS)
        function = body["tools"][0]["function"]
        function["description"] = function["description"].replace("{url}", "https://h.example.com/")
    return a, b, chosen


def replay(seed: int, mended: set[int], tokenizer: WordTokenizer) -> int:
    """Tokens the two requests share after the edit, counted by a loop."""
    a, b, _ = build(seed, mended)
    left, right = (list(tokenizer.encode(neutral_layout(body))) for body in (a, b))
    parted = (index for index, (x, y) in enumerate(zip(left, right, strict=False)) if x != y)
    return next(parted, min(len(left), len(right)))


@pytest.mark.parametrize("block", range(10))
def test_gains_equal_a_replay_after_the_edit(block: int) -> None:
    """Three hundred requests: every planted fault is listed in order, each gain is what the edited requests share."""
    for seed in range(block * 30, block * 30 + 30):
        tokenizer = WordTokenizer()
        a, b, chosen = build(seed, set())
        diff = diff_prompts(a, b, tokenizer)
        assert [seam.code for seam in diff.seams] == [plant.code for plant in chosen], seed
        shared = replay(seed, set(), tokenizer)
        assert diff.shared_tokens == shared
        for index, seam in enumerate(diff.seams):
            assert shared + seam.recovered_alone == replay(seed, {index}, tokenizer), (seed, index)
            assert shared + seam.recovered_together == replay(seed, set(range(index + 1)), tokenizer), (seed, index)
