"""Two requests as one tree: what they share, and each change as a choice that can be taken from either side.

``compare(a, b)`` builds the tree; ``compose(tree, side)`` writes a request down again, asking ``side(change)`` for each
change. All "a" gives A, all "b" gives B; one change taken from the other side is what fixing it alone would send. So
every gain that is reported is measured on a request that was really composed, encoded and compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

import msgspec

from foreword.diagnose.hints import PLACEHOLDER
from foreword.diagnose.texts import common_prefix, find_hunks

Path = tuple[str | int, ...]
Op = Literal["text", "json", "value", "insert", "delete", "order", "keys", "append"]
Side = Literal["a", "b", "cut"]
Chooser = Callable[["Change"], Side]

_MAX_DEPTH = 64
_SIMILAR = 0.4
_TELLING = 8
_TAG = 60


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


Node = Same | Choice | Text | Items | Fields


def canonical(value: Any) -> str:
    """One spelling for each JSON value, used to label a difference, never to decide whether there is one."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)


def compare(a: Any, b: Any, path: Path = ()) -> Node:
    """The tree of two JSON values (or two texts)."""
    if type(a) is type(b) and len(path) < _MAX_DEPTH:
        if isinstance(a, str):
            return _compare_texts(a, b, path)
        if isinstance(a, dict):
            return Same(b) if path and _is_same(a, b) else _compare_fields(a, b, path)
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
    same = _same_places(a, b)
    a_keys, b_keys = ([f"#{n}" if n in same else _item_key(item) for n, item in enumerate(items)] for items in (a, b))
    if _is_permutation(a_keys, b_keys):
        return _permuted(a, b, a_keys, b_keys, path)
    parts: list[Node] = []
    for tag, a0, a1, b0, b1 in _align(a, b, a_keys, b_keys):
        if tag == "pair":
            parts.append(Same(b[b0]) if a0 == b0 and b0 in same else compare(a[a0], b[b0], (*path, b0)))
            continue
        at_end = a1 == len(a) and b1 == len(b)
        if a1 > a0:
            op: Op = "append" if at_end and b1 == b0 else "delete"
            parts.append(Choice(Change(op, (*path, a0), a[a0:a1], None, a, b, a0, b0)))
        if b1 > b0:
            op = "append" if at_end else "insert"
            parts.append(Choice(Change(op, (*path, b0), None, b[b0:b1], a, b, a0, b0)))
    is_same = len(a) == len(b) and all(isinstance(part, Same) for part in parts)
    return Same(b) if is_same else Items(tuple(parts))


def _same_places(a: list[Any], b: list[Any]) -> set[int]:
    """The places where both have the same element, spelled the same: nothing more need be asked about them."""
    return {n for n, (x, y) in enumerate(zip(a, b, strict=False)) if _is_same(x, y)}


def _is_same(a: Any, b: Any) -> bool:
    """Equal, with the same types and the keys in the same order."""
    if type(a) is not type(b) or a != b:
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(type(v) is str or _is_same(v, b[k]) for k, v in a.items())
    return all(map(_is_same, a, b)) if isinstance(a, list) else True


def _item_key(item: Any) -> str:
    """What makes two elements one and the same: a tool's name, else all of its content but cache markers."""
    if isinstance(item, dict):
        function = item.get("function")
        name = function.get("name") if isinstance(function, dict) else item.get("name")
        if isinstance(name, str) and "role" not in item and str(item.get("type")) not in {"tool_use", "function_call"}:
            return f"name:{name}"
        item = {key: value for key, value in item.items() if key != "cache_control"}
    try:
        return msgspec.json.encode(item, order="sorted").decode()
    except (TypeError, ValueError, RecursionError):
        return canonical(item)


def _is_permutation(a_keys: Sequence[str], b_keys: Sequence[str]) -> bool:
    """The same elements in another order, one or two of them more or fewer forgiven when there are names."""
    if len(a_keys) == len(b_keys):
        return (a_keys != b_keys and Counter(a_keys) == Counter(b_keys)) or _is_named_permutation(a_keys, b_keys)
    return _is_named_permutation(a_keys, b_keys)


def _is_named_permutation(a_keys: Sequence[str], b_keys: Sequence[str]) -> bool:
    if not all(key.startswith(("name:", "#")) for key in (*a_keys[::-1], *b_keys[::-1])):
        return False
    shared = set(a_keys) & set(b_keys)
    return len(shared) > 1 and [k for k in a_keys if k in shared] != [k for k in b_keys if k in shared]


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


Aligned = tuple[Literal["pair", "gap"], int, int, int, int]


def _align(a: list[Any], b: list[Any], a_keys: list[str], b_keys: list[str]) -> Iterator[Aligned]:
    """Pairs of like elements, and runs that only one side has."""
    start = common_prefix(a_keys, b_keys)
    limit = min(len(a), len(b)) - start
    tail = common_prefix(a_keys[::-1][:limit], b_keys[::-1][:limit])
    yield from (("pair", n, n + 1, n, n + 1) for n in range(start))
    middle = a_keys[start : len(a) - tail], b_keys[start : len(b) - tail]
    opcodes = SequenceMatcher(None, *middle, autojunk=False).get_opcodes() if any(middle) else []
    for tag, *ends in opcodes:
        a0, a1, b0, b1 = (end + start for end in ends)
        if tag == "equal":
            yield from (("pair", i, i + 1, b0 + i - a0, b0 + i - a0 + 1) for i in range(a0, a1))
        elif tag == "replace":
            yield from _align_replaced(a, b, range(a0, a1), range(b0, b1))
        else:
            yield "gap", a0, a1, b0, b1
    yield from (("pair", len(a) - n, len(a) - n + 1, len(b) - n, len(b) - n + 1) for n in range(tail, 0, -1))


def _align_replaced(a: list[Any], b: list[Any], a_run: range, b_run: range) -> Iterator[Aligned]:
    """Within a replaced run: each element of A with the next like element of B, in order."""
    at = gap_b = b_run.start
    gap_a, a1, b1 = a_run.start, a_run.stop, b_run.stop
    for index in a_run:
        found = next((j for j in range(at, b1) if is_alike(a[index], b[j])), None)
        moved_with_the_end = found is not None and found > gap_b and index == len(a) - 1
        if found is None or moved_with_the_end:
            continue
        if index > gap_a or found > gap_b:
            yield "gap", gap_a, index, gap_b, found
        yield "pair", index, index + 1, found, found + 1
        at = gap_b = found + 1
        gap_a = index + 1
    if gap_a < a1 or gap_b < b1:
        yield "gap", gap_a, a1, gap_b, b1


def is_alike(a: Any, b: Any) -> bool:
    """Whether one element is an edited form of the other: same role and kind, and much of the text in common."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return type(a) is type(b) and similarity(str(a), str(b)) > _SIMILAR
    if any(a.get(key) != b.get(key) for key in ("role", "type")):
        return False
    ids = [set(_ids(item)) for item in (a, b)]
    if ids[0] and ids[0] == ids[1]:
        return True
    left, right = text_of(a), text_of(b)
    if similarity(left, right) >= _SIMILAR or canonical(text_fields(a)) == canonical(text_fields(b)):
        return True
    short, long = sorted((left, right), key=len)
    return (len(short) >= _TELLING and short in long) or bool(len(short) < _TAG and PLACEHOLDER.search(short))


def _ids(value: Any) -> Iterator[str]:
    """Ids of calls and results, at any depth a message has them."""
    if isinstance(value, dict):
        yield from (str(value[key]) for key in ("id", "tool_call_id", "call_id", "tool_use_id") if value.get(key))
        yield from (found for key in ("tool_calls", "content") for found in _ids(value.get(key)))
    elif isinstance(value, list):
        yield from (found for item in value for found in _ids(item))


def similarity(a: str, b: str) -> float:
    """Shared words over the larger side's, in [0, 1]; cheap and good enough to pair edited texts."""
    if a == b:
        return 1.0
    left, right = Counter(a.split()), Counter(b.split())
    most = max(left.total(), right.total())
    return (left & right).total() / most if most else 0.0


def text_fields(item: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message that carry text, without reasoning, markers and empty values."""
    return {k: v for k, v in item.items() if v and k not in {"reasoning_content", "reasoning", "cache_control"}}


def text_of(value: Any) -> str:
    """All strings of a value, joined by lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(text_of(v) for k, v in value.items() if k not in {"role", "type", "cache_control"})
    if isinstance(value, list):
        return "\n".join(map(text_of, value))
    return ""


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
            if type(part) is not Same:
                yield from changes_in(part)


_NOTHING: Any = object()


def compose(node: Node, side: Chooser) -> Any:
    """Write the request down with each change taken from the side asked for; "cut" takes neither."""
    if isinstance(node, Same):
        return node.value
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
        is_run = isinstance(part, Choice) and part.change.op in {"insert", "delete", "append"}
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
