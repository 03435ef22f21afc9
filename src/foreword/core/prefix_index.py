"""Who holds which blocks: workers' prefix caches, mirrored from their KV events.

A trie of blocks, one for each block size in use. A node is a block behind its whole prefix, compared by its token ids
themselves, so no hash of ours can be wrong and workers that hash differently still meet in one node. Each worker's own hashes
are kept only to find the nodes its later events speak of. A prompt is walked once per block size, in the worker's own blocks:
what is found is what that worker would find.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import itemgetter
from struct import Struct
from typing import Any

from foreword.core.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

TOKEN_BYTES = 4
MAX_BLOCK_SIZE = 1 << 16


class _Node:
    """A block behind its prefix. ``workers`` is a bit set; most nodes have one child, so it needs no dictionary."""

    __slots__ = ("child", "children", "chunk", "parent", "workers")

    def __init__(self, chunk: bytes, parent: _Node | None) -> None:
        self.chunk = chunk
        self.parent = parent
        self.workers = 0
        self.child: _Node | None = None
        self.children: dict[bytes, _Node] | None = None  # all but ``child``


@dataclass(frozen=True, slots=True)
class PrefixIndexStatistics:
    """What the index holds: workers, blocks (each once however many hold it), and blocks by worker."""

    workers: int
    blocks: int
    held: dict[str, int]
    orphans: int


class _Holdings:
    """One worker's side: its bit, its hashes with the nodes they stand for, and how many further copies it has of each.

    ``aliases`` counts a node's hashes beyond its first: the node is held until the last of them is removed.
    """

    __slots__ = ("aliases", "bit", "copies", "nodes", "orphans")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.nodes: dict[BlockHash, _Node] = {}
        self.copies: dict[BlockHash, int] = {}
        self.aliases: dict[_Node, int] = {}
        self.orphans = 0  # blocks whose parent was never seen: not to be reached, so not kept


class PrefixIndex:
    """Which workers hold how much of a prompt. Only ``match`` does not mutate.

    Owned by one thread. Events of different workers may be mixed; those of one come in order.
    """

    def __init__(self) -> None:
        self._roots: dict[int, _Node] = {}
        self._workers: dict[str, _Holdings] = {}
        self._names: dict[int, str] = {}  # bit number -> worker
        self._blocks = 0

    def add_worker(self, worker: str) -> None:
        """Make a worker known; it holds nothing yet."""
        if worker not in self._workers:
            number = next(n for n in range(len(self._names) + 1) if n not in self._names)
            self._names[number] = worker
            self._workers[worker] = _Holdings(1 << number)

    def remove_worker(self, worker: str) -> None:
        """Forget a worker and what it holds."""
        if worker in self._workers:
            self.clear(worker)
            del self._names[self._workers.pop(worker).bit.bit_length() - 1]

    def clear(self, worker: str) -> None:
        """A worker holds nothing any more."""
        holdings = self._workers[worker]
        for node in {*holdings.nodes.values()}:
            self._release(node, holdings.bit)
        self._workers[worker] = _Holdings(holdings.bit)

    def apply(self, worker: str, event: KVCacheEvent) -> None:
        """Take one event of a worker; one that is new is made known."""
        if worker not in self._workers:
            self.add_worker(worker)
        if isinstance(event, BlockStored):
            self._store(self._workers[worker], event)
        elif isinstance(event, BlockRemoved):
            self._remove(self._workers[worker], event)
        elif isinstance(event, AllBlocksCleared):
            self.clear(worker)

    def _store(self, holdings: _Holdings, event: BlockStored) -> None:
        parent = self._parent(holdings, event)
        if parent is None:
            holdings.orphans += len(event.block_hashes)
            return
        bit, nodes, child_of = holdings.bit, holdings.nodes, self._child
        for block_hash, chunk in zip(event.block_hashes, _chunks_of(event), strict=True):
            node = parent.child
            if node is None or node.chunk != chunk:
                node = child_of(parent, chunk)
            if node.workers & bit:
                self._store_again(holdings, block_hash, node)
            else:
                node.workers |= bit
                if nodes.setdefault(block_hash, node) is not node:
                    self._rename(holdings, block_hash, node)
            parent = node

    def _store_again(self, holdings: _Holdings, block_hash: BlockHash, node: _Node) -> None:
        """One more copy of a block that is held: under a hash it has already, or under a further one."""
        known = holdings.nodes.get(block_hash)
        if known is node:
            holdings.copies[block_hash] = holdings.copies.get(block_hash, 0) + 1
            return
        holdings.aliases[node] = holdings.aliases.get(node, 0) + 1
        holdings.nodes[block_hash] = node
        if known is not None:
            self._forget_name(holdings, block_hash, known)

    def _rename(self, holdings: _Holdings, block_hash: BlockHash, node: _Node) -> None:
        """A hash stands for another block than before: a removal of the one before never came."""
        known, holdings.nodes[block_hash] = holdings.nodes[block_hash], node
        self._forget_name(holdings, block_hash, known)

    def _forget_name(self, holdings: _Holdings, block_hash: BlockHash, node: _Node) -> None:
        """A block lost one of its hashes, and with its last is let go of."""
        holdings.copies.pop(block_hash, None)
        further = holdings.aliases.pop(node, 0)
        if further > 1:
            holdings.aliases[node] = further - 1
        elif not further:
            self._release(node, holdings.bit)

    def _parent(self, holdings: _Holdings, event: BlockStored) -> _Node | None:
        if event.parent_block_hash is not None:
            return holdings.nodes.get(event.parent_block_hash)
        root = self._roots.get(event.block_size)
        if root is None:
            root = self._roots[event.block_size] = _Node(b"", None)
        return root

    def _child(self, parent: _Node, chunk: bytes) -> _Node:
        """The child of that block, made if need be; ``parent.child`` is known to be another."""
        children = parent.children
        if children is not None and (node := children.get(chunk)) is not None:
            return node
        node = _Node(chunk, parent)
        self._blocks += 1
        if parent.child is None:
            parent.child = node
        elif children is None:
            parent.children = {chunk: node}
        else:
            children[chunk] = node
        return node

    def _remove(self, holdings: _Holdings, event: BlockRemoved) -> None:
        copies = holdings.copies
        for block_hash in event.block_hashes:
            if block_hash in copies:
                copies[block_hash] -= 1
                if not copies[block_hash]:
                    del copies[block_hash]
            elif (node := holdings.nodes.pop(block_hash, None)) is not None:
                self._forget_name(holdings, block_hash, node)

    def _release(self, node: _Node, bit: int) -> None:
        """A worker let go of a block. The node stays while it leads to blocks that are held."""
        node.workers &= ~bit
        while not node.workers and node.child is None and node.parent is not None:
            parent = node.parent
            self._blocks -= 1
            if parent.child is node:
                parent.child = parent.children.popitem()[1] if parent.children else None
            elif parent.children is not None:
                del parent.children[node.chunk]
            if not parent.children:
                parent.children = None
            node = parent

    def match(
        self, token_ids: Sequence[int], *, cache_salt: str | None = None, lora: str | None = None
    ) -> dict[str, int]:
        """Tokens of the prompt each worker would not have to prefill; workers that hold nothing of it are left out.

        Full blocks from the first on, and never the last token, as in vLLM. ``token_ids`` may be a buffer of uint32, which is
        read as it is.
        """
        data = _as_bytes(token_ids)
        cached: dict[str, int] = {}
        for block_size, root in self._roots.items():
            limit = max(len(token_ids) - 1, 0) // block_size
            if root.child is not None and limit:
                chunks = _split(data[: limit * block_size * TOKEN_BYTES], block_size)
                if extra := _suffix((cache_salt,) if cache_salt is not None else None, lora):
                    chunks = chain([next(chunks) + extra], chunks)
                for worker, blocks in self._walk(root, chunks).items():
                    cached[worker] = max(cached.get(worker, 0), blocks * block_size)
        return cached

    def _walk(self, root: _Node, chunks: Iterator[bytes]) -> dict[str, int]:
        """Blocks held in a row from the first, by worker."""
        found: dict[str, int] = {}
        alive, last, node, depth = -1, -1, root, 0
        for chunk in chunks:
            child = node.child
            if child is None or child.chunk != chunk:
                child = node.children.get(chunk) if node.children is not None else None
                if child is None:
                    break
            node = child
            if node.workers != last:
                last = node.workers
                if depth:
                    self._credit(found, alive & ~last, depth)
                alive &= last
                if not alive:
                    return found
            depth += 1
        if depth:
            self._credit(found, alive, depth)
        return found

    def _credit(self, found: dict[str, int], workers: int, depth: int) -> None:
        while workers:
            low = workers & -workers
            found[self._names[low.bit_length() - 1]] = depth
            workers ^= low

    def statistics(self) -> PrefixIndexStatistics:
        """What is held."""
        held = {
            worker: len(holdings.nodes) - sum(holdings.aliases.values()) for worker, holdings in self._workers.items()
        }
        return PrefixIndexStatistics(
            len(self._workers), self._blocks, held, sum(holdings.orphans for holdings in self._workers.values())
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless nodes and holdings say the same and no node is idle."""
        reachable: dict[int, _Node] = {}
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            children = [*([node.child] if node.child else []), *(node.children or {}).values()]
            for child in children:
                assert child.parent is node  # noqa: S101 - this method is one
                assert child.workers or child.child is not None  # noqa: S101
                reachable[id(child)] = child
            stack.extend(children)
        assert len(reachable) == self._blocks  # noqa: S101
        bits: dict[int, int] = dict.fromkeys(reachable, 0)
        for holdings in self._workers.values():
            for node in holdings.nodes.values():
                bits[id(node)] |= holdings.bit
            names = Counter(holdings.nodes.values())
            assert holdings.aliases == {node: count - 1 for node, count in names.items() if count > 1}  # noqa: S101
            assert all(holdings.copies.get(h, 1) > 0 and h in holdings.nodes for h in holdings.copies)  # noqa: S101
        assert all(bits[key] == node.workers for key, node in reachable.items())  # noqa: S101


def _split(data: bytes, block_size: int) -> Iterator[bytes]:
    """The blocks of whole blocks' bytes; unpacking them is twice as fast as slicing."""
    return map(itemgetter(0), Struct(f"{block_size * TOKEN_BYTES}s").iter_unpack(data))


def _chunks_of(event: BlockStored) -> Iterator[bytes]:
    """What tells each stored block from its siblings."""
    chunks = _split(array("I", event.token_ids).tobytes(), event.block_size)
    if event.extra_keys is None and event.lora_name is None:
        return chunks
    extras: Iterable[tuple[Any, ...] | None] = event.extra_keys or repeat(None)
    lora = event.lora_name
    if lora is not None:  # stands in every block's keys; behind the first block the chain tells it
        extras = (keys[1:] if keys and keys[0] == lora else keys for keys in extras)
    adapters = chain([lora if event.parent_block_hash is None else None], repeat(None))
    return (chunk + _suffix(keys, adapter) for chunk, keys, adapter in zip(chunks, extras, adapters, strict=False))


def _suffix(extra_keys: tuple[Any, ...] | None, lora: Hashable) -> bytes:
    """What sets a block apart beside its tokens; empty for most."""
    return repr((lora, extra_keys or None)).encode() if extra_keys or lora is not None else b""


def _as_bytes(token_ids: Sequence[int]) -> bytes:
    buffer = getattr(token_ids, "buffer", token_ids)
    if isinstance(buffer, (bytes, bytearray, memoryview, array)):
        view = memoryview(buffer)
        if view.nbytes == TOKEN_BYTES * len(token_ids):
            return view.tobytes()
    return array("I", token_ids).tobytes()
