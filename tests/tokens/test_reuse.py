"""What is encoded again, and what is not: a cache with a high hit ratio and little reuse is no cache."""

import pytest

from foreword import CachedTokenizer, L1Config, load_tokenizer
from foreword.testing.crafted import RECIPES, write
from foreword.tokens.tokenizer import CacheableTokenizer

WORDS = [
    "the",
    "capital",
    "of",
    "France",
    "is",
    "Paris",
    "and",
    "we",
    "have",
    "known",
    "this",
    "for",
    "about",
    "two",
    "thousand",
    "years",
    "or",
    "so",
    "it",
    "seems",
    "to",
    "us",
]


def prose(size: int, salt: int) -> str:
    """Plain words, different ones for every salt."""
    words: list[str] = []
    number, length = salt, 0
    while length < size:
        number = (number * 1103515245 + 12345) % 2**31
        words.append(f"{WORDS[number % len(WORDS)]}{number % 97}" if number % 5 == 0 else WORDS[number % len(WORDS)])
        length += len(words[-1]) + 1
    return " ".join(words)[:size]


def turn(role: str, text: str) -> str:
    """A turn in ChatML."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def uncached(cache: CachedTokenizer, text: str) -> int:
    """Tokens that this request had to encode."""
    before = cache.statistics().uncached_tokens
    cache.encode(text)
    return cache.statistics().uncached_tokens - before


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CacheableTokenizer:
    """A small one in Llama's way: about 2.2 characters a token."""
    return load_tokenizer(write(RECIPES["cl100k-like"], tmp_path_factory.mktemp("reuse")))


@pytest.mark.parametrize("stranger", [None, turn("system", prose(30_000, 9)) + turn("user", "Hello?")])
def test_a_shared_system_prompt_is_reused_from_the_second_request_on(
    tokenizer: CacheableTokenizer, stranger: str | None
) -> None:
    """50 KB in common: the second question encodes only itself, also when another chat came first."""
    cache = CachedTokenizer(tokenizer, l1=L1Config())
    if stranger:
        cache.encode(stranger)
    system = turn("system", prose(50_000, 1))
    spent = [uncached(cache, system + turn("user", prose(300, 100 + n)) + "<|im_start|>assistant\n") for n in range(4)]
    assert spent[0] > 10_000
    assert max(spent[1:]) < 250


def test_a_shared_prompt_without_a_token_at_its_end_is_reused(tokenizer: CacheableTokenizer) -> None:
    """Where two inputs part in the middle of a turn, all but the last 4 KB before that is found the second time."""
    cache = CachedTokenizer(tokenizer, l1=L1Config())
    system = "<|im_start|>system\n" + prose(50_000, 2)
    spent = [uncached(cache, f"{system} {prose(300, 200 + n)}<|im_end|>\n") for n in range(3)]
    assert spent[0] > 10_000
    assert max(spent[1:]) < 2_700


def test_raw_text_that_grows_is_reused(tokenizer: CacheableTokenizer) -> None:
    """Text with no special token at all, such as a completion prompt, hits too."""
    cache = CachedTokenizer(tokenizer, l1=L1Config())
    text = prose(60_000, 3)
    spent = [uncached(cache, text[:size]) for size in range(20_000, 60_001, 2_000)]
    assert max(spent[1:]) < 3_200


def test_a_growing_conversation_encodes_only_its_new_turns(tokenizer: CacheableTokenizer) -> None:
    """Turn 100 costs what turn 2 cost."""
    cache = CachedTokenizer(tokenizer, l1=L1Config())
    history, spent = turn("system", prose(2_000, 4)), []
    for number in range(50):
        history += turn("user", prose(500, 1000 + number))
        spent.append(uncached(cache, history + "<|im_start|>assistant\n"))
        history += turn("assistant", prose(1_500, 2000 + number))
    assert max(spent[1:]) < 1_500


@pytest.mark.parametrize("new", ["", "No, I meant London.", prose(3_000, 77)])
def test_editing_the_last_user_turn_reuses_everything_before_it(tokenizer: CacheableTokenizer, new: str) -> None:
    """Only the edited turn is encoded."""
    cache = CachedTokenizer(tokenizer, l1=L1Config())
    history = turn("system", prose(5_000, 5)) + "".join(
        turn("user", prose(900, n)) + turn("assistant", prose(900, -n)) for n in range(9)
    )
    cache.encode(history + turn("user", "And what of France?") + "<|im_start|>assistant\n")
    spent = uncached(cache, history + turn("user", new) + "<|im_start|>assistant\n")
    assert spent <= len(tokenizer.encode(turn("user", new) + "<|im_start|>assistant\n")) + 4


def test_editing_a_turn_in_the_middle_reuses_what_is_before_it(tokenizer: CacheableTokenizer) -> None:
    """From the edited turn on everything is new, before it nothing is."""
    cache = CachedTokenizer(tokenizer, l1=L1Config())
    turns = [turn("user", prose(2_000, n)) for n in range(20)]
    cache.encode("".join(turns))
    rest = "".join([turn("user", "changed"), *turns[11:]])
    assert uncached(cache, "".join(turns[:10]) + rest) <= len(tokenizer.encode(rest)) + 1_300
