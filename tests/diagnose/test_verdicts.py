"""The running verdict: right causes, silence on harmless requests, bounds, tenants, speed."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from tests.cases.build import chat, prose, system, talk, tools, user
from tests.cases.catalogue import all_cases
from tests.cases.test_harmless import PAIRS

from foreword.diagnose.layout import neutral_layout
from foreword.diagnose.verdicts import SeamWatch
from foreword.testing.words import WordTokenizer

CHATS = [
    case
    for case in all_cases()
    if isinstance(case.a, dict)
    and "messages" in case.a
    and "system" not in case.a
    and case.layouts[0] is neutral_layout
    and not case.extra
]


def watch_two(a: Any, b: Any, **options: Any) -> Any:
    """The verdict on the second of two requests."""
    watch, tokenizer = SeamWatch(**options), WordTokenizer()
    watch.observe(a, tokenizer.encode(neutral_layout(a)), model="m", now=0)
    row = watch.observe(b, tokenizer.encode(neutral_layout(b)), model="m", now=1)
    watch.check_integrity()
    return row


@pytest.mark.parametrize("case", CHATS, ids=lambda case: f"{case.number}-{case.code}")
def test_the_right_cause(case: Any) -> None:
    """The code that a full diff names, without encoding anything."""
    row = watch_two(case.a, case.b)
    assert (row.relation, row.code) == ("seam", case.code)


@pytest.mark.parametrize(
    "maker, seed",
    [pair for pair in PAIRS if pair[0].__name__ != "_appended_text"],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_harmless_requests_are_no_seam(maker: Any, seed: int) -> None:
    """Appends, compaction, new sessions, retries and branches."""
    assert watch_two(*maker(random.Random(seed))).relation != "seam"


def _turn(turns: int, clock: str) -> Any:
    return chat(system(f"{prose(200, 1)}\nNow {clock}"), *talk(turns), user("Next"))


def test_the_best_of_the_last_few_is_compared_with() -> None:
    """A request that extends the one before the last is appended, whatever came between."""
    watch, tokenizer = SeamWatch(), WordTokenizer()
    bodies: list[Any] = [_turn(1, "10:00"), chat(system(prose(40, 9)), user("Title?")), _turn(2, "10:00")]
    bodies[0]["messages"][-1] = bodies[2]["messages"][3]
    rows = [watch.observe(body, tokenizer.encode(neutral_layout(body)), model="m") for body in bodies]
    assert rows[2].relation == "appended"


def test_owners_and_lanes_never_meet() -> None:
    """Another organisation's request is not compared with, so nothing about it can be learned."""
    watch, tokenizer = SeamWatch(), WordTokenizer()
    body = _turn(2, "10:00")
    ids = tokenizer.encode(neutral_layout(body))
    assert watch.observe(body, ids, model="m", owner="a").relation == "first"
    assert watch.observe(body, ids, model="m", owner="b").relation == "first"
    assert watch.observe(body, ids, model="m", owner="a", lane="x").relation == "first"
    assert watch.observe(body, ids, model="m", owner="a").relation == "identical"


def test_text_is_kept_only_when_it_may_be_shown() -> None:
    """Without leave there is no prompt text in a row."""
    a, b = _turn(1, "10:00"), _turn(2, "10:01")
    assert "10:0" not in repr(watch_two(a, b))
    assert watch_two(a, b, show_text=True).b_text == "10:01"


def test_everything_is_bounded() -> None:
    """Bytes, lanes and rows stay within their bounds, and the books agree after every step."""
    watch, tokenizer, chance = (
        SeamWatch(max_bytes=60_000, max_lanes=5, max_rows=7, compared=3),
        WordTokenizer(),
        random.Random(3),
    )
    for n in range(200):
        body = chat(system(prose(chance.randrange(1, 900), chance.randrange(4))), user(f"{n}"))
        watch.observe(body, tokenizer.encode(neutral_layout(body)), model="m", lane=str(chance.randrange(9)))
        watch.check_integrity()
    assert watch.statistics().rows == 7
    assert [row.number for row in watch.rows(after=197)] == [198, 199, 200]


def test_rows_page_forward_and_lose_none() -> None:
    """From a number on the oldest come first; without one the newest are shown; no limit means none."""
    watch, tokenizer = SeamWatch(), WordTokenizer()
    for n in range(9):
        watch.observe(chat(user(f"{n}")), tokenizer.encode(f"{n}"), model="m")
    assert [[row.number for row in watch.rows(after, limit=3)] for after in (1, 4, 7)] == [[2, 3, 4], [5, 6, 7], [8, 9]]
    assert [row.number for row in watch.rows(limit=2)] == [8, 9]
    assert watch.rows(limit=0) == watch.rows(3, limit=0) == []


def test_a_bare_prompt_is_no_conversation_gone_wrong() -> None:
    """One lane may send both kinds; they are different calls, and neither is the other's seam."""
    watch, tokenizer = SeamWatch(), WordTokenizer()
    text = prose(60)
    watch.observe(chat(system(text), user("Why?")), tokenizer.encode(f"system {text} Why?"), model="m")
    assert watch.observe({"prompt": text}, tokenizer.encode(text), model="m").relation == "first"


def test_a_malformed_body_costs_nothing() -> None:
    """Whatever is in a body, a verdict does not raise."""
    odd: dict[str, Any] = {"messages": [{"role": {}, "content": [1, None, {"type": []}]}, 7, None], "tools": {"a": 1}}
    watch, tokenizer = SeamWatch(), WordTokenizer()
    watch.observe(odd, tokenizer.encode("a b c"), model="m")
    assert watch.observe({"messages": odd["messages"][::-1]}, tokenizer.encode("a x c"), model="m").shared_tokens == 1


@pytest.mark.slow  # a time in milliseconds: it holds on a machine that is not busy with the rest of the suite
def test_a_near_duplicate_of_fourteen_thousand_tokens_takes_under_a_millisecond() -> None:
    """The faster quarter of requests of 14k tokens that differ in a clock and go on by a turn; a busy machine slows the rest."""
    tokenizer, watch, times = WordTokenizer(), SeamWatch(), []
    bodies = [
        chat(system(f"{prose(900, 1)}\nNow 10:{n:02}:00\n{prose(900, 2)}"), *talk(95 + n), user("Go"), tools=tools(20))
        for n in range(20)
    ]
    bodies = json.loads(json.dumps(bodies))  # as they come, no two sharing a message
    encoded = [tokenizer.encode(neutral_layout(body)) for body in bodies]
    assert len(encoded[0]) > 14_000
    for body, ids in zip(bodies, encoded, strict=True):
        start = time.thread_time()
        row = watch.observe(body, ids, model="m")
        times.append(time.thread_time() - start)
    assert row.code == "A1"
    assert sorted(times)[len(times) // 4] < 0.001
