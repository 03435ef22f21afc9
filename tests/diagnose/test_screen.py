"""The screen before a verdict: what it lets pass, what it does not, and that a log reads the same with and without it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.cases.build import assistant, chat, prose, system, talk, user

from foreword.diagnose.captures import capture_of
from foreword.diagnose.layout import neutral_layout
from foreword.diagnose.likeness import text_of
from foreword.diagnose.screen import Screen, closest, parts_of, same_parts, values_of
from foreword.diagnose.sequence import explain_requests
from foreword.testing.words import WordTokenizer

HEAD = system(prose(60))


def _asked(turns: int, question: str, head: Any = HEAD) -> Any:
    return chat(head, *talk(turns), user(question))


@pytest.mark.parametrize(
    "later, is_due",
    [
        (chat(*_asked(2, "Why?")["messages"], assistant("So."), user("And?")), False),
        (_asked(2, "Where?"), False),
        (chat(HEAD, user("Something else entirely?")), False),
        (_asked(2, "Why?", system(prose(60, 2))), True),
        ({**_asked(2, "Why?"), "tools": [{"type": "function", "function": {"name": "f"}}]}, True),
        (chat(*_asked(2, "Why?")["messages"], system("Be brief.")), True),
        ("a text", True),
    ],
    ids=["goes on", "another question", "another conversation", "system text", "tools", "late system text", "text"],
)
def test_what_needs_a_verdict(later: Any, *, is_due: bool) -> None:
    """Appends, new questions and new conversations pass; whatever moves the head does not."""
    assert (Screen().look(_asked(2, "Why?"), later) is None) == is_due


def test_a_kind_is_believed_once_it_was_judged() -> None:
    """Other words are the same kind; another field or a tag in the text is another kind."""
    screen = Screen()
    first = screen.look(_asked(2, "Why?"), _asked(2, "Where?"))
    second = screen.look(_asked(3, "Who?"), _asked(3, "When?"))
    tagged = screen.look(_asked(2, "Why?"), _asked(2, "Where <think> not?"))
    assert first is not None
    assert second is not None
    assert tagged is not None
    screen.believe(first.kind)
    assert (screen.is_harmless(second.kind), screen.is_harmless(tagged.kind)) == (True, False)


def test_another_conversation_needs_no_proof() -> None:
    """Whatever the template does with it, nothing of it was there before."""
    a, b = _asked(2, "Why?"), chat(HEAD, *talk(2, start=50), user("Who?"))
    found = Screen().look(a, b)
    assert found is not None
    assert (found.kind, [note.code for note in found.notes]) == (None, ["D2"])
    assert Screen().is_harmless(None)


def test_the_closest_shares_most_parts_then_most_characters() -> None:
    """Parts decide, then the characters of the first that differs; of equals it is the first."""
    later = values_of(_asked(2, "Why so?"))
    near, far, other = (
        parts_of(values_of(body)) for body in (_asked(2, "Why not?"), _asked(1, "Why so?"), _asked(2, "No"))
    )
    assert closest([far, other, near, near], later) == (2, 7)
    assert closest([far], later) == (0, 5)
    assert closest([parts_of(later)], later) == (0, 8)


def test_the_closest_is_that_of_the_naive_twin() -> None:
    """Over many requests, the same choice as comparing each with each in full."""
    rng = random.Random(3)
    bodies = [
        chat(
            system(prose(9, rng.randrange(2))),
            *talk(rng.randrange(4), start=rng.randrange(2)),
            user(prose(4, rng.randrange(9))),
        )
        for _ in range(60)
    ]
    known = [parts_of(values_of(body)) for body in bodies]
    for end in range(1, 60):
        earlier, values = known[max(0, end - 8) : end], known[end].values
        ranks = [
            (same := same_parts(one.values, values), _shared_text(one.values[same:], values[same:])) for one in earlier
        ]
        assert closest(earlier, values) == (ranks.index(max(ranks)), max(ranks)[0])


def _shared_text(a: Any, b: Any) -> int:
    """Characters that the first parts of two rests share; none where a rest is empty."""
    if not a or not b:
        return 0
    pairs = zip(text_of(a[0]), text_of(b[0]), strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(text_of(a[0])), len(text_of(b[0]))))


def test_sizes_are_measured_once() -> None:
    """The parts an earlier request begins with keep its sizes."""
    earlier = parts_of(values_of(_asked(2, "Why?")))
    later = values_of(_asked(3, "Who?"))
    same = same_parts(earlier.values, later)
    assert parts_of(later, earlier, same) == parts_of(later)
    assert parts_of(later).size == sum(map(len, map(text_of, later)))


def test_a_template_that_breaks_the_prefix_is_found_in_every_pair() -> None:
    """What the first pair of a kind shows is never believed away: E1 is counted for each turn."""

    def layout(document: Any) -> str:
        return neutral_layout(document) + ("<think>\n\n</think> " * 40 if isinstance(document, dict) else "")

    grown = [chat(HEAD, *talk(2), *[user("q"), assistant("a")] * n, user("q")) for n in range(5)]
    found = explain_requests(map(capture_of, grown), WordTokenizer(), layout=layout)
    assert [(finding.code, finding.count) for finding in found] == [("E1", 4)]
