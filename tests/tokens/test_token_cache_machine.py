"""The cache as a state machine: any requests in any order, budgets always kept, integrity always whole."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.testing.crafted import RECIPES, write
from foreword.testing.histories import Oracle, replay
from foreword.testing.reference import Reference, load_reference
from foreword.testing.texts import SCRAPS

NAMES = ("contained-tokens", "qwen-like", "stripping-tokens", "metaspace-first", "normalized-tokens", "truncation")
MADE: dict[str, Reference] = {}


def made(name: str) -> Reference:
    """The crafted tokenizer, made once a process."""
    if name not in MADE:
        MADE[name] = load_reference(write(RECIPES[name], Path(tempfile.mkdtemp()) / name), name)
    return MADE[name]


PIECES = st.one_of(
    st.sampled_from(SCRAPS),
    st.sampled_from(("<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<s>", "<|user|>", "<mask>", "word", "<|im_")),
    st.integers(1, 40).map(lambda n: f"hello world {n}, the capital of France. " * n),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


class TokenCacheMachine(RuleBasedStateMachine):
    """Requests over texts that grow out of one another, under budgets that always evict."""

    texts = Bundle("texts")

    @initialize(
        name=st.sampled_from(NAMES), entries=st.integers(1, 6), l0=st.integers(500, 20_000), l1=st.integers(500, 20_000)
    )
    def start(self, name: str, entries: int, l0: int, l1: int) -> None:
        """An empty cache."""
        reference = made(name)
        self.oracle, self.l0, self.l1 = Oracle(reference), L0Config(entries, l0), L1Config(l1)
        self.cache = CachedTokenizer(load_tokenizer(reference.path), l0=self.l0, l1=self.l1)

    @rule(target=texts, text=TEXTS)
    def write(self, text: str) -> str:
        """A new text."""
        return text

    @rule(target=texts, text=texts, more=TEXTS)
    def grow(self, text: str, more: str) -> str:
        """A text goes on."""
        return (text + more)[:20_000]

    @rule(target=texts, text=texts, at=st.floats(0, 1), new=PIECES)
    def edit(self, text: str, at: float, new: str) -> str:
        """A text is changed somewhere."""
        cut = int(at * len(text))
        return text[:cut] + new + text[cut + len(new) // 2 :]

    @rule(text=texts, flag=st.booleans())
    def encode(self, text: str, *, flag: bool) -> None:
        """The ids are the reference's."""
        replay(self.cache, [(text, flag)], self.oracle)

    @rule()
    def clear(self) -> None:
        """Nothing is held afterwards."""
        self.cache.clear()
        statistics = self.cache.statistics()
        assert (statistics.l0.entries, statistics.l0.bytes, statistics.l1.entries, statistics.l1.bytes) == (0, 0, 0, 0)

    @invariant()
    def whole(self) -> None:
        """Budgets are kept and the cache does not contradict itself."""
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        statistics = self.cache.statistics()
        assert statistics.l0.entries <= self.l0.max_entries
        assert statistics.l0.bytes <= self.l0.max_memory
        assert statistics.l1.bytes <= self.l1.max_memory


TestTokenCache = TokenCacheMachine.TestCase
TestTokenCache.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
