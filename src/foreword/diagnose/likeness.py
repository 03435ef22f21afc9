"""When two parts of a request are the same, the same element, or edited forms of one another."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import msgspec

from foreword.diagnose.hints import PLACEHOLDER
from foreword.diagnose.texts import common_prefix, common_suffix

_encode = msgspec.json.Encoder().encode
_SIMILAR = 0.4
_MOSTLY = 0.9
_TELLING = 8
_TAG = 60
_NO_TEXT = frozenset({"role", "type", "cache_control"})


def canonical(value: Any) -> str:
    """One spelling for each JSON value, used to label a difference, never to decide whether there is one."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)


def is_same(a: Any, b: Any) -> bool:
    """Equal, with the same types and the keys in the same order: the same JSON, byte for byte."""
    if a is b:
        return True
    if type(a) is not type(b) or a != b:
        return False
    if not isinstance(a, dict | list):
        return True
    if isinstance(a, list) and all(map(is_, a, b)):
        return True
    try:
        return _encode(a) == _encode(b)
    except (TypeError, ValueError, RecursionError):
        return repr(a) == repr(b)


def is_equal(a: Any, b: Any) -> bool:
    """Whether two JSON values are one value, in whatever order their keys stand."""
    return bool(a == b) and canonical(a) == canonical(b)  # 1, 1.0 and true are equal to Python


def item_key(item: Any) -> str:
    """What makes two elements one and the same: a tool's name, else all of its content but cache markers."""
    if isinstance(item, dict):
        function = item.get("function")
        name = function.get("name") if isinstance(function, dict) else item.get("name")
        if isinstance(name, str) and "role" not in item and str(item.get("type")) not in {"tool_use", "function_call"}:
            return f"name:{name}"
        item = {key: value for key, value in item.items() if key != "cache_control"}
    return sorted_json(item)


def sorted_json(value: Any) -> str:
    """One spelling for each JSON value, to look it up by; ``canonical`` is for reading."""
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except (TypeError, ValueError, RecursionError):
        return canonical(value)


def is_alike(a: Any, b: Any) -> bool:
    """Whether one element is an edited form of the other: same role and kind, and much of the text in common."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return type(a) is type(b) and similarity(str(a), str(b)) > _SIMILAR
    if any(a.get(key) != b.get(key) for key in ("role", "type")):
        return False
    if has_same_ids(a, b):
        return True
    left, right = text_of(a), text_of(b)
    if similarity(left, right) >= _SIMILAR or is_equal(text_fields(a), text_fields(b)):
        return True
    short, long = sorted((left, right), key=len)
    return (len(short) >= _TELLING and short in long) or bool(len(short) < _TAG and PLACEHOLDER.search(short))


def has_same_ids(a: Any, b: Any) -> bool:
    """Whether both have ids of calls or results, and the same ones."""
    ids = set(_ids(a))
    return bool(ids) and ids == set(_ids(b))


def _ids(value: Any) -> Iterator[str]:
    """Ids of calls and results, at any depth a message has them."""
    if isinstance(value, dict):
        yield from (str(value[key]) for key in ("id", "tool_call_id", "call_id", "tool_use_id") if value.get(key))
        yield from (found for key in ("tool_calls", "content") for found in _ids(value.get(key)))
    elif isinstance(value, list):
        yield from (found for item in value for found in _ids(item))


def similarity(a: str, b: str) -> float:
    """Shared words over the larger side's, in [0, 1]; cheap and good enough to pair edited texts.

    What both begin and end with is not counted word by word: where that is most of either, it is the answer.
    """
    if a == b:
        return 1.0
    longest = max(len(a), len(b))
    start = common_prefix(a, b)
    share = (start + common_suffix(a, b, min(len(a), len(b)) - start)) / longest
    if share > _MOSTLY:
        return share
    left, right = Counter(a.split()), Counter(b.split())
    most = max(left.total(), right.total())
    return (left & right).total() / most if most else 0.0


def text_fields(item: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message that carry text, without reasoning, markers and empty values."""
    return {k: v for k, v in item.items() if v and k not in {"reasoning_content", "reasoning", "cache_control"}}


def text_of(value: Any) -> str:
    """All strings of a value, joined by lines; whatever else it holds, and an empty list, is an empty line."""
    if isinstance(value, str):
        return value
    found: list[str] = []
    _collect_text(value, found.append)
    return "\n".join(found)


def _collect_text(value: Any, found: Callable[[str], None]) -> None:
    if isinstance(value, str):
        found(value)
        return
    inner = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        inner = [v for k, v in value.items() if k not in _NO_TEXT]
    if not inner:
        found("")
    for item in inner:
        _collect_text(item, found)
