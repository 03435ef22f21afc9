"""Incremental decoding: the pieces are the whole, no piece is taken back, and stop strings are found wherever cut."""

import importlib.resources
import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from foreword.testing import crafted
from foreword.testing.material import tokenizer_path
from foreword.tokens import CacheableTokenizer, load_tokenizer
from foreword.tokens.detokenizer import Detokenizer
from foreword.tokens.stop_strings import StopMatcher

SENTENCEPIECE = (
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)


def metaspace(scheme: str) -> dict[str, Any]:
    """SentencePiece's space symbol."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}


def in_turn(*decoders: dict[str, Any]) -> dict[str, Any]:
    """Several decoders."""
    return {"type": "Sequence", "decoders": list(decoders)}


DECODERS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "none": ("bytelevel", None),
    "byte-level": (
        "bytelevel",
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ),
    "metaspace always": ("metaspace-always", metaspace("always")),
    "metaspace first": ("metaspace-first", metaspace("first")),
    "metaspace never": ("metaspace-never", metaspace("never")),
    "llama 2": ("legacy-prepend", in_turn(*SENTENCEPIECE, {"type": "Strip", "content": " ", "start": 1, "stop": 0})),
    "gemma": ("gemma-like", in_turn(*SENTENCEPIECE)),
    "unfused bytes": ("gemma-like", in_turn(*SENTENCEPIECE[:2])),
    "bytes and metaspace": ("unigram-byte-fallback", in_turn({"type": "ByteFallback"}, metaspace("always"))),
    "wordpiece": ("wordpiece-bert", {"type": "WordPiece", "prefix": "##", "cleanup": True}),
    "wordpiece as it is": ("wordpiece-bert", {"type": "WordPiece", "prefix": "##", "cleanup": False}),
    "ctc": ("digits", {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}),
    "fuse": ("wordlevel", {"type": "Fuse"}),
}
PIECES = ["hello", " ", "é", "😀", "你好", "\n", "the end", "  ", "👩‍👩‍👧", "x.", "don't", "▁", "<|im_end|>"]


class Reference:
    """A tokenizer of the library as it is."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer
        vocabulary = sorted(tokenizer.get_vocab().values())
        bytes_ = [index for token, index in tokenizer.get_vocab().items() if token.startswith("<0x")]
        self.alphabets = [vocabulary, (bytes_ or vocabulary) * 3 + vocabulary[:200]]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """All ids at once."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string."""
        token: str | None = self.tokenizer.id_to_token(token_id)
        return token

    def some_ids(self, rng: random.Random) -> list[int]:
        """Ids as a model may say them: of text, of anything, of bytes mostly."""
        kind = rng.randrange(3)
        if kind == 2:
            text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))
            return list(self.tokenizer.encode(text).ids)
        return [rng.choice(self.alphabets[kind]) for _ in range(rng.randrange(30))]


@cache
def with_decoder(name: str) -> Reference:
    """A crafted tokenizer whose decoder is replaced."""
    recipe, decoder = DECODERS[name]
    definition = json.loads(crafted.craft(crafted.RECIPES[recipe]))
    definition["decoder"] = decoder
    return Reference(tokenizers.Tokenizer.from_str(json.dumps(definition)))


def in_pieces(items: Sequence[int], rng: random.Random) -> list[Sequence[int]]:
    """The items cut anywhere."""
    cuts = sorted(rng.sample(range(len(items) + 1), rng.randrange(len(items) + 1)))
    return [items[start:end] for start, end in zip([0, *cuts], [*cuts, len(items)], strict=True)]


def check_pieces(reference: Any, rng: random.Random) -> None:
    """Decode some ids in pieces: what was released is always the beginning of the whole, and all of it in the end."""
    ids, skip = reference.some_ids(rng), rng.random() < 0.5
    whole = reference.decode(ids, skip_special_tokens=skip)
    detokenizer = Detokenizer(reference, skip_special_tokens=skip)
    released = ""
    for piece in in_pieces(ids, rng):
        released += detokenizer.push(piece)
        assert whole.startswith(released), ids
        detokenizer.check_integrity()
    assert released + detokenizer.finish() == whole, ids


@pytest.mark.parametrize("name", DECODERS)
def test_the_pieces_are_the_whole(name: str) -> None:
    """For every kind of decoder, any ids in any pieces release exactly their decoding, and never take a letter back."""
    rng = random.Random(name)
    for _ in range(100):
        check_pieces(with_decoder(name), rng)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.material(name)) for name in ("llama2", "qwen3", "gemma3", "llama3_1")],
)
def test_the_pieces_are_the_whole_for_published_tokenizers(name: str) -> None:
    """The same, for real vocabularies."""
    reference = Reference(tokenizers.Tokenizer.from_file(str(tokenizer_path(name) / "tokenizer.json")))
    rng = random.Random(name)
    for _ in range(100):
        check_pieces(reference, rng)


CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Backend:
    """A tokenizer of Foreword's own, and ids for it."""

    def __init__(self, tokenizer: CacheableTokenizer) -> None:
        self.decode, self.id_to_token, self.encode = tokenizer.decode, tokenizer.id_to_token, tokenizer.encode
        self.vocab_size = tokenizer.vocab_size

    def some_ids(self, rng: random.Random) -> list[int]:
        """Ids of text, of single bytes, of anything up to the special tokens, which leave gaps."""
        if rng.random() < 0.5:
            return list(self.encode("".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))))
        return [rng.randrange(rng.choice([1300, self.vocab_size - 30])) for _ in range(rng.randrange(30))]


@pytest.mark.material("cl100k_base")
def test_the_pieces_are_the_whole_for_tiktoken() -> None:
    """The same, for an encoding of tiktoken's, whose tokens are bytes."""
    tokens = {"<|endoftext|>": 100257}
    tokenizer = load_tokenizer(tokenizer_path("cl100k_base"), pattern=CL100K, special_tokens=tokens)
    rng = random.Random("tiktoken")
    for _ in range(100):
        check_pieces(Backend(tokenizer), rng)


def test_the_pieces_are_the_whole_for_tekken() -> None:
    """The same, for Mistral's tekken, whose special tokens part the text."""
    data = Path(str(importlib.resources.files("mistral_common"))) / "data"
    tokenizer = load_tokenizer(data / "tekken_240911.json")
    rng = random.Random("tekken")
    for _ in range(100):
        check_pieces(Backend(tokenizer), rng)


def test_a_character_is_released_when_it_is_whole() -> None:
    """The bytes of an emoji give nothing until the last, and then the emoji, not a replacement character."""
    reference = with_decoder("llama 2")
    ids = [reference.tokenizer.token_to_id(f"<0x{byte:02X}>") or 0 for byte in "😀".encode()]
    detokenizer = Detokenizer(reference)
    assert [detokenizer.push([token_id]) for token_id in ids] == ["", "", "", ""]
    assert detokenizer.push(reference.tokenizer.encode("a").ids).startswith("😀")


def test_an_unfinished_character_is_replaced_in_the_end() -> None:
    """finish() shows that bytes came that are no character."""
    reference = with_decoder("gemma")
    detokenizer = Detokenizer(reference)
    assert detokenizer.push([reference.tokenizer.token_to_id("<0xF0>") or 0]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_the_first_word_keeps_its_space_behind_a_prompt() -> None:
    """Decoded alone, SentencePiece's first word loses its space; an answer that follows a prompt must not."""
    reference = with_decoder("llama 2")
    prompt, answer = (reference.tokenizer.encode(text, add_special_tokens=False).ids for text in ("hello", "world"))
    assert Detokenizer(reference).push(answer) == "world"
    assert Detokenizer(reference, prompt_ids=prompt).push(answer) == " world"


class Characters:
    """One id a character: decoding is nothing, so that what is tested is the rest."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Code points to text."""
        del skip_special_tokens
        return "".join(map(chr, ids))

    def id_to_token(self, token_id: int) -> str:
        """The character."""
        return chr(token_id)


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop string to be complete ends, found the plain way."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def may_be_stop(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of the text that are the beginning of a stop string."""
    ends = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max(ends, default=0)


LETTERS = st.text(alphabet="ab<", max_size=24)


@given(
    LETTERS, st.lists(st.text(alphabet="ab<", max_size=5), max_size=6), st.booleans(), st.randoms(use_true_random=False)
)
def test_stop_strings_end_the_text_wherever_it_is_cut(
    text: str,
    stops: list[str],
    include: bool,  # noqa: FBT001 - drawn
    rng: random.Random,
) -> None:
    """The text ends before (or behind) the first complete stop string; held back is only what may still become one."""
    detokenizer = Detokenizer(Characters(), stop=stops, include_stop_str_in_output=include)
    released, seen = "", ""
    for piece in in_pieces([ord(letter) for letter in text], rng):
        released += detokenizer.push(piece)
        seen += "".join(map(chr, piece))
        detokenizer.check_integrity()
        if detokenizer.stopped is None:
            assert released == seen[: len(seen) - may_be_stop(seen, stops)]
    released += detokenizer.finish()

    expected = first_stop(text, stops)
    if expected is None:
        assert (released, detokenizer.stopped) == (text, None)
    else:
        end, stop = expected
        assert (released, detokenizer.stopped) == (text[:end] if include else text[: end - len(stop)], stop)


def test_nothing_follows_a_stop_string() -> None:
    """Once stopped, further ids and the end release nothing."""
    detokenizer = Detokenizer(Characters(), stop=["b"])
    assert detokenizer.push([97, 98, 99]) == "a"
    assert (detokenizer.push([100]), detokenizer.finish(), detokenizer.stopped) == ("", "", "b")


def test_statistics_count_what_came_and_went() -> None:
    """Ids in, characters out, characters held."""
    detokenizer = Detokenizer(Characters(), stop=["bcd"])
    detokenizer.push([97, 98, 99])
    found = detokenizer.statistics()
    assert (found.tokens, found.characters, found.held) == (3, 1, 2)
    detokenizer.finish()
    assert detokenizer.statistics().characters == 3


def test_work_does_not_grow_with_the_text() -> None:
    """Each id is decoded in a window of a few, and each character is looked at once however many stops there are."""
    decoded = 0

    class Counting(Characters):
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            nonlocal decoded
            decoded += len(ids)
            return super().decode(ids, skip_special_tokens=skip_special_tokens)

    detokenizer = Detokenizer(Counting(), skip_special_tokens=False, stop=[f"{number}!" for number in range(1000)])
    for token_id in range(97, 97 + 20):
        for _ in range(100):
            detokenizer.push([token_id])
    assert decoded <= 8 * 2000


@pytest.mark.parametrize(
    "name,token", [("byte-level", "ÿ"), ("byte-level", "ð"), ("metaspace always", "\ufffd"), ("gemma", "\ufffd")]
)
def test_a_flood_of_broken_characters_stays_cheap(name: str, token: str) -> None:
    """A model made to say one broken byte for ever costs the same for each, and all of it is shown in the end."""
    reference = with_decoder(name)
    reference.tokenizer.add_tokens(["\ufffd"])
    broken = reference.tokenizer.token_to_id(token)
    assert broken is not None
    detokenizer = Detokenizer(reference)
    released = "".join(detokenizer.push([broken]) for _ in range(3000))
    assert len(detokenizer._decoder._window) <= 2 * 64
    assert released + detokenizer.finish() == reference.decode([broken] * 3000)


def test_text_before_an_unfinished_character_is_not_held() -> None:
    """Only the character itself waits."""
    reference = with_decoder("byte-level")
    ids = [reference.tokenizer.token_to_id(token) or 0 for token in ("a", "ð", "Ł", "ĺ", "Ģ")]
    detokenizer = Detokenizer(reference)
    assert [detokenizer.push(piece) for piece in (ids[:2], ids[2:3], ids[3:4], ids[4:])] == ["a", "", "", "😀"]


def test_matcher_finds_stops_inside_stops() -> None:
    """A stop string that is the end of another's beginning is found."""
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.feed("ab") is None
    assert matcher.held == 2
    assert matcher.feed("c") == (1, "bc")
