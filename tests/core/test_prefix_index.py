"""The index says of every worker what its own cache would find."""

from array import array
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foreword.core.events import AllBlocksCleared, BlockRemoved, BlockStored
from foreword.core.prefix_index import PrefixIndex


def index(*workers: str) -> PrefixIndex:
    """An index that knows these workers."""
    made = PrefixIndex()
    for worker in workers:
        made.add_worker(worker)
    return made


def test_match_counts_leading_blocks_by_worker() -> None:
    """Each worker is credited with the full blocks it holds in a row from the first."""
    prefixes = index("a", "b", "c")
    prefixes.apply("a", BlockStored([1, 2, 3], None, list(range(12)), 4))
    prefixes.apply("b", BlockStored([1], None, [0, 1, 2, 3], 4))
    assert prefixes.match([*range(12), 99]) == {"a": 12, "b": 4}
    assert prefixes.match([*range(8), 77, 77, 77, 77, 99]) == {"a": 8, "b": 4}
    assert prefixes.match([5, *range(12)]) == {}


def test_the_last_token_is_never_cached() -> None:
    """A prompt of nothing but cached blocks still has its last token computed, and with it the last block."""
    prefixes = index("a")
    prefixes.apply("a", BlockStored([1, 2], None, list(range(8)), 4))
    assert prefixes.match(list(range(8))) == {"a": 4}
    assert prefixes.match(list(range(9))) == {"a": 8}
    assert prefixes.match([]) == {}


def test_unlike_block_sizes_each_match_in_their_own() -> None:
    """A worker's blocks are compared at its size: nothing is split, nothing over-credited."""
    prefixes = index("small", "large")
    prefixes.apply("small", BlockStored([1, 2, 3], None, list(range(6)), 2))
    prefixes.apply("large", BlockStored([9], None, list(range(8)), 8))
    assert prefixes.match(list(range(20))) == {"small": 6, "large": 8}
    assert prefixes.match(list(range(7))) == {"small": 6}


def test_workers_that_hash_differently_share_nodes() -> None:
    """Hashes of another seed or algorithm are other names of the same blocks."""
    prefixes = index("a", "b")
    prefixes.apply("a", BlockStored([1, 2], None, list(range(4)), 2))
    prefixes.apply("b", BlockStored([b"\x09" * 32, b"\x08" * 32], None, list(range(4)), 2))
    assert prefixes.match(list(range(5))) == {"a": 4, "b": 4}
    assert prefixes.statistics().blocks == 2


def test_a_salt_and_an_adapter_separate() -> None:
    """The same tokens under another salt or adapter are another prompt."""
    prefixes = index("a")
    prefixes.apply("a", BlockStored([1, 2], None, [1, 2, 3, 4], 2, None, [("tenant",), None]))
    assert prefixes.match([1, 2, 3, 4, 5], cache_salt="tenant") == {"a": 4}
    assert prefixes.match([1, 2, 3, 4, 5]) == {}
    assert prefixes.match([1, 2, 3, 4, 5], cache_salt="other") == {}
    prefixes.apply("a", BlockStored([5], None, [1, 2], 2, "ada"))
    assert prefixes.match([1, 2, 3, 4, 5], lora="ada") == {"a": 2}


def test_the_last_copy_counts() -> None:
    """Foreign workers announce every copy of a block: the first removal is not the last."""
    prefixes = index("a")
    for _ in range(3):
        prefixes.apply("a", BlockStored([1], None, [1, 2], 2))
    prefixes.apply("a", BlockRemoved([1]))
    prefixes.apply("a", BlockRemoved([1]))
    assert prefixes.match([1, 2, 3]) == {"a": 2}
    prefixes.apply("a", BlockRemoved([1]))
    assert prefixes.match([1, 2, 3]) == {}
    prefixes.check_integrity()


@pytest.mark.parametrize("order", [(1, 9), (9, 1)])
def test_a_block_under_two_hashes_is_one_block(order: tuple[int, int]) -> None:
    """It is held until the last of its hashes is removed, in whichever order, and counted once."""
    prefixes = index("a")
    for block_hash in (1, 9, 9):
        prefixes.apply("a", BlockStored([block_hash], None, [1, 2], 2))
    assert prefixes.statistics().held == {"a": 1}
    prefixes.apply("a", BlockRemoved([9]))  # one of the two copies under 9
    for block_hash in order:
        assert prefixes.match([1, 2, 3]) == {"a": 2}
        prefixes.check_integrity()
        prefixes.apply("a", BlockRemoved([block_hash]))
    assert prefixes.match([1, 2, 3]) == {}
    assert prefixes.statistics().held == {"a": 0}
    prefixes.check_integrity()


def test_a_block_under_two_hashes_is_cleared_once() -> None:
    """Clearing lets go of the block, whatever it was called."""
    prefixes = index("a", "b")
    prefixes.apply("b", BlockStored([5], None, [1, 2], 2))
    for block_hash in (1, 9):
        prefixes.apply("a", BlockStored([block_hash], None, [1, 2], 2))
    prefixes.clear("a")
    prefixes.check_integrity()
    assert prefixes.match([1, 2, 3]) == {"b": 2}


def test_a_hash_that_stands_for_another_block_leaves_the_one_before() -> None:
    """A hash stored anew for other tokens is a removal that never came: the old block is not credited for ever."""
    prefixes = index("a")
    prefixes.apply("a", BlockStored([1], None, [1, 2], 2))
    prefixes.apply("a", BlockStored([1], None, [3, 4], 2))
    assert (prefixes.match([1, 2, 9]), prefixes.match([3, 4, 9])) == ({}, {"a": 2})
    prefixes.apply("a", BlockStored([2], None, [1, 2], 2))
    prefixes.apply("a", BlockStored([1], None, [1, 2], 2))
    assert (prefixes.match([1, 2, 9]), prefixes.match([3, 4, 9])) == ({"a": 2}, {})
    prefixes.check_integrity()


def test_an_adapter_stands_in_the_keys_of_every_block() -> None:
    """As vLLM publishes it: name in each block's extra keys, before the salt; the whole prefix matches, salted or not."""
    prefixes = index("a")
    prefixes.apply("a", BlockStored([1, 2], None, [1, 2, 3, 4], 2, "ada", [("ada",), ("ada",)]))
    prefixes.apply("a", BlockStored([3], 2, [5, 6], 2, "ada", [("ada",)]))
    prefixes.apply("a", BlockStored([7, 8], None, [1, 2, 3, 4], 2, "ada", [("ada", "tenant"), ("ada",)]))
    assert prefixes.match([1, 2, 3, 4, 5, 6, 7], lora="ada") == {"a": 6}
    assert prefixes.match([1, 2, 3, 4, 5, 6, 7], lora="ada", cache_salt="tenant") == {"a": 4}
    assert prefixes.match([1, 2, 3, 4, 5, 6, 7]) == {}


def test_a_child_outlives_its_parent() -> None:
    """A parent evicted before its child hides it, and shows it again when it is stored anew."""
    prefixes = index("a")
    prefixes.apply("a", BlockStored([1, 2], None, [1, 2, 3, 4], 2))
    prefixes.apply("a", BlockRemoved([1]))
    assert prefixes.match([1, 2, 3, 4, 5]) == {}
    prefixes.apply("a", BlockStored([1], None, [1, 2], 2))
    assert prefixes.match([1, 2, 3, 4, 5]) == {"a": 4}


def test_blocks_behind_an_unknown_parent_are_not_credited() -> None:
    """What was stored before the index began cannot be placed, and what hangs on it neither."""
    prefixes = index("a")
    prefixes.apply("a", BlockStored([2], 1, [3, 4], 2))
    prefixes.apply("a", BlockStored([3], 2, [5, 6], 2))
    prefixes.apply("a", BlockRemoved([3, 2, 1]))
    assert prefixes.statistics().orphans == 2
    assert prefixes.match([1, 2, 3, 4, 5, 6, 7]) == {}


@pytest.mark.parametrize("end", ["event", "clear", "remove"])
def test_a_cleared_worker_is_never_credited(end: str) -> None:
    """By an event, by a restart, by leaving: its blocks are gone and another's stay."""
    prefixes = index("a", "b")
    for worker in ("a", "b"):
        prefixes.apply(worker, BlockStored([1, 2], None, [1, 2, 3, 4], 2))
    if end == "event":
        prefixes.apply("a", AllBlocksCleared())
    elif end == "clear":
        prefixes.clear("a")
    else:
        prefixes.remove_worker("a")
    assert prefixes.match([1, 2, 3, 4, 5]) == {"b": 4}
    prefixes.check_integrity()


def test_a_newcomer_does_not_inherit() -> None:
    """A worker that leaves gives its place, not its blocks, to the next."""
    prefixes = index("a", "b")
    prefixes.apply("a", BlockStored([1], None, [1, 2], 2))
    prefixes.remove_worker("a")
    prefixes.add_worker("c")
    assert prefixes.match([1, 2, 3]) == {}
    assert prefixes.statistics().blocks == 0


def test_buffers_are_read_as_they_are() -> None:
    """A uint32 buffer and a list of ints are the same prompt."""
    prefixes = index("a")
    prefixes.apply("a", BlockStored([1], None, [70_000, 2], 2))
    for prompt in ([70_000, 2, 3], (70_000, 2, 3), array("I", [70_000, 2, 3]), memoryview(array("I", [70_000, 2, 3]))):
        assert prefixes.match(prompt) == {"a": 2}


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=5)
WORKERS = st.sampled_from(["a", "b", "c"])
SEEDS = ("", "other")


class AgainstNaiveTwin(RuleBasedStateMachine):
    """Every worker is a multiset of whole prefixes under two seeds of hashes, the hash being the prefix itself and the seed.

    Block sizes differ by worker.
    """

    SIZES: ClassVar = {"a": 1, "b": 2, "c": 2}

    def __init__(self) -> None:
        super().__init__()
        self.index = index("a", "b", "c")
        self.held: dict[str, Counter[tuple[tuple[int, ...], str]]] = {name: Counter() for name in self.SIZES}

    def named(self, worker: str, prefix: tuple[int, ...]) -> list[bytes]:
        """The hashes by which a worker holds a prefix."""
        return [repr((prefix, seed)).encode() for seed in SEEDS if self.held[worker][prefix, seed]]

    @rule(worker=WORKERS, tokens=TOKENS, salted=st.booleans(), seed=st.sampled_from(SEEDS))
    def store(self, worker: str, tokens: list[int], salted: bool, seed: str) -> None:  # noqa: FBT001 - hypothesis fills it
        """The prompt's blocks that are not held, or once more the last, behind their longest held prefix."""
        size = self.SIZES[worker]
        salt = (9,) if salted else ()
        chain = [salt + tuple(tokens[: end * size]) for end in range(1, len(tokens) // size + 1)]
        if not chain:
            return
        count = 0
        while count < len(chain) - 1 and self.named(worker, chain[count]):
            count += 1
        hashes: list[Any] = [repr((prefix, seed)).encode() for prefix in chain]
        extra = [(("salt",) if salted and number == 0 else None) for number in range(len(chain))]
        self.index.apply(
            worker,
            BlockStored(
                hashes[count:],
                self.named(worker, chain[count - 1])[0] if count else None,
                tokens[count * size : len(chain) * size],
                size,
                None,
                extra[count:] if salted and not count else None,
            ),
        )
        self.held[worker].update((prefix, seed) for prefix in chain[count:])

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """One copy of any held block, in any order."""
        worker = data.draw(st.sampled_from(sorted(name for name in self.held if self.held[name])))
        known = data.draw(st.sampled_from(sorted(self.held[worker])))
        self.index.apply(worker, BlockRemoved([repr(known).encode()]))
        self.held[worker] -= Counter([known])

    @rule(worker=WORKERS, leave=st.booleans())
    def clear(self, worker: str, leave: bool) -> None:  # noqa: FBT001 - hypothesis fills it
        """A restart, or leaving and coming back."""
        if leave:
            self.index.remove_worker(worker)
            self.index.add_worker(worker)
        else:
            self.index.apply(worker, AllBlocksCleared())
        self.held[worker].clear()

    @rule(tokens=TOKENS, salted=st.booleans())
    def match(self, tokens: list[int], salted: bool) -> None:  # noqa: FBT001 - hypothesis fills it
        """Leading full blocks, never the last token."""
        expected = {}
        for worker, size in self.SIZES.items():
            count = 0
            while (count + 1) * size <= len(tokens) - 1:
                if not self.named(worker, ((9,) if salted else ()) + tuple(tokens[: (count + 1) * size])):
                    break
                count += 1
            if count:
                expected[worker] = count * size
        assert self.index.match(tokens, cache_salt="salt" if salted else None) == expected

    @invariant()
    def books_balance(self) -> None:
        """After every step."""
        self.index.check_integrity()
        expected = {worker: len({prefix for prefix, _ in held}) for worker, held in self.held.items()}
        assert self.index.statistics().held == expected


TestAgainstNaiveTwin = AgainstNaiveTwin.TestCase
TestAgainstNaiveTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
