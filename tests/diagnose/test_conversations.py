"""Which requests are of one conversation, and that alike conversations are not taken for one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.cases.build import assistant, chat, prose, system, talk, user

from foreword.diagnose.captures import capture_of
from foreword.diagnose.conversations import is_one_conversation
from foreword.diagnose.sequence import explain_requests
from foreword.testing.words import WordTokenizer

CALL = assistant(None, tool_calls=[{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}])
LONG = prose(40, 7)


@pytest.mark.parametrize(
    "a, b, is_one",
    [
        (talk(2), [*talk(2), user("And?")], True),
        (talk(4), talk(4)[4:], True),
        ([user("Hi"), assistant("Hello!")], [user("Hi"), assistant("Good day."), user("So?")], True),
        (talk(2), talk(2, start=40), False),
        ([user(f"Translate: {LONG} one"), assistant("un")], [user(f"Translate: {LONG} two"), assistant("deux")], False),
        ([user("Card 4417?"), assistant('{"label": "A"}')], [user("Where is it?"), assistant('{"label": "A"}')], False),
        ([user("[10:01] Ask"), assistant(LONG)], [user("[10:07] Ask"), assistant(LONG), user("So?")], True),
        ([user("q"), assistant(LONG)], [user("r"), assistant(f"{LONG} so")], True),
        ([user("q"), CALL], [user("r"), {**CALL, "content": ""}], True),
        ([user([{"type": "text", "text": "Ask"}])], [user("Ask"), assistant("So."), user("And?")], True),
        ([user(f"Sum up.\n{LONG}")], [user("Sum up."), assistant("So."), user(f"And?\n{LONG}")], True),
        ([], talk(1), False),
    ],
    ids=[
        "goes on", "window", "same opening", "another", "one form", "one label", "clock in a turn", "edited reply",
        "same call", "other shape", "moved document", "nothing said",
    ],
)  # fmt: skip
def test_what_makes_one_conversation(a: list[Any], b: list[Any], *, is_one: bool) -> None:
    """Own turns, the same opening or an edited reply do; one form, one label or one vocabulary does not."""
    assert is_one_conversation(a, b) == is_one


def test_the_log_s_word_counts_first() -> None:
    """Within one session any likeness is enough."""
    a, b = talk(1), talk(1, start=40)
    assert (is_one_conversation(a, b), is_one_conversation(a, b, same_session=True)) == (False, True)


@pytest.mark.parametrize("seed", range(30))
def test_alike_conversations_in_a_log_without_labels(seed: int) -> None:
    """Conversations of one form behind one head, one after another or in turns, give no finding but what is expected."""
    rng = random.Random(seed)
    conversations = [_conversation(rng, number) for number in range(4)]
    if seed % 2:
        rng.shuffle(conversations)
        bodies = [body for row in zip(*conversations, strict=True) for body in row]
    else:
        bodies = [body for row in conversations for body in row]
    captures = [capture_of(json.loads(json.dumps(body)), f"log#{n}") for n, body in enumerate(bodies)]
    found = explain_requests(captures, WordTokenizer())
    assert [finding.code for finding in found if not finding.is_expected] == []


def _conversation(rng: random.Random, number: int) -> list[Any]:
    """Five requests of one conversation: forms of question and reply that all conversations share, other values."""
    asks = ("Ticket {}: what is open?", "Translate this to French, in plain words and short lines: {}", "{}")
    replies = ('{{"label": "A", "reason": "{}"}}', "Here is the answer you asked for, step by step: {}", "{}")
    ask, reply = asks[rng.randrange(3)], replies[rng.randrange(3)]
    turns = [
        turn
        for n in range(5)
        for turn in (
            user(ask.format(prose(12, 50 * number + n))),
            assistant(reply.format(prose(rng.randrange(8, 40), 900 + 50 * number + n))),
        )
    ]
    return [chat(system(prose(120, 1)), *turns[: 2 * n + 1]) for n in range(5)]
