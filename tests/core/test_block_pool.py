"""The pool hands out every block once, finds it by hash, and reuses it in the right order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword import BlockPool
from foreword.core.kv_block import FreeBlockQueue, KVCacheBlock
from foreword.errors import IntegrityError


def order(pool: BlockPool) -> list[int]:
    """Block ids in the order they will be reused."""
    return [block.block_id for block in (*pool._free, *pool._free_pinned)]


@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["append", "prepend", "popleft", "remove"]), st.integers(0, 7)), max_size=60
    )
)
def test_the_free_queue_is_a_list_with_quick_removal(moves: list[tuple[str, int]]) -> None:
    """Any moves leave the queue as they leave a list."""
    blocks = [KVCacheBlock(i) for i in range(8)]
    queue, expected = FreeBlockQueue(), list[KVCacheBlock]()
    for move, i in moves:
        if move == "popleft" and expected:
            assert queue.popleft() is expected.pop(0)
        elif move == "remove" and blocks[i] in expected:
            queue.remove(blocks[i])
            expected.remove(blocks[i])
        elif move in {"append", "prepend"} and blocks[i] not in expected:
            getattr(queue, move)(blocks[i])
            expected.insert(len(expected) if move == "append" else 0, blocks[i])
        assert list(queue) == expected
        assert len(queue) == len(expected)


def test_misuse_of_the_free_queue_is_refused() -> None:
    """A block is in the queue once or not at all."""
    block = KVCacheBlock(0)
    queue = FreeBlockQueue([block])
    with pytest.raises(IntegrityError, match="in a free queue already"):
        queue.append(block)
    queue.remove(block)
    with pytest.raises(IntegrityError, match="not in the free queue"):
        queue.remove(block)
    with pytest.raises(IndexError, match="empty"):
        queue.popleft()


def test_unhashed_blocks_are_reused_before_hashed_ones() -> None:
    """Of four blocks freed, the two without a hash come first, then the hashed in the order freed."""
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    pool.register(blocks[0], b"h0")
    pool.register(blocks[1], b"h1")
    pool.free(blocks[::-1])
    assert order(pool) == [3, 2, 4, 1, 0]
    pool.check_integrity()


def test_a_freed_block_stays_findable_until_it_is_taken() -> None:
    """Its hash goes when its turn comes, and the callback hears of it."""
    evicted: list[bytes] = []
    pool = BlockPool(2, evicted.append)
    (block,) = pool.allocate(1)
    pool.register(block, b"h")
    pool.free([block])
    assert pool.get_cached_block(b"h") is block
    pool.allocate(1)
    assert pool.get_cached_block(b"h") is block
    pool.allocate(1)
    assert pool.get_cached_block(b"h") is None
    assert evicted == [b"h"]


def test_a_touched_block_leaves_the_queue() -> None:
    """A hit takes a free block out of reach of eviction; a second one only counts."""
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.register(block, b"h")
    pool.free([block])
    pool.touch([block, block])
    assert (block.ref_cnt, pool.num_free) == (2, 1)
    pool.free([block])
    assert (block.ref_cnt, pool.num_free) == (1, 1)
    pool.check_integrity()


def test_the_second_copy_of_a_hash_is_not_registered() -> None:
    """Evicting the copy that lost leaves the one that won findable."""
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    assert pool.register(first, b"h") is first
    assert pool.register(second, b"h") is first
    pool.free([second])
    pool.evict(second)
    assert pool.get_cached_block(b"h") is first
    pool.check_integrity()


def test_kept_copies_are_found_oldest_first() -> None:
    """Whichever goes, one of those left is found; the callback hears of each."""
    evicted: list[bytes] = []
    pool = BlockPool(4, evicted.append)
    a, b, c, d = pool.allocate(4)
    assert pool.register(a, b"h") is a
    assert [pool.register(copy, b"h", keep_copy=True) for copy in (b, c, d)] == [b, c, d]
    assert (pool.get_cached_block(b"h"), pool.statistics().held) == (a, 4)
    for gone, found in ((c, a), (a, b), (b, d), (d, None)):
        pool.evict(gone)
        pool.check_integrity()
        assert pool.get_cached_block(b"h") is found
    assert evicted == [b"h"] * 4
    assert pool.statistics().held == 0


def test_pinned_blocks_are_reused_last() -> None:
    """A full pool takes them; an unpinned one never."""
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for i, block in enumerate(blocks):
        pool.register(block, b"h%d" % i)
    pool.free(blocks)
    pool.pin(blocks[0], 10.0)
    assert order(pool) == [1, 2, 0]
    pool.pin(blocks[0], 0)
    assert order(pool) == [1, 2, 0]
    pool.pin(blocks[1], 5.0)
    assert order(pool) == [2, 0, 1]
    pool.allocate(3)
    pool.check_integrity()


def test_blocks_that_are_not_there_are_not_handed_out() -> None:
    """can_allocate says so first; asking all the same changes nothing."""
    pool = BlockPool(2)
    assert pool.can_allocate(2)
    assert not pool.can_allocate(3)
    with pytest.raises(IntegrityError, match="3 blocks were asked for and 2 are free"):
        pool.allocate(3)
    assert pool.statistics().num_free == 2


def test_a_block_is_freed_as_often_as_taken() -> None:
    """Once more is refused."""
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(IntegrityError, match="freed more often"):
        pool.free(blocks)


def test_a_corrupted_pool_is_noticed() -> None:
    """check_integrity sees a lost block, a wrong hash and a wrong count."""
    for spoil in (
        lambda pool: pool._free.popleft(),
        lambda pool: setattr(pool.blocks[0], "block_hash", b"x"),
        lambda pool: setattr(pool, "_num_stored", 7),
    ):
        pool = BlockPool(3)
        spoil(pool)
        with pytest.raises(IntegrityError):
            pool.check_integrity()
