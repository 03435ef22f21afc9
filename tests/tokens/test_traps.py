"""Each way of caching ids that is known to be wrong, as a test with the ids the reference gives.

The rule that invites them all: cut after every special token and encode the rest on its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer

from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.errors import SpecialTokenNotAllowed, TokenizerError
from foreword.testing.crafted import RECIPES, Recipe, write
from foreword.testing.histories import Difference, Oracle, Step, replay
from foreword.testing.material import tokenizer_path
from foreword.testing.reference import ENCODINGS, Reference, load_reference
from foreword.testing.tokenizer_parts import added

TURN = "<|im_start|>user\nthe capital of France, hello world {}<|im_end|>"
FILLERS = (
    "",
    "hello ",
    "".join(map(TURN.format, range(12))),
    "hello world and the end. " * 30,
    "".join(map(TURN.format, range(70))) + "hello world. " * 40,
)
"""What comes before: nothing, a few bytes, over 512 bytes, over 512 without a token, over 4 KB."""

NO_TEMPLATE = False

TRAPS = {
    "metaspace first: text after <s> gets no space": ("metaspace-first", "<s>", "Hi"),
    "metaspace first, unsplit": ("metaspace-first-unsplit", "</s>", "Hi there"),
    "metaspace always: text after a token gets a space": ("metaspace-always", "<s>", "Hi"),
    "legacy Prepend: every segment gets a ▁": ("legacy-prepend", "<s>", "Hi"),
    "Prepend before ByteLevel": ("prepend-bytelevel", "<|im_end|>", "Hi"),
    "rstrip swallows the line end that follows": ("stripping-tokens", "<|user|>", "\nHi"),
    "rstrip swallows a space that comes later": ("stripping-tokens", "<|both|>", "  \t Hi"),
    "lstrip swallows the spaces before": ("stripping-tokens", "  ", "<|left|>Hi"),
    "lstrip across the cut of another token": ("stripping-tokens", "<|im_end|>", "  <|left|>Hi"),
    "single_word token becomes text when a letter follows": ("stripping-tokens", " word", "s"),
    "single_word special, then a letter": ("stripping-tokens", " <mask>", "ed"),
    "rstrip takes what a token of the second pass is made of": ("stripping-tokens-two-passes", "<|im_end|>\n", "\n\n"),
    "a byte's name as text, behind a character that falls back": ("legacy-prepend", "Չ", "<0x0A><"),
    "rstrip under metaspace first": ("stripping-tokens-metaspace", "<|user|>", "\nHi"),
    "template appends EOS": ("template-bos-eos", "<|im_end|>", "Hi"),
    "template wraps in four tokens": ("template-many", "<|im_end|>", "Hi"),
    "template appends SEP": ("wordpiece-bert", "<s>", "Hi"),
    "roberta": ("roberta", "</s>", "Hi"),
    "a token contained in a longer one": ("contained-tokens", "<|im_end|>", "\nHi"),
    "two tokens that are one": ("contained-tokens", "<|im_end|>", "<|im_start|>user"),
    "a token and text that are one": ("contained-tokens", "<|im_start|>", "user\nHi"),
    "tokens that overlap": ("overlapping-tokens", "<a>", "<b><a>"),
    "tokens that overlap from the left": ("overlapping-tokens", "<a><b>", "><a>"),
    "normalized token, then a mark that NFC joins to it": ("normalized-tokens-nfc", "<|im_end|>", "\u0338x"),
    "raw token, then a mark": ("normalized-tokens-nfc", "<|raw|>", "\u0338x"),
    "normalized token under NFKC and Lowercase": ("nfkc-lowercase", "<|IM_END|>", "Hi"),
    "normalized token under the legacy Prepend": ("normalized-tokens-legacy", "<|im_end|>", "Hi"),
    "normalized token with no normalizer": ("normalized-tokens", "<|im_end|>", "Hi"),
    "stripped accents after a token": ("nfd-strip-accents", "<|im_end|>", "\u0301e"),
    "NFC after a token": ("qwen-like", "<|im_end|>", "\u0301e"),
    "truncation cuts the whole, not each part": ("truncation", "<|im_end|>", "Hi"),
    "truncation on the left": ("truncation-left", "<|im_end|>", "Hi"),
    "padding fills the whole, not each part": ("padding-fixed", "<|im_end|>", "Hi"),
    "padding to a multiple": ("padding-multiple", "<|im_end|>", "Hi"),
    "truncation and padding": ("truncation-padding", "<|im_end|>", "Hi"),
    "pad_token names a plain word": ("pad-plain-word", "the", "re"),
    "eos_token names a plain word": ("pad-plain-word", "hello", "world"),
    "an added token that is a space": ("whitespace-tokens", " ", " Hi"),
    "an added token that is part of a run": ("whitespace-tokens", "\n\n", "\nHi"),
    "an added token that is a word": ("word-tokens", "the", "re"),
    "an added token that is a letter": ("word-tokens", "a", "\u0301b"),
    "Strip takes the spaces around each part": ("strip", "<|im_end|> ", " Hi"),
    "spaces merged across a text cut": ("replace-regex", "hello ", "  world"),
    "fixed lengths count from the start": ("fixed-length", "<|im_end|>", "Hi there"),
    "a split that merges with what follows": ("split-merged", "hello,", " world"),
    "no regex: merges reach over spaces": ("bytelevel-no-regex", "and the", " the end"),
    "byte fallback": ("gemma-like", "<|im_end|>", "\u4dff Hi"),
    "Unigram looks ahead": ("unigram-t5", "hello", " world"),
    "dropout of zero is no dropout": ("dropout-zero", "<|im_end|>", "Hi"),
}


def histories(token: str, suffix: str) -> Iterator[list[Step]]:
    """Requests that leave a cut right behind the token, then go on with what makes it wrong."""
    for filler in FILLERS:
        texts = (
            filler,
            filler + token,
            filler + token + "x",
            filler + token + suffix,
            filler + token + suffix + "\nthe end",
        )
        for order in (texts, texts[::-1], (texts[1], texts[3]), (texts[2], texts[3]), (texts[4], texts[1], texts[3])):
            yield [(text, flag) for text in order for flag in (True, False)]


@pytest.mark.parametrize("trap", TRAPS)
def test_known_trap(trap: str, tmp_path: Path) -> None:
    """No order of requests makes the cache fall into it."""
    recipe, token, suffix = TRAPS[trap]
    reference = load_reference(write(RECIPES[recipe], tmp_path))
    tokenizer, oracle = load_tokenizer(tmp_path), Oracle(reference)
    for history in histories(token, suffix):
        replay(CachedTokenizer(tokenizer, l1=L1Config()), history, oracle)


class NaiveCache:
    """The rule that invites every trap, to show that the tests see them."""

    def __init__(self, reference: Reference) -> None:
        self._encode, self._tokens = reference.encode, reference.added_tokens
        self._beginnings = {""}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encode what follows the longest beginning seen before that ends in a special token on its own."""
        head = max((seen for seen in self._beginnings if text.startswith(seen)), key=len)
        for token in self._tokens:
            self._beginnings.update(text[: at + len(token)] for at in range(len(text)) if text.startswith(token, at))
        return [
            *self._encode(head, add_special_tokens=add_special_tokens),
            *self._encode(text[len(head) :], add_special_tokens=add_special_tokens and not head),
        ]

    def clear(self) -> None:
        """Nothing to forget."""

    def check_integrity(self) -> None:
        """Nothing to check."""


@pytest.mark.parametrize(
    "trap",
    [
        trap
        for trap, (recipe, _, _) in TRAPS.items()
        if recipe in {"metaspace-first", "contained-tokens", "truncation", "template-bos-eos"}
    ],
)
def test_the_naive_rule_falls_into_it(trap: str, tmp_path: Path) -> None:
    """The same histories show that cutting after every special token is wrong, so they are worth running."""
    recipe, token, suffix = TRAPS[trap]
    reference = load_reference(write(RECIPES[recipe], tmp_path))
    history = [step for steps in histories(token, suffix) for step in steps]
    with pytest.raises(Difference):
        replay(NaiveCache(reference), history, Oracle(reference))


@pytest.mark.parametrize("text", ["\ud800", "hello \udfff<|im_end|>", "<|im_end|>" * 200 + "\ud83d"])
def test_half_a_surrogate_pair_is_a_typed_error(text: str, tmp_path: Path) -> None:
    """Text that is no Unicode is refused in one sentence, and the cache goes on."""
    reference = load_reference(write(RECIPES["cl100k-like"], tmp_path))
    cache = CachedTokenizer(load_tokenizer(tmp_path), l0=L0Config(), l1=L1Config())
    for _ in range(2):
        with pytest.raises(TokenizerError):
            cache.encode(text)
    cache.check_integrity()
    assert list(cache.encode("hello<|im_end|>")) == list(reference.encode("hello<|im_end|>", add_special_tokens=False))


def test_a_panic_of_the_library_is_a_typed_error(tmp_path: Path) -> None:
    """``tokenizers`` panics on this text (a BaseException that is no Exception); the cache refuses it and goes on."""
    strip_left = {"type": "Strip", "strip_left": True, "strip_right": False}
    recipe = Recipe(normalizer=strip_left, tokens=(added("\n\n", special=False, normalized=True, single_word=True),))
    folder = write(recipe, tmp_path)
    cache = CachedTokenizer(load_tokenizer(folder), l0=L0Config(), l1=L1Config())
    with pytest.raises(TokenizerError):
        cache.encode("\u4169")
    assert list(cache.encode("hello")) == list(load_reference(folder).encode("hello", add_special_tokens=False))


@pytest.mark.material("o200k_base")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" " * 1_000_000, id="spaces"),
        pytest.param("a" * 1_000_000, id="letters", marks=pytest.mark.slow),
        pytest.param("\n" * 1_000_000, id="lines", marks=pytest.mark.slow),
    ],
)
def test_a_megabyte_of_one_character_is_right_or_a_typed_error(text: str) -> None:
    """The o200k pattern of tiktoken gives up on such input; whoever asks gets the right ids or a TokenizerError, both times."""
    reference = load_reference(tokenizer_path("o200k_base"))
    expected = Oracle(reference)((text, NO_TEMPLATE))
    cache = CachedTokenizer(load_tokenizer(reference.path, **reference.options), l0=L0Config(), l1=L1Config())
    for _ in range(2):
        try:
            ids = cache.encode(text)
        except TokenizerError:
            assert expected is None or len(text) >= 1_000_000
        else:
            assert ids.buffer == expected


@pytest.mark.parametrize("name", ["contained-tokens", "stripping-tokens", "template-bos-eos", "word-tokens"])
def test_special_tokens_encoded_as_text_are_no_cuts(name: str, tmp_path: Path) -> None:
    """With ``encode_special_tokens`` a special token in a text is text; other added tokens still match."""
    library = Tokenizer.from_file(str(write(RECIPES[name], tmp_path) / "tokenizer.json"))
    library.encode_special_tokens = True
    cache = CachedTokenizer(load_tokenizer(tmp_path, encode_special_tokens=True), l0=L0Config(), l1=L1Config())
    for token in ("<|im_end|>", "<|user|>", "plain", "the", "<|im_start|>user"):
        for step in (step for history in histories(token, "\nHi") for step in history if step):
            expected = library.encode(step[0], add_special_tokens=step[1]).ids
            assert list(cache.encode(step[0], add_special_tokens=step[1])) == expected


@pytest.mark.material("cl100k_base")
@pytest.mark.parametrize("special", [("<a>", "<a><b>", "b><a"), ("<a><b>", "<a>"), ("<|end|>", "<|end|>\n")])
def test_overlapping_specials_follow_tiktoken_s_table(special: tuple[str, ...]) -> None:
    """The library matches specials in its table's order, not longest first; cached ids say the same."""
    path, known = tokenizer_path("cl100k_base"), ENCODINGS["cl100k_base"]
    table = {token: 100_300 + number for number, token in enumerate(special)}
    encoding = tiktoken.Encoding(
        "overlap", pat_str=known.pattern, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens=table
    )
    cache = CachedTokenizer(
        load_tokenizer(path, pattern=known.pattern, special_tokens=table), l0=L0Config(), l1=L1Config()
    )
    for token in special:
        for step in (step for history in histories(token, "<b><a>\n") for step in history if step):
            assert list(cache.encode(step[0])) == encoding.encode(step[0], allowed_special="all")


@pytest.mark.material("cl100k_base")
def test_disallowed_specials_are_refused_with_their_beginning_cached() -> None:
    """The sets are part of the key, and the check runs over the whole text."""
    path, known = tokenizer_path("cl100k_base"), ENCODINGS["cl100k_base"]
    tokenizer = load_tokenizer(path, pattern=known.pattern, special_tokens=known.special_tokens)
    encoding = load_reference(path).encode
    cache = CachedTokenizer(tokenizer, l0=L0Config(), l1=L1Config())
    text = "hello world " * 500 + "<|endoftext|>" + "the end"
    allowed = list(encoding(text, add_special_tokens=False))
    for _ in range(2):
        assert list(cache.encode(text)) == allowed
        with pytest.raises(SpecialTokenNotAllowed):
            cache.encode(text, disallowed_special={"<|endoftext|>"})
        with pytest.raises(SpecialTokenNotAllowed):
            cache.encode(text + "!", disallowed_special={"<|endoftext|>"})
        as_text = list(cache.encode(text, allowed_special=set()))
        assert 100257 not in as_text
        assert len(as_text) > len(allowed)


@pytest.mark.material("cl100k_base")
@pytest.mark.parametrize("text", ["\ud800", "a\udfff b", "<|endoftext|>\ud83d\udc4d!", "hello " * 900 + "\ud83d"])
def test_surrogates_in_tiktoken_are_repaired_or_refused(text: str) -> None:
    """The library repairs them; the cache gives the same ids or a TokenizerError, cold and warm alike."""
    reference = load_reference(tokenizer_path("cl100k_base"))
    tokenizer = load_tokenizer(reference.path, **reference.options)
    cache = CachedTokenizer(tokenizer, l0=L0Config(), l1=L1Config())
    expected = list(reference.encode(text, add_special_tokens=False))
    answers = []
    for encode in (tokenizer.encode, cache.encode, cache.encode):
        try:
            answers.append(list(encode(text)))
        except TokenizerError:
            answers.append([])
    assert answers in ([expected] * 3, [[]] * 3)
