"""L0: whole inputs."""

import sys
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from foreword.tokens.exact_cache import ENTRY_OVERHEAD, ExactCache, L0Config, fingerprint
from foreword.tokens.tokenizer import TokenIds

CONTEXT = (None, False, "")


def _put(cache: ExactCache, text: str, context: tuple[object, bool, str] = CONTEXT, ids: int = 3) -> Any:
    return cache.put(text, context, context[2], fingerprint(text, context), TokenIds.of(range(ids)))


def _get(cache: ExactCache, text: str, context: tuple[object, bool, str] = CONTEXT) -> Any:
    return cache.get(text, context, fingerprint(text, context))


def test_an_input_is_found_by_its_whole_text_and_context() -> None:
    """Another text or another flag is another input."""
    cache = ExactCache(L0Config())
    _put(cache, "hello")
    assert _get(cache, "hello").ids == [0, 1, 2]
    assert _get(cache, "hellO") is None
    assert _get(cache, "hello", (None, True, "")) is None


def test_texts_that_share_a_fingerprint_are_told_apart_and_at_most_four_are_kept() -> None:
    """Equality is checked in full: a collision costs an entry, never a wrong answer."""
    cache = ExactCache(L0Config())
    for number in range(5):
        cache.put(f"text {number}", CONTEXT, "", 42, TokenIds.of([number]))
    found = [cache.get(f"text {number}", CONTEXT, 42) for number in range(5)]
    assert [entry and list(entry.ids) for entry in found] == [None, [1], [2], [3], [4]]
    cache.check_integrity()


def test_the_least_recently_used_entry_goes_first() -> None:
    """A hit counts as use."""
    cache = ExactCache(L0Config(max_entries=2))
    _put(cache, "a")
    _put(cache, "b")
    _get(cache, "a")
    _put(cache, "c")
    assert [_get(cache, text) is not None for text in "abc"] == [True, False, True]
    assert cache.evictions == 1


def test_an_entry_above_a_quarter_of_the_memory_is_not_stored() -> None:
    """One huge input must not drive out everything else."""
    cache = ExactCache(L0Config(max_memory=40_000))
    assert _put(cache, "x" * 12_000) is None
    assert _put(cache, "x" * 5_000) is not None


def test_a_rendering_counts_in_the_budget() -> None:
    """It is kept beside the ids until the entry goes; a second one is refused."""
    cache = ExactCache(L0Config(max_memory=40_000))
    entry = _put(cache, "a")
    before = cache.memory
    assert cache.keep_rendered(entry, b"[0,1,2]")
    assert cache.memory == before + sys.getsizeof(b"[0,1,2]")
    assert not cache.keep_rendered(entry, b"[]")
    assert not cache.keep_rendered(_put(cache, "b"), b"x" * 20_000)
    cache.check_integrity()


def test_a_tenant_over_its_quota_gives_way_to_itself() -> None:
    """Another tenant's entries stay."""
    cache = ExactCache(L0Config(tenant_max_memory=8 * (ENTRY_OVERHEAD + 200)))
    _put(cache, "mine", (None, False, "a"))
    for number in range(50):
        _put(cache, f"flood {number}", (None, False, "b"))
    assert _get(cache, "mine", (None, False, "a")) is not None
    assert cache.evictions > 0
    cache.check_integrity()


class ExactCacheMachine(RuleBasedStateMachine):
    """Against a dictionary that forgets nothing: what is found is right, and the bounds hold."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ExactCache(L0Config(max_entries=5, max_memory=20_000))
        self.known: dict[str, list[int]] = {}

    @rule(text=st.sampled_from([letter * size for letter in "abc" for size in (1, 30, 2000, 4000)]))
    def use(self, text: str) -> None:
        """Look up, and store after a miss."""
        entry = _get(self.cache, text)
        if entry is None:
            self.known[text] = [len(text), ord(text[0])]
            self.cache.put(text, CONTEXT, "", fingerprint(text, CONTEXT), TokenIds.of(self.known[text]))
        else:
            assert entry.ids == self.known[text]

    @rule(text=st.sampled_from("abc"))
    def render(self, text: str) -> None:
        """Keep a rendering beside an entry."""
        if (entry := _get(self.cache, text)) is not None:
            self.cache.keep_rendered(entry, b"r" * 500)

    @rule()
    def clear(self) -> None:
        """Forget everything."""
        self.cache.clear()

    @invariant()
    def is_sound(self) -> None:
        """After every step."""
        self.cache.check_integrity()


TestExactCacheMachine = ExactCacheMachine.TestCase
TestExactCacheMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
