"""Two hundred pairs that cost nothing: no tool may warn about them."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from tests.cases.build import assistant, block, chat, claude, prose, system, talk, tools, user

from foreword.diagnose.diff import diff_prompts
from foreword.testing.words import WordTokenizer

Pair = tuple[Any, Any]


def _appended(rng: random.Random) -> Pair:
    """The next turn of a conversation, with tool calls now and then."""
    n = rng.randrange(6)
    head = [system(prose(rng.randrange(50, 200), n)), *talk(n), user(f"Ask {n}")]
    call = assistant(
        None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "tool_00", "arguments": "{}"}}]
    )
    more = (
        [call, {"role": "tool", "tool_call_id": "c", "content": "ok"}]
        if rng.random() < 0.5
        else [assistant("Yes."), user("More")]
    )
    fields = {"tools": tools(3)} if rng.random() < 0.5 else {}
    return chat(*head, **fields), chat(*head, *more, **fields)


def _appended_text(rng: random.Random) -> Pair:
    """A text that goes on."""
    text = prose(rng.randrange(20, 300), rng.randrange(99))
    return text, text + " " + prose(30, 5)


def _new_question(rng: random.Random) -> Pair:
    """The same head, another question."""
    head = [system(prose(120, rng.randrange(9)))]
    return chat(*head, user(f"What is {rng.random()}?")), chat(*head, user(f"Where is {rng.random()}, and why?"))


def _new_session(rng: random.Random) -> Pair:
    """Another conversation of the same application."""
    text = prose(150, 3)
    one, two = rng.sample(range(100, 200), 2)
    return claude(text, user(prose(9, one)), assistant(prose(20, one + 1)), user("Go on")), claude(
        text, user(prose(8, two) + " please")
    )


def _compacted(rng: random.Random) -> Pair:
    """A summary takes the place of the history."""
    n = rng.randrange(4, 9)
    head = system(prose(150, 4))
    summary = user(f"Summary of the conversation so far: {prose(40, n)}")
    return chat(head, *talk(n), user("Next")), chat(head, summary, *talk(2, start=n - 2), user("Next"))


def _same_ids(rng: random.Random) -> Pair:
    """Other bytes, same ids: markers moved, ids and metadata changed, spaces in JSON."""
    a = claude(
        [block(prose(90, 1), marked=True)],
        user([block("Hello there", marked=True)]),
        metadata={"user_id": "a"},
        stream=True,
    )
    b: Any = copy.deepcopy(a)
    b["metadata"]["user_id"], b["stream"], b["temperature"] = f"b{rng.random()}", False, 0.2
    del b["messages"][0]["content"][0]["cache_control"]
    return a, json.loads(json.dumps(b, indent=rng.randrange(4)))


def _retried(rng: random.Random) -> Pair:
    """The newest message edited and sent again."""
    head = [system(prose(100, 6)), *talk(rng.randrange(1, 5))]
    return chat(*head, user("Please explain the third rule")), chat(
        *head, user("Please explain the third rule in short")
    )


def _shorter(rng: random.Random) -> Pair:
    """Back to an earlier turn."""
    turns = talk(rng.randrange(3, 6))
    head = system(prose(100, 6))
    return chat(head, *turns, user("Next")), chat(head, *turns[:2], user("Another way"))


MAKERS = (_appended, _appended_text, _new_question, _new_session, _compacted, _same_ids, _retried, _shorter)
PAIRS = [(MAKERS[n % len(MAKERS)], n) for n in range(200)]


@pytest.mark.parametrize("maker, seed", PAIRS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_no_finding_on_a_harmless_pair(maker: Any, seed: int) -> None:
    """No seam, and nothing beside it but what is marked as expected."""
    a, b = maker(random.Random(seed))
    diff = diff_prompts(a, b, WordTokenizer())
    assert [seam.code for seam in diff.seams] == []
    assert [cause.code for cause in diff.outside_causes if not cause.is_expected] == []
