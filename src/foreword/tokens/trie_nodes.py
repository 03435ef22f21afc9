"""What the prefix cache holds: nodes of a radix tree, and tails that wait behind them."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator

from foreword.tokens.boundaries import START, Cut, Cuts, count_ids
from foreword.tokens.exact_cache import utf8_length

NODE_OVERHEAD = 800  # the node, its dictionaries of children and tails, its last cut, its place in the order of use
TAIL_OVERHEAD = 400  # the tail, its cuts' wrapper, its places among its siblings and in the order of use


class Node:
    """A stretch of text, the cuts in it, and the ids from the last cut before it to its own last cut.

    Attributes:
        start, end: where it lies on the path from the root, in characters. Its cuts are told from there as well.
        text: what it holds of the text.
        ids: uint32 ids; none when it has no cut.
        cuts: the cuts that end in it.
        last: the last of them; a root's is the start of the text.
        text_bytes, bytes_before: the UTF-8 length of its text, and of the path before it.
        children: by the first character of their text.
        tails: what waits behind its end, by the text of the first stretch up to a cut; its end is a cut then.
        key: its name among its siblings; a root's is the context it stands for.
    """

    __slots__ = (
        "bytes_before", "children", "cuts", "end", "ids", "key", "last", "parent", "size", "start", "tails", "tenant",
        "text", "text_bytes",
    )  # fmt: skip

    def __init__(self, parent: Node | None, key: Hashable, tenant: str, start: int, bytes_before: int = 0) -> None:
        self.parent = parent
        self.key = key
        self.tenant = tenant
        self.bytes_before = bytes_before
        self.children: dict[Hashable, Node] = {}
        self.tails: dict[str, Tail] = {}
        self.hold(start, "", b"", Cuts())
        self.size = 0

    def hold(self, start: int, text: str, ids: bytes, cuts: Cuts) -> None:
        """Replace what the node holds."""
        self.start, self.text, self.ids, self.cuts = start, text, ids, cuts
        self.end = start + len(text)
        self.last: Cut | None = cuts[-1] if len(cuts) else START if self.parent is None else None
        self.text_bytes = utf8_length(text)

    def weight(self) -> int:
        """Bytes of memory it takes."""
        return sys.getsizeof(self.text) + sys.getsizeof(self.ids) + sys.getsizeof(self.cuts.packed) + NODE_OVERHEAD

    def bytes_through(self, end: int) -> int:
        """The UTF-8 length of the path up to the character ``end`` in this node."""
        inside = self.text_bytes if end == self.end else utf8_length(self.text[: end - self.start])
        return self.bytes_before + inside

    def ids_through(self, cut: Cut) -> bytes:
        """Its ids up to one of its cuts."""
        last = self.last
        rest = 0 if last is None else last.ids_before - cut.ids_before
        return self.ids[: len(self.ids) - 4 * rest] if rest else self.ids

    def cuts_shared(self, text: str) -> int:
        """How many of its cuts are cuts of a text that comes this way but parts with it before its end."""
        if not self.cuts.packed or not text.startswith(self.text[: self.cuts.packed[0] - self.start], self.start):
            return 0
        return self.cuts.through(self.start + shared_length(self.text, text, self.start))


class Tail:
    """A short stretch behind a node's end, up to its last cut, that only one text has come by so far.

    Attributes:
        node: what it waits behind.
        key: the text up to its first cut.
        text: the text from there to its last cut.
        ids: the uint32 ids, at least up to the last cut.
        cuts: uncounted.
    """

    __slots__ = ("cuts", "ids", "key", "node", "size", "tenant", "text")

    def __init__(self, node: Node, key: str, text: str, ids: bytes, cuts: Cuts) -> None:
        self.node = node
        self.tenant = node.tenant
        self.key = key
        self.text = text
        self.ids = ids
        self.cuts = cuts
        self.size = self.weight()

    def weight(self) -> int:
        """Bytes of memory it takes."""
        size = sys.getsizeof
        return size(self.key) + size(self.text) + size(self.ids) + size(self.cuts.packed) + TAIL_OVERHEAD

    def counted(self) -> Cuts:
        """Its cuts with their ``ids_before``."""
        last = self.node.last
        return count_ids(self.cuts, [self.ids], last.ids_before if last is not None else 0)


def shared_length(stretch: str, text: str, start: int) -> int:
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


def nodes_under(roots: list[Node]) -> Iterator[Node]:
    """These nodes and all below them."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children.values())
        yield node


def check_tree(root: Node) -> None:
    """Raise RuntimeError unless every node agrees with itself and its neighbours."""
    waiting = [(root, 0, 0)]
    while waiting:
        node, known, bytes_before = waiting.pop()
        reached = _check_node(node, known, bytes_before)
        for key, child in node.children.items():
            if (child.key, child.text[:1], child.parent, child.start) != (key, key, node, node.end):
                raise RuntimeError(f"the child {key!r} is out of place")
            waiting.append((child, reached, bytes_before + node.text_bytes))


def _check_node(node: Node, known: int, bytes_before: int) -> int:
    if node.size != node.weight() or node.bytes_before != bytes_before:
        raise RuntimeError(f"a node says {node.size} bytes behind {node.bytes_before} and weighs {node.weight()}")
    ends = [cut.end for cut in node.cuts]
    if ends != sorted(set(ends)) or (ends and not node.start < ends[0] <= ends[-1] <= node.end):
        raise RuntimeError(f"a node of the characters {node.start} to {node.end} has cuts at {ends}")
    reached = node.cuts[-1].ids_before if ends else known
    if len(node.ids) != 4 * (reached - known):
        raise RuntimeError(f"a node holds {len(node.ids) // 4} ids and its cuts say {reached - known}")
    for key, tail in node.tails.items():
        _check_tail(node, key, tail)
    return reached


def _check_tail(node: Node, key: str, tail: Tail) -> None:
    if node.last is None or node.last.end != node.end:
        raise RuntimeError(f"a tail waits behind the character {node.end}, which is no cut")
    if (tail.node, tail.key, tail.size) != (node, key, tail.weight()):
        raise RuntimeError(f"the tail {key!r} is out of place")
    if (tail.cuts[0].end, tail.cuts[-1].end) != (node.end + len(key), node.end + len(key) + len(tail.text)):
        raise RuntimeError(f"the tail {key!r} does not end at its cuts")
