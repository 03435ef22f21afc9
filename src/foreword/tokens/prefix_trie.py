"""L1: the ids of beginnings of inputs seen before."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foreword.tokens.boundaries import START, Cut, Cuts
from foreword.tokens.exact_cache import utf8_length
from foreword.tokens.ledger import Ledger

EDGE = 1 << 14  # characters of one node at most: what a split copies and an eviction loses
NODE_OVERHEAD = 640  # the node, its dictionary of children, its place in the order of use


@dataclass(frozen=True, slots=True)
class L1Config:
    """Bounds of the prefix cache.

    Attributes:
        max_memory: bytes held at most: texts, 4 a token, and the nodes themselves.
        tenant_max_memory: bytes held at most for one tenant; None for no such bound.
    """

    max_memory: int = 52_428_800
    tenant_max_memory: int | None = None


class Stretch(NamedTuple):
    """What a node is about to hold: a stretch of text, its ids, its cuts told from its start."""

    text: str
    ids: bytes
    cuts: Cuts


class Node:
    """A stretch of text, the cuts in it, and the ids from the last cut before it to its own last cut.

    Ends and counts of the cuts are told from the start of the node. A node without a cut has no ids. ``key`` is its name
    among its parent's children, its first character; a root's is the context that it stands for.
    """

    __slots__ = ("children", "cuts", "ids", "key", "parent", "size", "tenant", "text", "text_bytes")

    def __init__(self, parent: Node | None, key: Hashable, tenant: str, stretch: Stretch) -> None:
        self.parent = parent
        self.key = key
        self.tenant = tenant
        self.children: dict[Hashable, Node] = {}
        self.hold(stretch)
        self.size = self.weight()

    def hold(self, stretch: Stretch) -> None:
        """Replace what the node holds."""
        self.text, self.ids, self.cuts = stretch
        self.text_bytes = utf8_length(stretch.text)

    def weight(self) -> int:
        """Bytes of memory it takes."""
        return sys.getsizeof(self.text) + sys.getsizeof(self.ids) + sys.getsizeof(self.cuts.packed) + NODE_OVERHEAD


class Match(NamedTuple):
    """The longest cached beginning of a text: its deepest cut, the ids up to it in chunks, its length in UTF-8."""

    cut: Cut
    chunks: list[bytes]
    text_bytes: int


NO_MATCH = Match(START, [], 0)


class PrefixTrie:
    """Beginnings of texts as a radix tree: each stretch of text is held once, with its ids. A prefix is a path.

    Nodes branch at any character; ids belong to the certified cuts. A touch goes from the deepest node to the root, so
    a parent is always more recently used than its children, and the least recently used node is a leaf.
    Not thread-safe: its owner holds the lock.
    """

    def __init__(self, config: L1Config) -> None:
        self.config = config
        self.evictions = 0
        self._roots: dict[Hashable, Node] = {}
        self._ledger: Ledger[Node] = self._new_ledger()
        self._edge = max(256, min(EDGE, config.max_memory >> 6))

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self._ledger.bytes

    def __len__(self) -> int:
        return self._ledger.entries

    def match(self, context: Hashable, text: str) -> Match:
        """The longest cached beginning of the text that ends at a cut, now the most recently used."""
        root = self._roots.get(context)
        if root is None:
            return NO_MATCH
        path, start, shared = _walk(root, text)
        self._touch(path)
        while path:
            node = path.pop()
            if inside := node.cuts.through(shared):
                return _match(path, node, node.cuts[inside - 1], start)
            if path:
                shared = len(path[-1].text)
                start -= shared
        return NO_MATCH

    def store(self, context: Hashable, tenant: str, text: str, ids: bytes, cuts: Cuts) -> None:
        """Keep the text up to its last cut, sharing what is there.

        Args:
            context: whose texts share a tree: the same tokenizer, flags and tenant.
            tenant: who pays for it.
            text: the whole text.
            ids: its uint32 ids, at least up to the last cut.
            cuts: in order; those in text that is there already are not needed.
        """
        if not len(cuts):
            return
        root = self._roots.get(context) or self._plant(context, tenant)
        if root is None:
            return
        path, start, shared = _walk(root, text)
        self._touch(path)
        if start + shared < cuts[-1].end and (shared == len(path[-1].text) or self._split(path, shared)):
            self._grow(path, start + shared, text, ids, cuts)
            self._touch(path)

    def clear(self) -> None:
        """Forget everything."""
        for node in self._nodes():
            node.parent = None
        self._roots.clear()
        self._ledger = self._new_ledger()

    def check_integrity(self) -> None:
        """Raise RuntimeError unless the tree is one, its nodes agree with themselves, and the ledger with them."""
        self._ledger.check_integrity()
        nodes = list(self._nodes())
        if len(nodes) != len(self) or sum(node.size for node in nodes) != self.memory:
            raise RuntimeError(f"the tree has {len(nodes)} nodes and the ledger {len(self)}")
        for node in nodes:
            _check_node(node)

    def _new_ledger(self) -> Ledger[Node]:
        return Ledger(self.config.max_memory, tenant_max_memory=self.config.tenant_max_memory)

    def _nodes(self) -> Iterator[Node]:
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def _touch(self, path: Sequence[Node]) -> None:
        for node in reversed(path):
            self._ledger.touch(node)

    def _plant(self, context: Hashable, tenant: str) -> Node | None:
        root = Node(None, context, tenant, Stretch("", b"", Cuts()))
        if not self._make_room(tenant, root.size, ()):
            return None
        self._roots[context] = root
        self._ledger.add(root)
        return root

    def _split(self, path: list[Node], shared: int) -> bool:
        """Divide the path's last node after ``shared`` characters; the path then ends with the upper half."""
        lower = path[-1]
        inside = lower.cuts.through(shared)
        count = lower.cuts[inside - 1].ids_before if inside else 0
        head = Stretch(lower.text[:shared], lower.ids[: 4 * count], lower.cuts.part(0, inside))
        tail = lower.cuts.part(inside, None, end=-shared, count=-count)
        upper = Node(lower.parent, lower.key, lower.tenant, head)
        if not self._make_room(lower.tenant, upper.size, path):
            return False
        self._siblings(upper)[upper.key] = upper
        lower.hold(Stretch(lower.text[shared:], lower.ids[4 * count :], tail))
        lower.parent, lower.key = upper, lower.text[0]
        upper.children[lower.key] = lower
        self._ledger.resize(lower, lower.weight())
        self._ledger.add(upper)
        path[-1] = upper
        return True

    def _grow(self, path: list[Node], position: int, text: str, ids: bytes, cuts: Cuts) -> None:
        """Append the text from ``position`` to its last cut to the path, node by node, as far as there is room."""
        allowance = self._ledger.largest_item
        count = sum(len(node.ids) for node in path) >> 2
        first, end = cuts.through(position), cuts[-1].end
        while position < end and allowance > 0:
            leaf = path[-1]
            room = 0 if leaf.children or leaf.parent is None else self._edge - len(leaf.text)
            stop = min(end, position + (room if room > 0 else self._edge))
            last = cuts.through(stop)
            reached = cuts[last - 1].ids_before if last > first else count
            stretch = Stretch(
                text[position:stop],
                ids[4 * count : 4 * reached],
                cuts.part(first, last, end=-position, count=-count),
            )
            weight = self._extend(path, stretch) if room > 0 else self._branch(path, stretch)
            if not weight:
                return
            allowance -= weight
            position, first, count = stop, last, reached

    def _extend(self, path: list[Node], more: Stretch) -> int:
        """Lengthen the leaf that the path ends with; returns the bytes it took, 0 when there is no room."""
        leaf = path[-1]
        before = Stretch(leaf.text, leaf.ids, leaf.cuts)
        further = more.cuts.part(0, None, end=len(leaf.text), count=len(leaf.ids) >> 2)
        leaf.hold(Stretch(leaf.text + more.text, leaf.ids + more.ids, Cuts(leaf.cuts.packed + further.packed)))
        extra = leaf.weight() - leaf.size
        if not self._make_room(leaf.tenant, extra, path):
            leaf.hold(before)
            return 0
        self._ledger.resize(leaf, leaf.size + extra)
        return extra

    def _branch(self, path: list[Node], more: Stretch) -> int:
        """Put a new leaf at the end of the path; returns the bytes it took, 0 when there is no room."""
        parent = path[-1]
        leaf = Node(parent, more.text[0], parent.tenant, more)
        if not self._make_room(leaf.tenant, leaf.size, path):
            return 0
        parent.children[leaf.key] = leaf
        self._ledger.add(leaf)
        path.append(leaf)
        return leaf.size

    def _make_room(self, tenant: str, size: int, path: Sequence[Node]) -> bool:
        """Evict what was least recently used until ``size`` more bytes fit; False when only the path is left."""
        if not self._ledger.admits(size):
            return False
        while (victim := self._ledger.victim(tenant, size)) is not None:
            if victim in path:
                return False
            self._evict(victim)
        return True

    def _evict(self, leaf: Node) -> None:
        del self._siblings(leaf)[leaf.key]
        self._ledger.remove(leaf)
        self.evictions += 1

    def _siblings(self, node: Node) -> dict[Hashable, Node]:
        return self._roots if node.parent is None else node.parent.children


def _walk(root: Node, text: str) -> tuple[list[Node], int, int]:
    """The path of nodes that the text follows, where the last of them starts, and how much of it the text shares."""
    path, start, node = [root], 0, root
    while (child := node.children.get(text[start + len(node.text) : start + len(node.text) + 1])) is not None:
        start += len(node.text)
        path.append(child)
        if not text.startswith(child.text, start):
            return path, start, _shared_length(child.text, text, start)
        node = child
    return path, start, len(node.text)


def _shared_length(stretch: str, text: str, start: int) -> int:
    """How many characters ``stretch`` and ``text[start:]`` have in common, by halving."""
    same, bound = 0, min(len(stretch), len(text) - start)
    while same < bound:
        middle = (same + bound + 1) >> 1
        if stretch[same:middle] == text[start + same : start + middle]:
            same = middle
        else:
            bound = middle - 1
    return same


def _match(ancestors: Sequence[Node], node: Node, cut: Cut, start: int) -> Match:
    chunks = [ancestor.ids for ancestor in ancestors if ancestor.ids]
    count = sum(map(len, chunks)) >> 2
    chunks.append(node.ids[: 4 * cut.ids_before])
    text_bytes = sum(ancestor.text_bytes for ancestor in ancestors) + utf8_length(node.text[: cut.end])
    return Match(Cut(start + cut.end, cut.overlap, cut.token, count + cut.ids_before), chunks, text_bytes)


def _check_node(node: Node) -> None:
    if node.size != node.weight():
        raise RuntimeError(f"a node says {node.size} bytes and weighs {node.weight()}")
    ends = [cut.end for cut in node.cuts]
    if ends != sorted(set(ends)) or (ends and not 0 < ends[-1] <= len(node.text)):
        raise RuntimeError(f"a node of {len(node.text)} characters has cuts at {ends}")
    if len(node.ids) != 4 * (node.cuts[-1].ids_before if ends else 0):
        raise RuntimeError(f"a node holds {len(node.ids) // 4} ids and its cuts say otherwise")
    for key, child in node.children.items():
        if child.key != key or child.text[:1] != key or child.parent is not node:
            raise RuntimeError(f"the child {key!r} is out of place")
