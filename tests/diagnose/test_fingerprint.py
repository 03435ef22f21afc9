"""Fingerprints and their ledger."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from tests.cases.build import chat, prose, system, talk, tools, user

from foreword import prefix_fingerprint
from foreword.diagnose.fingerprint import fingerprint_request
from foreword.diagnose.ledger import DistinctCounter, FingerprintLedger
from foreword.testing.words import WordTokenizer


def test_the_fingerprint_is_the_specification_s() -> None:
    """sha256 of model|tokenizer|ids, first 16 hex digits, with the tokenizer's digest for its name."""
    tokenizer = WordTokenizer()
    ids = ",".join(map(str, tokenizer.encode("You are kind.")))
    expected = hashlib.sha256(f"m|{tokenizer.identity.digest}|{ids}".encode()).hexdigest()[:16]
    assert prefix_fingerprint("You are kind.", tokenizer, "m") == expected


def test_another_tokenizer_or_model_is_another_fingerprint() -> None:
    """The same text under another vocabulary is another key."""
    one, two = WordTokenizer("one"), WordTokenizer("two")
    prints = {
        prefix_fingerprint("Hi", one, "m"),
        prefix_fingerprint("Hi", two, "m"),
        prefix_fingerprint("Hi", one, "n"),
    }
    assert len(prints) == 3


def _changed(body: Any, part: str) -> Any:
    if part == "tools":
        return {**body, "tools": body["tools"][::-1]}
    messages = list(body["messages"])
    place = {"system": 0, "history": 1, "question": -1}[part]
    messages[place] = {**messages[place], "content": "other"}
    return {**body, "messages": messages}


@pytest.mark.parametrize(
    "part, moved",
    [
        ("tools", {"prefix_fp", "tools_fp"}),
        ("system", {"prefix_fp", "system_fp"}),
        ("history", {"history_fp"}),
        ("question", set()),
    ],
)
def test_the_segment_that_changed_moves(part: str, moved: set[str]) -> None:
    """Each fingerprint stands for its own segment; the newest question is in none."""
    tokenizer = WordTokenizer()
    body = chat(system(prose(40)), *talk(2), user("Why?"), tools=tools(3))
    before, after = (fingerprint_request(b, tokenizer) for b in (body, _changed(body, part)))
    names = ("prefix_fp", "tools_fp", "system_fp", "history_fp")
    assert {name for name in names if getattr(before, name) != getattr(after, name)} == moved


def test_absent_segments_have_no_fingerprint() -> None:
    """No tools, no system text, no history: None, not a hash of nothing."""
    prints = fingerprint_request(chat(user("Hi")), WordTokenizer())
    assert (prints.tools_fp, prints.system_fp, prints.history_fp) == (None, None, None)


@pytest.mark.parametrize("count", [0, 1, 9_999, 10_000])
def test_counts_are_exact_to_ten_thousand(count: int) -> None:
    """Below the bound every value is counted."""
    counter = DistinctCounter()
    for n in range(count):
        counter.add(f"fp{n}")
        counter.add(f"fp{n // 2}")
    assert (counter.count(), counter.is_exact) == (count, True)


@pytest.mark.parametrize("count", [10_001, 30_000, 200_000])
def test_counts_beyond_are_within_two_percent(count: int) -> None:
    """Above the bound the estimate is near."""
    for seed in range(3):
        counter = DistinctCounter()
        for n in range(count):
            counter.add(f"{seed}-{n}")
        assert not counter.is_exact
        assert abs(counter.count() / count - 1) < 0.02


def test_a_planted_change_is_dated_to_its_window_and_segment() -> None:
    """system_fp goes from 1 to 300 at 14:05 while tools_fp stays at 1."""
    ledger, start = FingerprintLedger(), 14 * 3600
    for n in range(600):
        time = start + n * 2
        moving = f"s{n}" if time >= start + 300 else "s"
        ledger.record("chat", {"system_fp": moving, "tools_fp": "t", "history_fp": None}, time)
    [onset] = ledger.onsets("chat")
    assert (onset.segment, onset.window, onset.before, onset.steady) == ("system_fp", start + 300, 1, ("tools_fp",))
    assert str(onset) == "system_fp went from 1 to 150 at 14:05; tools_fp stayed"


def test_the_ledger_is_bounded() -> None:
    """Lanes and windows beyond the bounds are forgotten, the oldest first."""
    ledger, chance = FingerprintLedger(max_windows=3, max_lanes=4), random.Random(1)
    for n in range(500):
        ledger.record(f"lane{chance.randrange(9)}", {"prefix_fp": str(n)}, n * 60.0)
        ledger.check_integrity()
    statistics = ledger.statistics()
    assert statistics.lanes == 4
    assert statistics.windows <= 12
