"""The screen before a verdict: what it lets pass, what it does not, and that a log reads the same with and without it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.build import assistant, chat, prose, system, talk, user

from foreword.diagnose.captures import capture_of
from foreword.diagnose.layout import neutral_layout
from foreword.diagnose.screen import Screen, closeness, parts_of
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
    screen.believe(first[0])
    assert (screen.is_harmless(second[0]), screen.is_harmless(tagged[0])) == (True, False)


def test_the_closest_shares_most_parts_then_most_characters() -> None:
    """Parts decide, then the characters of the first that differs."""
    later = parts_of(_asked(2, "Why so?"))
    near, far = parts_of(_asked(2, "Why not?")), parts_of(_asked(1, "Why so?"))
    assert closeness(near, later) > closeness(far, later)
    assert closeness(near, later) > closeness(parts_of(_asked(2, "Never")), later)


def test_a_template_that_breaks_the_prefix_is_found_in_every_pair() -> None:
    """What the first pair of a kind shows is never believed away: E1 is counted for each turn."""

    def layout(document: Any) -> str:
        return neutral_layout(document) + ("<think>\n\n</think> " * 40 if isinstance(document, dict) else "")

    grown = [chat(HEAD, *talk(2), *[user("q"), assistant("a")] * n, user("q")) for n in range(5)]
    found = explain_requests(map(capture_of, grown), WordTokenizer(), layout=layout)
    assert [(finding.code, finding.count) for finding in found] == [("E1", 4)]
