"""L1: beginnings of inputs. The text of these tests is letters, its ids are their numbers, and "|" is the only cut."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from foreword.tokens.boundaries import Cuts
from foreword.tokens.prefix_trie import L1Config, PrefixTrie
from foreword.tokens.tokenizer import TokenIds

CONTEXT = (None, "")


def _ids(text: str) -> bytes:
    return TokenIds.of(map(ord, text)).buffer


def _store(trie: PrefixTrie, text: str, context: tuple[None, str] = CONTEXT) -> None:
    cuts = Cuts()
    for at, character in enumerate(text, 1):
        if character == "|":
            cuts.packed.extend((at, 1, ord("|"), at))
    trie.store(context, text, _ids(text), cuts, trie.match(context, text))
    trie.check_integrity()


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
    )
    def use(self, base: int, keep: int, tail: str, times: int) -> None:
        """Look a text up that begins like an earlier one, and store it."""
        text = self.texts[base % len(self.texts)][:keep] + tail * times
        self.texts.append(text)
        assert text.startswith(_matched(self.trie, text))
        _store(self.trie, text)

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
