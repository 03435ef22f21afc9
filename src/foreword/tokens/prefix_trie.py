"""L1: the ids of beginnings of inputs seen before."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foreword.tokens.boundaries import START, Cut, Cuts
from foreword.tokens.ledger import Ledger
from foreword.tokens.trie_nodes import Node, Tail, check_tree, nodes_under, shared_length

EDGE = 1 << 15  # characters of one node at most: what a split copies and an eviction loses

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


class Match(NamedTuple):
    """The longest cached beginning of a text.

    Attributes:
        cut: its end.
        chunks: the ids up to it.
        text_bytes: its length in UTF-8.
        node: which node the cut is in; None when nothing is known of the context.
        path: the nodes, from the root on, that the text follows to their ends.
        age: the tree's age then; node and path are what they were as long as it is the same.
    """

    cut: Cut = START
    chunks: Sequence[bytes] = ()
    text_bytes: int = 0
    node: Node | None = None
    path: Sequence[Node] = ()
    age: int = -1


NO_MATCH = Match()


class PrefixTrie:
    """Beginnings of texts as a radix tree: each stretch of text is held once, with its ids. A prefix is a path.

    Nodes branch at any character; ids belong to the certified cuts. What follows a cut is first set aside as a *tail*,
    which costs no branch, and enters the tree when a second text begins that way: most questions are asked once. Since
    ids are reused only up to a cut, a tail found by its text up to its first cut is found whenever it is of use.

    A touch goes from the deepest node to the root, so a parent is always more recently used than its children, and the
    least recently used item is a tail, or a leaf whose tails go with it. Not thread-safe: its owner holds the lock.
    """

    def __init__(self, config: L1Config) -> None:
        self.config = config
        self.evictions = 0
        self._age = 0
        self._roots: dict[Hashable, Node] = {}
        self._ledger: Ledger[Node | Tail] = self._new_ledger()
        self._edge = max(256, min(EDGE, config.max_memory >> 6))

    @property
    def memory(self) -> int:
        """Bytes held."""
        return self._ledger.bytes

    def __len__(self) -> int:
        return self._ledger.entries

    def match(self, context: Context, text: str) -> Match:
        """The longest cached beginning of the text that ends at a cut, now the most recently used."""
        node = self._roots.get(context)
        if node is None:
            return NO_MATCH
        path = [node]
        while (child := node.children.get(text[node.end : node.end + 1])) is not None:
            if not text.startswith(child.text, node.end):
                break
            path.append(child)
            node = child
        if child is not None and (inside := child.cuts_shared(text)):
            self._ledger.touch((child, *reversed(path)))
            cut = child.cuts[inside - 1]
            chunks = [*(above.ids for above in path), child.ids_through(cut)]
            return Match(cut, chunks, child.bytes_through(cut.end), child, path, self._age)
        self._ledger.touch(reversed(path))
        while node.last is None and node.parent is not None:
            node = node.parent
        cut = node.last or START
        return Match(cut, [above.ids for above in path], node.bytes_through(cut.end), node, path, self._age)

    def store(self, context: Context, text: str, ids: bytes, cuts: Cuts, match: Match = NO_MATCH) -> None:
        """Keep the text up to its last cut, sharing what is there.

        Args:
            context: whose texts share a tree.
            text: the whole text.
            ids: its uint32 ids, at least up to the last cut.
            cuts: in order; those in text that is there already are not needed.
            match: what ``match`` said of the text, to spare another one when nothing has changed since.
        """
        if not len(cuts):
            return
        if match.age != self._age and (match := self.match(context, text)) is NO_MATCH:
            root = self._plant(context)
            if root is None:
                return
            match = Match(path=(root,))
        path = list(match.path)
        shared = path[-1].end
        if shared < cuts[-1].end and (child := path[-1].children.get(text[shared : shared + 1])) is not None:
            path.append(child)
            shared += shared_length(child.text, text, shared)
        if shared < cuts[-1].end and (shared == path[-1].end or self._split(path, shared)):
            self._grow(path, shared, text, ids, cuts)
            self._ledger.touch(reversed(path))

    def set_aside(self, match: Match, text: str, ids: bytes, cuts: Cuts) -> bool:
        """Keep what follows a match up to its last cut as a tail; False when the tree has changed since the match.

        Args:
            match: what ``match`` said of the text.
            text: the whole text.
            ids: the uint32 ids of what follows the match, at least up to the last cut.
            cuts: the cuts in it, uncounted.
        """
        node = match.node
        if node is None or match.age != self._age:
            return False
        path, end = list(match.path), match.cut.end
        if node.end != end:
            path = path[: path.index(node) + 1] if node in path else [*path, node]
            if not self._split(path, end):
                return True
            self._ledger.touch(reversed(path))
            node = path[-1]
        first = cuts.packed[0]
        tail = Tail(node, text[end:first], text[first : cuts.packed[-4]], ids, cuts)
        if tail.key not in node.tails and self._make_room(tail.tenant, tail.size, path):
            node.tails[tail.key] = tail
            self._ledger.add(tail)
        return True

    @staticmethod
    def waiting(match: Match, text: str, cuts: Cuts) -> Tail | None:
        """The tail behind a match that the text, whose next cuts these are, begins with. Needs no lock."""
        node, end = match.node, match.cut.end
        if node is None or not node.tails or not cuts.packed or node.end != end:
            return None
        return node.tails.get(text[end : cuts.packed[0]])

    def admit(self, context: Context, text: str, match: Match, tail: Tail) -> Match:
        """Let a tail into the tree, since a second text begins with it, and match again."""
        if tail.node.tails.get(tail.key) is tail:
            counted = tail.counted()
            self._drop(tail)
            beginning = text[: match.cut.end] + tail.key + tail.text  # the match is the text's: this may go its own way
            self.store(context, beginning, b"".join((*match.chunks, tail.ids)), counted)
        return self.match(context, text)

    def clear(self) -> None:
        """Forget everything."""
        for node in list(nodes_under(list(self._roots.values()))):
            node.parent = None
            node.tails.clear()
        self._roots.clear()
        self._ledger = self._new_ledger()
        self._age += 1

    def check_integrity(self) -> None:
        """Raise RuntimeError unless the tree is one, its items agree with themselves, and the ledger with them."""
        self._ledger.check_integrity()
        nodes = list(nodes_under(list(self._roots.values())))
        items: list[Node | Tail] = [*nodes, *(tail for node in nodes for tail in node.tails.values())]
        if len(items) != len(self) or sum(item.size for item in items) != self.memory:
            raise RuntimeError(f"the tree has {len(items)} items and the ledger {len(self)}")
        for root in self._roots.values():
            check_tree(root)

    def _new_ledger(self) -> Ledger[Node | Tail]:
        return Ledger(self.config.max_memory, tenant_max_memory=self.config.tenant_max_memory)

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
        upper = Node(lower.parent, lower.key, lower.tenant, lower.start, lower.bytes_before)
        upper.hold(lower.start, lower.text[: shared - lower.start], lower.ids[:bytes_above], lower.cuts.part(0, inside))
        upper.size = upper.weight()
        if not self._make_room(lower.tenant, upper.size, path):
            return False
        self._siblings(upper)[upper.key] = path[-1] = upper
        lower.bytes_before += upper.text_bytes
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
            if leaf.children or leaf.tails or leaf.parent is None or len(leaf.text) >= self._edge:
                leaf = Node(leaf, text[position], leaf.tenant, position, leaf.bytes_before + leaf.text_bytes)
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

    def _evict(self, victim: Node | Tail) -> None:
        self.evictions += 1
        if isinstance(victim, Tail):
            self._drop(victim)
            return
        for tail in list(victim.tails.values()):
            self._drop(tail)
        del self._siblings(victim)[victim.key]
        self._ledger.remove(victim)
        self._age += 1

    def _drop(self, tail: Tail) -> None:
        del tail.node.tails[tail.key]
        self._ledger.remove(tail)

    def _siblings(self, node: Node) -> dict[Hashable, Node]:
        return self._roots if node.parent is None else node.parent.children
