"""Two requests as one tree: what they share, and each change as a choice that can be taken from either side.

``compare(a, b)`` builds the tree; ``compose(tree, side)`` writes a request down again, asking ``side(change)`` for each
change. All "a" gives A, all "b" gives B; one change taken from the other side is what fixing it alone would send. So
every gain that is reported is measured on a request that was really composed, encoded and compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from foreword.diagnose.align import align, is_permutation, same_runs
from foreword.diagnose.likeness import canonical, is_same, item_key
from foreword.diagnose.texts import find_hunks

Path = tuple[str | int, ...]
Op = Literal["text", "json", "value", "insert", "delete", "order", "keys", "append"]
Side = Literal["a", "b", "cut"]
Chooser = Callable[["Change"], Side]

_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One difference between two requests.

    Attributes:
        op: "text" changed inside a string; "json" the same JSON written otherwise; "value" another value; "insert" only
            in B; "delete" only in A; "order" the same elements in another order; "keys" the same keys in another order;
            "append" what only one side has at the end of a list or text.
        path: where, in B (in A for what only A has).
        a: A's side: the changed characters, the value, or the elements; None where A has none.
        b: B's side.
        a_whole: the string, object or list around it, in A.
        b_whole: the same in B.
        a_at: for text, where in A's string it starts, in characters; for elements, the index in the list.
        b_at: the same in B.
    """

    op: Op
    path: Path
    a: Any
    b: Any
    a_whole: Any = None
    b_whole: Any = None
    a_at: int = 0
    b_at: int = 0


@dataclass(frozen=True, slots=True)
class Same:
    """A value both sides share."""

    value: Any


@dataclass(frozen=True, slots=True)
class Run:
    """Elements of a list that both sides share."""

    values: list[Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """One change: as a value on its own, or as characters or elements inside a Text or Items."""

    change: Change


@dataclass(frozen=True, slots=True)
class Text:
    """A string: shared characters and changes."""

    parts: tuple[str | Choice, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A list: shared elements, elements with changes inside, and runs only one side has."""

    parts: tuple[Node, ...]
    order: Choice | None = None
    a_order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """An object: its fields, which of them only one side has, and the order of keys on both sides."""

    fields: Mapping[str, Node]
    a_keys: tuple[str, ...]
    b_keys: tuple[str, ...]
    order: Choice | None = None


Node = Same | Run | Choice | Text | Items | Fields


def compare(a: Any, b: Any, path: Path = ()) -> Node:
    """The tree of two JSON values (or two texts)."""
    if type(a) is type(b) and len(path) < _MAX_DEPTH:
        if isinstance(a, str):
            return _compare_texts(a, b, path)
        if isinstance(a, dict):
            return Same(b) if path and is_same(a, b) else _compare_fields(a, b, path)
        if isinstance(a, list):
            return _compare_items(a, b, path)
    return Same(b) if a == b and type(a) is type(b) else Choice(Change("value", path, a, b, a, b))


def _compare_texts(a: str, b: str, path: Path) -> Node:
    if a == b:
        return Same(b)
    if path and _is_same_json(a, b):
        return Text((Choice(Change("json", path, a, b, a, b)),))
    parts: list[str | Choice] = []
    end = 0
    for hunk in find_hunks(a, b):
        left, right = a[hunk.a_start : hunk.a_end], b[hunk.b_start : hunk.b_end]
        at_end = hunk.a_end == len(a) and hunk.b_end == len(b) and not (left and right)
        op: Op = "append" if at_end and not path else "text"
        parts += [b[end : hunk.b_start], Choice(Change(op, path, left, right, a, b, hunk.a_start, hunk.b_start))]
        end = hunk.b_end
    return Text((*parts, b[end:]))


def _is_same_json(a: str, b: str) -> bool:
    if not (a[:1] in "{[" and b[:1] in "{["):
        return False
    try:
        return canonical(json.loads(a)) == canonical(json.loads(b))
    except (ValueError, RecursionError):
        return False


def _compare_fields(a: dict[str, Any], b: dict[str, Any], path: Path) -> Node:
    fields: dict[str, Node] = {}
    for key in [*b, *(key for key in a if key not in b)]:
        here = (*path, key)
        if key in a and key in b:
            fields[key] = compare(a[key], b[key], here)
        elif key in b:
            fields[key] = Choice(Change("insert", here, None, b[key], a, b))
        else:
            fields[key] = Choice(Change("delete", here, a[key], None, a, b))
    shared_a, shared_b = [k for k in a if k in b], [k for k in b if k in a]
    if list(a) == list(b) and all(isinstance(node, Same) for node in fields.values()):
        return Same(b)
    order = Choice(Change("keys", path, shared_a, shared_b, a, b)) if shared_a != shared_b else None
    return Fields(fields, tuple(a), tuple(b), order)


def _compare_items(a: list[Any], b: list[Any], path: Path) -> Node:
    runs = same_runs(a, b)
    if len(a) == len(b) and runs == [range(len(a))]:
        return Same(b)
    same = set(chain.from_iterable(runs))
    a_keys, b_keys = ([f"#{n}" if n in same else item_key(item) for n, item in enumerate(items)] for items in (a, b))
    if is_permutation(a_keys, b_keys):
        return _permuted(a, b, a_keys, b_keys, path)
    parts: list[Node] = []
    for tag, a0, a1, b0, b1 in align(a, b, a_keys, b_keys, runs):
        if tag == "same":
            parts.append(Run(b[b0:b1]))
        elif tag == "pair":
            parts.append(Same(b[b0]) if a0 == b0 and b0 in same else compare(a[a0], b[b0], (*path, b0)))
        else:
            parts += _only_one_side(a, b, range(a0, a1), range(b0, b1), path)
    is_all_same = len(a) == len(b) and all(isinstance(part, Same | Run) for part in parts)
    return Same(b) if is_all_same else Items(tuple(parts))


def _only_one_side(a: list[Any], b: list[Any], x: range, y: range, path: Path) -> Iterator[Choice]:
    """Elements ``x`` of A and ``y`` of B, which have no like on the other side; at the end of both they are appended."""
    at_end = x.stop == len(a) and y.stop == len(b)
    if x:
        op: Op = "append" if at_end and not y else "delete"
        yield Choice(Change(op, (*path, x.start), a[x.start : x.stop], None, a, b, x.start, y.start))
    if y:
        op = "append" if at_end else "insert"
        yield Choice(Change(op, (*path, y.start), None, b[y.start : y.stop], a, b, x.start, y.start))


def _permuted(a: list[Any], b: list[Any], a_keys: list[str], b_keys: list[str], path: Path) -> Node:
    """Elements paired by key, kept in B's order, with one change for the order itself."""
    places: dict[str, list[int]] = {}
    for index, key in enumerate(a_keys):
        places.setdefault(key, []).append(index)
    parts: list[Node] = []
    sources: list[int] = []
    for index, key in enumerate(b_keys):
        found = places.get(key)
        source = found.pop(0) if found else -1
        sources.append(source if source >= 0 else len(a) + index)
        here = (*path, index)
        whole = compare(a[source], b[index], here) if source >= 0 else _only_b(a, b, index, here)
        parts.append(whole)
    for source in (index for left in places.values() for index in left):
        sources.append(source)
        parts.append(Choice(Change("delete", (*path, source), [a[source]], None, a, b, source, source)))
    return Items(tuple(parts), Choice(Change("order", path, a, b, a, b)), tuple(sources))


def _only_b(a: list[Any], b: list[Any], index: int, path: Path) -> Node:
    return Choice(Change("insert", path, None, [b[index]], a, b, index, index))


def changes_in(node: Node) -> Iterator[Change]:
    """All changes of a tree, appends included, in document order."""
    if isinstance(node, Choice):
        yield node.change
    elif isinstance(node, Text):
        yield from (part.change for part in node.parts if isinstance(part, Choice))
    elif isinstance(node, Items | Fields):
        if node.order:
            yield node.order.change
        for part in node.parts if isinstance(node, Items) else node.fields.values():
            if type(part) is not Same and type(part) is not Run:
                yield from changes_in(part)


_NOTHING: Any = object()


def compose(node: Node, side: Chooser) -> Any:
    """Write the request down with each change taken from the side asked for; "cut" takes neither."""
    if isinstance(node, Same):
        return node.value
    if isinstance(node, Run):
        return list(node.values)
    if isinstance(node, Text):
        return "".join(part if isinstance(part, str) else _chosen(part, side, "") for part in node.parts)
    if isinstance(node, Choice):
        return _chosen(node, side, _NOTHING)
    return _compose_items(node, side) if isinstance(node, Items) else _compose_fields(node, side)


def _chosen(choice: Choice, side: Chooser, nothing: Any) -> Any:
    which, change = side(choice.change), choice.change
    value = nothing if which == "cut" else change.a if which == "a" else change.b
    absent = (change.op, which) in {("insert", "a"), ("delete", "b")} or (change.op == "append" and value is None)
    return nothing if absent else value


def _compose_items(node: Items, side: Chooser) -> list[Any]:
    written: list[list[Any]] = []
    for part in node.parts:
        value = compose(part, side)
        is_run = isinstance(part, Run) or (
            isinstance(part, Choice) and part.change.op in {"insert", "delete", "append"}
        )
        written.append([] if value is _NOTHING else value if is_run else [value])
    if node.order and side(node.order.change) == "a":
        ranked = sorted(range(len(written)), key=lambda index: node.a_order[index])
        written = [written[index] for index in ranked]
    return [item for run in written for item in run]


def _compose_fields(node: Fields, side: Chooser) -> dict[str, Any]:
    from_a = node.order is not None and side(node.order.change) == "a"
    first, second = (node.a_keys, node.b_keys) if from_a else (node.b_keys, node.a_keys)
    keys = _merge_keys(first, second)
    values = {key: compose(node.fields[key], side) for key in keys}
    return {key: value for key, value in values.items() if value is not _NOTHING}


def _merge_keys(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The first order, with keys only the second has put behind the key they follow there."""
    keys = list(first)
    for index, key in enumerate(second):
        if key not in keys:
            before = second[index - 1] if index else None
            keys.insert(keys.index(before) + 1 if before in keys else 0, key)
    return keys
