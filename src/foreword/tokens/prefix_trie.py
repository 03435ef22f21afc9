"""L1: the ids of beginnings of inputs seen before."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foreword.tokens.boundaries import START, Cut, Cuts
from foreword.tokens.exact_cache import utf8_length
from foreword.tokens.ledger import Ledger

EDGE = 1 << 15  # characters of one node at most: what a split copies and an eviction loses
NODE_OVERHEAD = 640  # the node, its dictionary of children, its place in the order of use

Context = tuple[Hashable, str]  # texts share a tree when they share a tokenizer with its flags, and a tenant


@dataclass(frozen=True, slots=True)
class L1Config:
    """Bounds of the prefix cache.

    Attributes:
        max_memory: bytes held at most: texts, 4 a token, and the nodes themselves.
        tenant_max_memory: bytes held at most for one tenant; None for no such bound.
    """

    max_memory: int = 52_428_800
    tenant_max_memory: int | None = None


class Node:
    """A stretch of text, the cuts in it, and the ids from the last cut before it to its own last cut.

    Attributes:
        start: characters before it on the path from the root. Its cuts are told from there as well.
        text: what it holds of the text.
        ids: uint32 ids; none when it has no cut.
        cuts: the cuts that end in it.
        text_bytes: the text's length in UTF-8.
        key: its name among its siblings, the text's first character; a root's is the context it stands for.
    """

    __slots__ = ("children", "cuts", "ids", "key", "parent", "size", "start", "tenant", "text", "text_bytes")

    def __init__(self, parent: Node | None, key: Hashable, tenant: str, start: int) -> None:
        self.parent = parent
        self.key = key
        self.tenant = tenant
        self.children: dict[Hashable, Node] = {}
        self.hold(start, "", b"", Cuts())
        self.size = 0

    @property
    def end(self) -> int:
        """Characters up to its end on the path from the root."""
        return self.start + len(self.text)

    def hold(self, start: int, text: str, ids: bytes, cuts: Cuts) -> None:
        """Replace what the node holds."""
        self.start, self.text, self.ids, self.cuts = start, text, ids, cuts
        self.text_bytes = utf8_length(text)

    def weight(self) -> int:
        """Bytes of memory it takes."""
        return sys.getsizeof(self.text) + sys.getsizeof(self.ids) + sys.getsizeof(self.cuts.packed) + NODE_OVERHEAD


class Walk(NamedTuple):
    """How far a text follows the tree: the nodes from the root on, the characters shared, the tree's age then."""

    path: list[Node]
    shared: int
    age: int


class Match(NamedTuple):
    """The longest cached beginning of a text: its deepest cut, the ids up to it in chunks, its length in UTF-8."""

    cut: Cut = START
    chunks: Sequence[bytes] = ()
    text_bytes: int = 0
    walk: Walk | None = None


NO_MATCH = Match()


class PrefixTrie:
    """Beginnings of texts as a radix tree: each stretch of text is held once, with its ids. A prefix is a path.

    Nodes branch at any character; ids belong to the certified cuts. A touch goes from the deepest node to the root, so
    a parent is always more recently used than its children, and the least recently used node is a leaf.
    Not thread-safe: its owner holds the lock.
    """

    def __init__(self, config: L1Config) -> None:
        self.config = config
        self.evictions = 0
        self._age = 0
        self._roots: dict[Hashable, Node] = {}
        self._ledger: Ledger[Node] = self._new_ledger()
        self._edge = max(256, min(EDGE, config.max_memory >> 6))

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self._ledger.bytes

    def __len__(self) -> int:
        return self._ledger.entries

    def match(self, context: Context, text: str) -> Match:
        """The longest cached beginning of the text that ends at a cut, now the most recently used."""
        root = self._roots.get(context)
        if root is None:
            return NO_MATCH
        walk = self._walk(root, text)
        for depth in range(len(walk.path) - 1, 0, -1):
            cuts = walk.path[depth].cuts
            if inside := cuts.through(walk.shared):
                return _matched(walk, depth, cuts[inside - 1])
        return Match(walk=walk)

    def store(self, context: Context, text: str, ids: bytes, cuts: Cuts, match: Match = NO_MATCH) -> None:
        """Keep the text up to its last cut, sharing what is there.

        Args:
            context: whose texts share a tree.
            text: the whole text.
            ids: its uint32 ids, at least up to the last cut.
            cuts: in order; those in text that is there already are not needed.
            match: what ``match`` said of the text, to spare another walk when nothing has changed since.
        """
        if not len(cuts):
            return
        walk = match.walk
        if walk is None or walk.age != self._age:
            root = self._roots.get(context) or self._plant(context)
            if root is None:
                return
            walk = self._walk(root, text)
        path, shared, _ = walk
        if shared < cuts[-1].end and (shared == path[-1].end or self._split(path, shared)):
            self._grow(path, shared, text, ids, cuts)
            self._ledger.touch(reversed(path))

    def clear(self) -> None:
        """Forget everything."""
        for node in list(self._nodes()):
            node.parent = None
        self._roots.clear()
        self._ledger = self._new_ledger()
        self._age += 1

    def check_integrity(self) -> None:
        """Raise RuntimeError unless the tree is one, its nodes agree with themselves, and the ledger with them."""
        self._ledger.check_integrity()
        nodes = list(self._nodes())
        if len(nodes) != len(self) or sum(node.size for node in nodes) != self.memory:
            raise RuntimeError(f"the tree has {len(nodes)} nodes and the ledger {len(self)}")
        for root in self._roots.values():
            _check_node(root, 0)

    def _new_ledger(self) -> Ledger[Node]:
        return Ledger(self.config.max_memory, tenant_max_memory=self.config.tenant_max_memory)

    def _nodes(self) -> Iterator[Node]:
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def _walk(self, root: Node, text: str) -> Walk:
        """Follow the text from the root and touch what it follows."""
        path, shared, node = [root], 0, root
        while (child := node.children.get(text[shared : shared + 1])) is not None:
            path.append(child)
            if not text.startswith(child.text, shared):
                shared += _shared_length(child.text, text, shared)
                break
            shared += len(child.text)
            node = child
        self._ledger.touch(reversed(path))
        return Walk(path, shared, self._age)

    def _plant(self, context: Context) -> Node | None:
        root = Node(None, context, context[1], 0)
        root.size = root.weight()
        if not self._make_room(root.tenant, root.size, ()):
            return None
        self._roots[context] = root
        self._ledger.add(root)
        return root

    def _split(self, path: list[Node], shared: int) -> bool:
        """Divide the path's last node after ``shared`` characters; the path then ends with the upper half."""
        lower = path[-1]
        inside = lower.cuts.through(shared)
        bytes_above = (
            4 * (lower.cuts[inside - 1].ids_before - lower.cuts[-1].ids_before) + len(lower.ids) if inside else 0
        )
        upper = Node(lower.parent, lower.key, lower.tenant, lower.start)
        upper.hold(lower.start, lower.text[: shared - lower.start], lower.ids[:bytes_above], lower.cuts.part(0, inside))
        upper.size = upper.weight()
        if not self._make_room(lower.tenant, upper.size, path):
            return False
        self._siblings(upper)[upper.key] = path[-1] = upper
        lower.hold(shared, lower.text[len(upper.text) :], lower.ids[bytes_above:], lower.cuts.part(inside))
        lower.parent, lower.key = upper, lower.text[0]
        upper.children[lower.key] = lower
        self._ledger.resize(lower, lower.weight())
        self._ledger.add(upper)
        self._age += 1
        return True

    def _grow(self, path: list[Node], position: int, text: str, ids: bytes, cuts: Cuts) -> None:
        """Append the text from ``position`` to its last cut to the path, node by node, as far as there is room."""
        known = sum(len(node.ids) for node in path)
        first, end = cuts.through(position), cuts[-1].end
        allowance = self._ledger.largest_item
        while position < end and allowance > 0:
            leaf = path[-1]
            if leaf.children or leaf.parent is None or len(leaf.text) >= self._edge:
                leaf = Node(leaf, text[position], leaf.tenant, position)
            stop = min(end, position + self._edge - len(leaf.text))
            last = cuts.through(stop)
            reached = 4 * cuts[last - 1].ids_before if last > first else known
            added = self._extend(path, leaf, text[position:stop], ids[known:reached], cuts.part(first, last))
            if not added:
                return
            allowance -= added
            position, first, known = stop, last, reached

    def _extend(self, path: list[Node], leaf: Node, text: str, ids: bytes, cuts: Cuts) -> int:
        """Lengthen the path's last node, or put a new one behind it; returns the bytes it took, 0 for no room."""
        is_new, before = leaf is not path[-1], (leaf.start, leaf.text, leaf.ids, leaf.cuts)
        leaf.hold(leaf.start, leaf.text + text, leaf.ids + ids, leaf.cuts + cuts)
        added = leaf.weight() - (0 if is_new else leaf.size)
        if not self._make_room(leaf.tenant, added, path):
            leaf.hold(*before)
            return 0
        if is_new:
            leaf.size = added
            path[-1].children[leaf.key] = leaf
            path.append(leaf)
            self._ledger.add(leaf)
        else:
            self._ledger.resize(leaf, leaf.size + added)
        self._age += 1
        return added

    def _make_room(self, tenant: str, size: int, path: Sequence[Node]) -> bool:
        """Evict what was least recently used until ``size`` more bytes fit; False when only the path is left."""
        if self._ledger.fits(tenant, size):
            return True
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
        self._age += 1

    def _siblings(self, node: Node) -> dict[Hashable, Node]:
        return self._roots if node.parent is None else node.parent.children


def _shared_length(stretch: str, text: str, start: int) -> int:
    """How many characters ``stretch`` and ``text[start:]`` have in common: by leaps, then by halving."""
    same, leap, bound = 0, 16, min(len(stretch), len(text) - start)
    while same + leap < bound and stretch[same : same + leap] == text[start + same : start + same + leap]:
        same, leap = same + leap, 4 * leap
    bound = min(bound, same + leap)
    while same < bound:
        middle = (same + bound + 1) >> 1
        if stretch[same:middle] == text[start + same : start + middle]:
            same = middle
        else:
            bound = middle - 1
    return same


def _matched(walk: Walk, depth: int, cut: Cut) -> Match:
    """The match that ends at a cut in the path's node at ``depth``."""
    node = walk.path[depth]
    above = walk.path[:depth]
    chunks = [ancestor.ids for ancestor in above]
    rest = node.cuts[-1].ids_before - cut.ids_before
    chunks.append(node.ids[: len(node.ids) - 4 * rest] if rest else node.ids)
    text_bytes = utf8_length(node.text[: cut.end - node.start])
    for ancestor in above:
        text_bytes += ancestor.text_bytes
    return Match(cut, chunks, text_bytes, walk)


def _check_node(root: Node, ids_before: int) -> None:
    waiting = [(root, ids_before)]
    while waiting:
        node, known = waiting.pop()
        if node.size != node.weight():
            raise RuntimeError(f"a node says {node.size} bytes and weighs {node.weight()}")
        ends = [cut.end for cut in node.cuts]
        if ends != sorted(set(ends)) or (ends and not node.start < ends[0] <= ends[-1] <= node.end):
            raise RuntimeError(f"a node of the characters {node.start} to {node.end} has cuts at {ends}")
        reached = node.cuts[-1].ids_before if ends else known
        if len(node.ids) != 4 * (reached - known):
            raise RuntimeError(f"a node holds {len(node.ids) // 4} ids and its cuts say {reached - known}")
        for key, child in node.children.items():
            if (child.key, child.text[:1], child.parent, child.start) != (key, key, node, node.end):
                raise RuntimeError(f"the child {key!r} is out of place")
            waiting.append((child, reached))
