"""CachedTokenizer: what it counts, how calls for one text share an encoding, and what it does about a doubtful encoder."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.errors import InputTooLarge, TokenizerError
from foreword.testing.crafted import RECIPES, write
from foreword.tokens.tokenizer import CacheableTokenizer

HISTORY = "<|im_start|>user\nHow far is the moon?<|im_end|>\n<|im_start|>assistant\n"
LONG = "And how long is the way there by train? " * 100


class Watched:
    """A tokenizer that tells of each encoding before it is done, and may be said to have given up an encoder."""

    def __init__(self, tokenizer: CacheableTokenizer, before: Callable[[], None]) -> None:
        self._tokenizer = tokenizer
        self._before = before
        self.encoder_fallbacks = 0
        self.encodings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_core(self, texts: Sequence[str]) -> list[bytes]:
        """As the tokenizer itself."""
        self.encodings += 1
        self._before()
        return self._tokenizer.encode_core(texts)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CacheableTokenizer:
    """A small one with ChatML's tokens."""
    return load_tokenizer(write(RECIPES["cl100k-like"], tmp_path_factory.mktemp("cache")))


def test_each_level_counts_its_lookups_and_what_it_saved(tokenizer: CacheableTokenizer) -> None:
    """L1 is asked only for what L0 does not know."""
    cache = CachedTokenizer(tokenizer, l0=L0Config(), l1=L1Config())
    first = cache.encode_with_usage(HISTORY)
    again = cache.encode_with_usage(HISTORY)
    longer = cache.encode_with_usage(HISTORY + "384,400 km.")
    statistics = cache.statistics()
    assert [call.layer for call in (first, again, longer)] == [None, "l0", "l1"]
    assert again.cached_tokens == len(again.ids)
    assert (statistics.l0.hits, statistics.l0.misses, statistics.l0.entries) == (1, 2, 2)
    assert (statistics.l1.hits, statistics.l1.misses) == (1, 1)
    assert statistics.l0.reused_bytes == len(HISTORY)
    assert statistics.cached_tokens == again.cached_tokens + longer.cached_tokens
    assert statistics.cached_tokens + statistics.uncached_tokens == sum(len(c.ids) for c in (first, again, longer))


def test_without_levels_it_is_the_tokenizer(tokenizer: CacheableTokenizer) -> None:
    """Off is the default; nothing is held or counted as cached."""
    cache = CachedTokenizer(tokenizer)
    assert [cache.encode(HISTORY), cache.encode(HISTORY)] == [tokenizer.encode(HISTORY)] * 2
    statistics = cache.statistics()
    assert (statistics.l0.entries, statistics.l1.entries, statistics.cached_tokens) == (0, 0, 0)


def test_clear_forgets_ids_and_keeps_counters(tokenizer: CacheableTokenizer) -> None:
    """A text after it is a miss again."""
    cache = CachedTokenizer(tokenizer, l0=L0Config(), l1=L1Config())
    cache.encode(HISTORY), cache.encode(HISTORY)
    cache.clear()
    statistics = cache.statistics()
    assert (statistics.l0.entries, statistics.l0.bytes, statistics.l1.entries, statistics.l1.bytes) == (0, 0, 0, 0)
    assert cache.encode_with_usage(HISTORY).layer is None
    assert cache.statistics().l0.hits == 1


def test_a_text_over_the_limit_is_refused(tokenizer: CacheableTokenizer) -> None:
    """With the limit and the size in the error."""
    cache = CachedTokenizer(tokenizer, max_characters=10)
    with pytest.raises(InputTooLarge, match="has 11 characters; at most 10") as caught:
        cache.encode("a" * 11)
    assert caught.value.evidence == {"limit": 10, "size": 11}


def test_calls_for_one_long_text_encode_it_once(tokenizer: CacheableTokenizer) -> None:
    """Those who come while it is under way wait for it and get the same ids."""
    begun, go_on = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        assert go_on.wait(20)

    watched = Watched(tokenizer, before)
    cache = CachedTokenizer(watched, l1=L1Config())
    with ThreadPoolExecutor(4) as pool:
        leader = pool.submit(cache.encode_with_usage, LONG)
        assert begun.wait(20)
        followers = [pool.submit(cache.encode_with_usage, LONG) for _ in range(3)]
        while cache.statistics().shared < 3:
            threading.Event().wait(0.001)
        go_on.set()
        expected = tokenizer.encode(LONG)
        assert leader.result(20).ids == expected
        assert [call.result(20).ids for call in followers] == [expected] * 3
    assert watched.encodings == 1


def test_those_who_wait_get_the_error_of_the_one_they_waited_for(tokenizer: CacheableTokenizer) -> None:
    """And the next call tries again."""
    begun, go_on, fails = threading.Event(), threading.Event(), [True]

    def before() -> None:
        begun.set()
        assert go_on.wait(20)
        if fails.pop():
            raise TokenizerError("The library fails on this text.", hint="Send another.")

    cache = CachedTokenizer(Watched(tokenizer, before), l1=L1Config())
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(cache.encode, LONG)
        assert begun.wait(20)
        follower = pool.submit(cache.encode, LONG)
        while not cache.statistics().shared:
            threading.Event().wait(0.001)
        go_on.set()
        for call in (leader, follower):
            with pytest.raises(TokenizerError, match="fails on this text"):
                call.result(20)
    fails.append(False)
    assert cache.encode(LONG) == tokenizer.encode(LONG)


@pytest.mark.parametrize("text", [HISTORY + "Far.", HISTORY + LONG])
def test_ids_made_while_an_encoder_is_given_up_are_made_again(tokenizer: CacheableTokenizer, text: str) -> None:
    """They may be its own, and so may all that was cached before: nothing of either is kept."""
    watched = Watched(tokenizer, lambda: None)
    cache = CachedTokenizer(watched, l0=L0Config(), l1=L1Config())
    cache.encode(HISTORY)

    def before() -> None:
        watched.encoder_fallbacks = 1

    encodings, watched._before = watched.encodings, before
    made = cache.encode_with_usage(text)
    assert made.ids == tokenizer.encode(text)
    assert (made.layer, made.cached_tokens) == (None, 0)
    assert watched.encodings - encodings == 2
    assert cache.encode_with_usage(HISTORY).layer != "l0"
    cache.check_integrity()
