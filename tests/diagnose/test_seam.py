"""The seam in ids: the specification's example, real vocabularies, and the splicing encoder."""

from __future__ import annotations

import itertools
import json
import random
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tests.cases.build import prose

from foreword import first_divergence, load_tokenizer
from foreword.diagnose.diff import diff_ids, diff_prompts
from foreword.diagnose.seam import shared_tokens
from foreword.diagnose.splice import PieceEncoder
from foreword.testing.material import tokenizer_path
from foreword.testing.words import WordTokenizer
from foreword.tokens.tokenizer import TokenIds

VOCABULARIES = ("llama2", "llama3", "qwen3", "llama3_1", "deepseek_v3", "gemma3")
TEXT = f"Réponds à l'équipe naïve. Café: résumé.\n{prose(60, 1)}\nMa\u00f1ana, s\u00ed."
EDITS = {
    "NBSP": TEXT.replace("équipe naïve", "équipe\u00a0naïve"),
    "NFD": unicodedata.normalize("NFD", TEXT),
    "ZWJ": TEXT.replace("Café", "Ca\u200dfé"),
    "CRLF": TEXT.replace("\n", "\r\n"),
    "trailing space": TEXT.replace("naïve.", "naïve. "),
}


def _loop(a: Any, b: Any) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.material("llama3")
def test_the_specification_s_example() -> None:
    """Two openings that part at the fifth token: shared_tokens, shared_fraction and both contexts with repr."""
    tokenizer = load_tokenizer(tokenizer_path("llama3"), second_encoder=False)
    rest = " " + prose(900, 3)
    a, b = f"You are a support agent.{rest}", f"You are a support assistant.{rest}"
    found = first_divergence(a, b, tokenizer)
    ids_a, ids_b = list(tokenizer.encode(a)), list(tokenizer.encode(b))
    assert found["shared_tokens"] == 4
    assert found["shared_fraction"] == round(4 / max(len(ids_a), len(ids_b)), 4)
    assert found["a_context"] == [(i, repr(tokenizer.decode([i]))) for i in ids_a[1:7]]
    assert found["b_context"][3] == (18328, "' assistant'")
    assert found["a_context"][:4] == [(527, "' are'"), (264, "' a'"), (1862, "' support'"), (8479, "' agent'")]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.material(name)) for name in VOCABULARIES])
def test_the_verdict_follows_the_ids(name: str) -> None:
    """A pair that looks the same is a seam where the ids differ, and identical where a normalizer ate the change."""
    tokenizer = load_tokenizer(tokenizer_path(name), second_encoder=False)
    for edited in EDITS.values():
        a, b = list(tokenizer.encode(TEXT)), list(tokenizer.encode(edited))
        diff = diff_prompts(TEXT, edited, tokenizer)
        assert diff.identical == (a == b)
        assert diff.shared_tokens == _loop(a, b)
        assert [seam.code for seam in diff.seams] == ([] if a == b else ["E5"])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.material(name)) for name in ("llama3", "llama2")]
)
def test_spliced_ids_are_the_tokenizer_s(name: str) -> None:
    """Texts put together from known pieces have the ids of the whole text."""
    tokenizer = load_tokenizer(tokenizer_path(name))
    encoder, chance = PieceEncoder(tokenizer), random.Random(5)
    marks = ["<|im_start|>", "<|im_end|>\n", "<|eot_id|>", "</s>", "\n\n", "é", " "]
    for _ in range(60):
        parts = [chance.choice([*marks, prose(chance.randrange(1, 900), chance.randrange(5))]) for _ in range(12)]
        text = "".join(parts)
        assert list(encoder.encode(text)) == list(tokenizer.encode(text))


def test_shared_tokens_equals_a_plain_loop() -> None:
    """Bisection over the buffers finds the first difference wherever it is."""
    chance = random.Random(2)
    for size in itertools.chain(range(40), (1000, 4096)):
        ids = [chance.randrange(2**32) for _ in range(size)]
        other = list(ids)
        if size:
            other[chance.randrange(size)] ^= 1 << chance.randrange(32)
        assert shared_tokens(TokenIds.of(ids), TokenIds.of(other)) == _loop(ids, other)
        assert shared_tokens(TokenIds.of(ids), TokenIds.of(ids[: size // 2])) == size // 2


def test_other_bytes_and_the_same_ids_lose_nothing() -> None:
    """A text that the tokenizer normalizes to the same ids is identical, and the verdict says so."""

    class Folding(WordTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:
            return super().encode(text.lower(), add_special_tokens=add_special_tokens)

    diff = diff_prompts("Say Hello", "say hello", Folding())
    assert (diff.relation, diff.is_same_text, diff.seams) == ("identical", False, ())


def test_ids_of_one_text_in_two_tokenisations() -> None:
    """The text says same, the ids say other: E2."""
    tokenizer = WordTokenizer()
    head = list(tokenizer.encode("All of it."))
    a, b = head + list(tokenizer.encode("token")), head + list(tokenizer.encode("to")) + list(tokenizer.encode("ken"))
    diff = diff_ids(a, b, tokenizer)
    assert (diff.seams[0].code, diff.is_same_text) == ("E2", True)


def test_repaired_requests_share_what_was_promised() -> None:
    """The repaired pair, compared again, shares exactly the promised tokens and has no seam of that cause left."""
    tokenizer = WordTokenizer()
    a = {"messages": [{"role": "system", "content": f"Now 10:00:01. {prose(90)}"}, {"role": "user", "content": "One?"}]}
    b = {"messages": [{"role": "system", "content": f"Now 10:00:09. {prose(90)}"}, {"role": "user", "content": "Two?"}]}
    diff = diff_prompts(a, b, tokenizer)
    assert diff.repaired is not None
    again = diff_prompts(*diff.repaired, tokenizer)
    assert again.shared_tokens == diff.shared_tokens + diff.unreachable_tokens
    assert again.seams == ()
    assert diff.repaired[1]["messages"][0]["content"] == f"Now . {prose(90)}"
    assert diff.repaired[1]["messages"][1]["content"] == "Two?\n10:00:09"


@pytest.mark.parametrize(
    "a, b", [("", ""), ("", "x"), ("a\n", "a"), ("\ud7ff", "\ue000"), ("{}", "[]"), ("a" * 9000, "b" * 9000)]
)
def test_odd_texts_have_a_verdict(a: str, b: str) -> None:
    """Nothing raises on empty, huge or odd texts."""
    assert diff_prompts(a, b, WordTokenizer()).shared_tokens >= 0


def test_random_bodies_never_raise() -> None:
    """Any two JSON bodies, however malformed inside, get a verdict; composing all of A or of B gives A or B back."""
    from foreword.diagnose.changes import compare, compose

    chance = random.Random(11)

    def value(depth: int) -> Any:
        kind = chance.randrange(8 if depth else 5)
        if kind < 5:
            return chance.choice([None, True, 3, 1.5, "", "text", "a\nb\nc", "10:11:12", '{"a": 1}', "role"])
        if kind == 5:
            return [value(depth - 1) for _ in range(chance.randrange(4))]
        keys = chance.sample(
            ["role", "content", "type", "name", "id", "tool_calls", "function", "text", "cache_control"], 3
        )
        return {key: value(depth - 1) for key in keys}

    for _ in range(400):
        a, b = (
            {"model": "m", "messages": [value(3) for _ in range(chance.randrange(5))], "tools": value(3)}
            for _ in range(2)
        )
        tree = compare(a, b)
        assert json.dumps(compose(tree, lambda _: "a")) == json.dumps(a)
        assert json.dumps(compose(tree, lambda _: "b")) == json.dumps(b)
        diff_prompts(a, b, WordTokenizer())


def test_a_long_near_duplicate_is_quick(tmp_path: Path) -> None:
    """Two texts of 200 KB that differ in many lines take well under a second."""
    lines = prose(30_000, 4).split("\n")
    a = "\n".join(lines)
    b = "\n".join(f"{line} x" if n % 40 == 0 else line for n, line in enumerate(lines))
    start = time.process_time()
    diff_prompts(a, b, WordTokenizer())
    assert time.process_time() - start < 8
