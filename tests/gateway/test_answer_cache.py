"""Ready answers by body: exact, bounded, per organisation."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from foreword.gateway.answer_cache import AnswerCache, Reuse

REUSE = Reuse(1, 10, 3)


def test_identical_bodies_only() -> None:
    """A body that differs in one byte anywhere misses, also where the key takes no sample."""
    cache = AnswerCache(max_entries=10, max_memory=1 << 20)
    body = bytes(range(256)) * 64
    cache.store("", 0, body, b"answer", REUSE)
    assert cache.find("", 0, body) == b"answer"
    for place in range(0, len(body), 97):
        other = bytearray(body)
        other[place] ^= 1
        assert cache.find("", 0, bytes(other)) is None


def test_organisation_and_generation_are_part_of_the_key() -> None:
    """Nothing is shared between organisations or across a change of tokenizers."""
    cache = AnswerCache(max_entries=10, max_memory=1 << 20)
    cache.store("acme", 1, b"body", b"answer", REUSE)
    assert cache.find("acme", 1, b"body") == b"answer"
    assert cache.find("other", 1, b"body") is None
    assert cache.find("acme", 2, b"body") is None


def test_least_recently_used_goes_first() -> None:
    """A hit makes an entry young again."""
    cache = AnswerCache(max_entries=2, max_memory=1 << 20)
    for name in (b"a", b"b"):
        cache.store("", 0, name, name, REUSE)
    cache.find("", 0, b"a")
    cache.store("", 0, b"c", b"c", REUSE)
    assert [cache.find("", 0, name) for name in (b"a", b"b", b"c")] == [b"a", None, b"c"]
    assert cache.statistics().evictions == 1


def test_oversized_answer_is_not_stored() -> None:
    """One over a quarter of the memory would push out everything else."""
    cache = AnswerCache(max_entries=10, max_memory=8192)
    cache.store("", 0, b"body", b"x" * 2048, REUSE)
    assert cache.statistics().entries == 0


def test_what_hits_save_is_counted_as_l0() -> None:
    """A hit here is a hit of L0, with the texts, bytes and tokens of the answer."""
    cache = AnswerCache(max_entries=10, max_memory=1 << 20)
    cache.store("", 0, b"body", b"answer", Reuse(texts=2, text_bytes=30, tokens=7))
    for _ in range(3):
        cache.find("", 0, b"body")
    samples = {(name, labels): value for name, labels, value in cache.samples()}
    assert samples["tokenizer_cache_lookups", ("l0", "hit")] == 6
    assert samples["tokenizer_cache_reused_bytes", ("l0",)] == 90
    assert samples["tokenizer_cached_tokens", ()] == 21


class AnswerCacheMachine(RuleBasedStateMachine):
    """Against a dict that forgets nothing: a hit is always right, and the bounds hold after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = AnswerCache(max_entries=5, max_memory=40_000)
        self.all: dict[tuple[str, bytes], bytes] = {}

    @rule(org=st.sampled_from(["", "a"]), size=st.sampled_from([3, 2100, 6000]), byte=st.integers(0, 5))
    def store(self, org: str, size: int, byte: int) -> None:
        """Store an answer."""
        body = bytes([byte]) * size
        answer = f"{org}{byte}{size}".encode() * (size // 4)
        self.cache.store(org, 0, body, answer, REUSE)
        self.all[org, body] = answer

    @rule(org=st.sampled_from(["", "a"]), size=st.sampled_from([3, 2100, 6000]), byte=st.integers(0, 5))
    def find(self, org: str, size: int, byte: int) -> None:
        """Find it or nothing."""
        body = bytes([byte]) * size
        assert self.cache.find(org, 0, body) in (None, self.all.get((org, body)))

    @rule()
    def clear(self) -> None:
        """Drop everything."""
        self.cache.clear()

    @invariant()
    def holds(self) -> None:
        """The books balance."""
        self.cache.check_integrity()


TestAnswerCacheMachine = AnswerCacheMachine.TestCase
TestAnswerCacheMachine.settings = settings(max_examples=50, deadline=None)
