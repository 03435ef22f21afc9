"""L1: beginnings of inputs. The text of these tests is letters, its ids are their numbers, and "|" is the only cut."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from foreword.tokens.boundaries import Cuts
from foreword.tokens.prefix_trie import L1Config, Match, PrefixTrie
from foreword.tokens.tokenizer import TokenIds

CONTEXT = (None, "")


def _ids(text: str) -> bytes:
    return TokenIds.of(map(ord, text)).buffer


def _cuts(text: str, start: int = 0, *, counted: bool = True) -> Cuts:
    cuts = Cuts()
    for at, character in enumerate(text[start:], start + 1):
        if character == "|":
            cuts.packed.extend((at, 1, ord("|"), at if counted else 0))
    return cuts


def _store(trie: PrefixTrie, text: str, context: tuple[None, str] = CONTEXT, *, cuts: Cuts | None = None) -> None:
    trie.store(context, text, _ids(text), _cuts(text) if cuts is None else cuts, trie.match(context, text))
    trie.check_integrity()


def _set_aside(trie: PrefixTrie, text: str) -> Match:
    match = trie.match(CONTEXT, text)
    start = match.cut.end
    assert trie.set_aside(match, text, _ids(text[start:]), _cuts(text, start, counted=False)) or match.node is None
    trie.check_integrity()
    return match


def _admit(trie: PrefixTrie, text: str) -> bool:
    match = trie.match(CONTEXT, text)
    tail = trie.waiting(match, text, _cuts(text, match.cut.end))
    if tail is not None:
        trie.admit(CONTEXT, text, match, tail)
        trie.check_integrity()
    return tail is not None


def _matched(trie: PrefixTrie, text: str, context: tuple[None, str] = CONTEXT) -> str:
    match = trie.match(context, text)
    found = text[: match.cut.end]
    assert b"".join(match.chunks) == _ids(found)
    assert (match.cut.ids_before, match.text_bytes) == (len(found), len(found.encode()))
    return found


def test_a_longer_text_finds_its_stored_beginning() -> None:
    """Up to the last cut, whatever follows."""
    trie = PrefixTrie(L1Config())
    _store(trie, "system|user|rest")
    assert _matched(trie, "system|user|rest and more") == "system|user|"


def test_an_edit_loses_only_what_follows_it() -> None:
    """The deepest cut before the first different character is still there."""
    trie = PrefixTrie(L1Config())
    _store(trie, "system|one|two|three|")
    assert _matched(trie, "system|one|twO|three|") == "system|one|"


def test_a_shared_beginning_is_held_once() -> None:
    """Memory is linear in distinct text."""
    trie = PrefixTrie(L1Config())
    _store(trie, "s" * 10_000 + "|one|")
    before = trie.memory
    for number in range(20):
        _store(trie, "s" * 10_000 + f"|number {number}|")
    assert trie.memory - before < 20 * 2 * 1000
    assert _matched(trie, "s" * 10_000 + "|new") == "s" * 10_000 + "|"


def test_a_growing_conversation_grows_its_node() -> None:
    """Turn after turn needs no node of its own."""
    trie = PrefixTrie(L1Config())
    text = ""
    for turn in range(100):
        assert _matched(trie, text + "?") == text
        text += f"turn {turn}|"
        _store(trie, text)
    assert len(trie) == 2


def test_the_budget_holds_even_for_one_large_text() -> None:
    """What does not fit is left out, and the beginning that does is found."""
    trie = PrefixTrie(L1Config(max_memory=40_000))
    text = "word|" * 20_000
    _store(trie, text)
    assert trie.memory <= 40_000
    assert text.startswith(_matched(trie, text))
    assert len(_matched(trie, text)) > 0


def test_the_least_recently_used_leaf_goes_first() -> None:
    """A shared beginning outlives the conversations behind it."""
    trie = PrefixTrie(L1Config(max_memory=30_000))
    for number in range(100):
        _store(trie, "system|" + f"{number:03}" * 100 + "|")
    assert trie.evictions > 0
    assert _matched(trie, "system|other") == "system|"
    assert len(_matched(trie, "system|" + "099" * 100 + "|")) == 308


def test_wide_characters_are_charged_as_held() -> None:
    """Text, ids and memory agree for text outside ASCII too."""
    trie = PrefixTrie(L1Config())
    _store(trie, "日本語|é👍|x|")
    assert _matched(trie, "日本語|é👍|y") == "日本語|é👍|"


def test_tenants_share_nothing_and_a_flood_stays_in_its_quota() -> None:
    """One tenant's flood leaves another's beginning in place."""
    trie = PrefixTrie(L1Config(tenant_max_memory=20_000))
    _store(trie, "mine|", (None, "a"))
    for number in range(100):
        _store(trie, f"{number} flood {number}" * 20 + "|", (None, "b"))
    assert _matched(trie, "mine|x", (None, "a")) == "mine|"
    assert _matched(trie, "mine|x", (None, "b")) == ""


def test_a_tail_is_found_once_a_second_text_begins_like_it() -> None:
    """A short stretch costs no branch until it is asked for again."""
    trie = PrefixTrie(L1Config())
    _store(trie, "s|")
    _set_aside(trie, "s|one|two|three")
    assert _matched(trie, "s|one|two|") == "s|"
    assert not _admit(trie, "s|other|")
    assert _admit(trie, "s|one|2|")
    assert _matched(trie, "s|one|two|") == "s|one|two|"


def test_a_tail_that_parts_from_the_text_that_admits_it_goes_where_its_own_text_goes() -> None:
    """The second text shares the tail's first stretch; behind it the tail follows nodes which that text does not."""
    trie = PrefixTrie(L1Config())
    _store(trie, "s|a|")
    _store(trie, "s|b|")
    _set_aside(trie, "s|k|xyz|wA|")
    _store(trie, "s|k|xyz|", cuts=_cuts("s|k|xyz|").part(2))
    _store(trie, "s|k|xyz|wA|", cuts=_cuts("s|k|xyz|wA|").part(3))
    _store(trie, "s|k|xyz|wB|")
    assert _admit(trie, "s|k|q|")
    assert _matched(trie, "s|k|xyz|wA|") == "s|k|xyz|wA|"
    assert _matched(trie, "s|k|xyz|wB|") == "s|k|xyz|wB|"


class PrefixTrieMachine(RuleBasedStateMachine):
    """Random texts over a small alphabet, in a budget that evicts: every answer is a right one."""

    def __init__(self) -> None:
        super().__init__()
        self.trie = PrefixTrie(L1Config(max_memory=25_000))
        self.texts = ["a|"]

    @rule(
        base=st.integers(0, 1000),
        keep=st.integers(0, 400),
        tail=st.text("ab|", max_size=12),
        times=st.sampled_from([1, 1, 1, 40]),
        dropped=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def use(self, base: int, keep: int, tail: str, times: int, dropped: int) -> None:
        """Look a text up that begins like an earlier one, and store it, perhaps without its first new cuts."""
        text = self._write(base, keep, tail, times)
        known = _matched(self.trie, text)
        assert text.startswith(known)
        _store(self.trie, text, cuts=_cuts(text).part(known.count("|") + dropped))

    @rule(base=st.integers(0, 1000), keep=st.integers(0, 40), tail=st.text("ab|", max_size=12))
    def set_aside(self, base: int, keep: int, tail: str) -> None:
        """Keep what is new of a text as a tail, after letting in the one that it begins with."""
        text = self._write(base, keep, tail, 1)
        while _admit(self.trie, text):
            pass
        if "|" in text[len(_matched(self.trie, text)) :]:
            _set_aside(self.trie, text)

    def _write(self, base: int, keep: int, tail: str, times: int) -> str:
        text = self.texts[base % len(self.texts)][:keep] + tail * times
        self.texts.append(text)
        return text

    @rule()
    def clear(self) -> None:
        """Forget everything."""
        self.trie.clear()

    @invariant()
    def is_sound(self) -> None:
        """After every step."""
        self.trie.check_integrity()


TestPrefixTrieMachine = PrefixTrieMachine.TestCase
TestPrefixTrieMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
