"""Reading a log's lines each part once: the values are those of ``json.loads``, equal parts are one object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.diagnose.shared_json import SharedJson, is_deep

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None))
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def _spelled(value: Any) -> str:
    """Type, order of keys and spelling of numbers: all that equality leaves out."""
    return json.dumps(value)


@given(st.lists(_VALUES, max_size=4), st.sampled_from([None, 0]), st.booleans())
def test_values_are_those_of_json(values: list[Any], indent: int | None, ascii_only: bool) -> None:  # noqa: FBT001 - drawn
    """Any JSON, lone surrogates, NaN and large numbers included, in whatever spelling and order of lines."""
    shared = SharedJson(200)
    for value in [*values, *values, {"messages": values, "body": {"messages": values}}]:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        assert _spelled(shared.loads(text)) == _spelled(json.loads(text))


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": 1,}', '{"a": 01}', "[1] 2", '{"a": "\t"}', "\ufeff{}", '{"messages": [{"a": tru}]}']
)
def test_what_is_not_json_is_refused(text: str) -> None:
    """With the message of ``json``, which says where."""
    with pytest.raises(ValueError, match=r"\w") as expected:
        json.loads(text)
    with pytest.raises(ValueError, match=r"\w") as actual:
        SharedJson(200).loads(text)
    assert str(actual.value) == str(expected.value)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"b": 0, "a": 1, "b": {"x": 1, "x": []}}', "1e400", "-0"])
def test_spellings_that_readers_differ_on(text: str) -> None:
    """The last of two equal keys counts, in the place of the first; numbers past the range are infinite."""
    assert _spelled(SharedJson(200).loads(text)) == _spelled(json.loads(text))


def test_equal_parts_are_one_object() -> None:
    """The same bytes in two lines, in the body or beside it, are read once; other bytes are another object."""
    shared = SharedJson(200)
    message, other = '{"role": "user", "content": "Hi"}', '{"content": "Hi", "role": "user"}'
    first = shared.loads(f'{{"messages": [{message}, {other}]}}')["messages"]
    second = shared.loads(f'{{"body": {{"messages": [{message}]}}, "time": 1}}')["body"]["messages"]
    assert first[0] is second[0]
    assert first[0] is not first[1]
    assert list(first[1]) == ["content", "role"]


@pytest.mark.parametrize("around", ["{}", '{{"messages": [{}]}}', '{{"body": {{"messages": [{}]}}}}'])
def test_depth_is_bounded_wherever_it_is(around: str) -> None:
    """As many levels as are allowed pass; one more does not, and ten thousand raise no other error."""
    for levels in range(190, 205):
        text = around.format("[" * levels + "]" * levels)
        if is_deep(json.loads(text), 200):
            with pytest.raises(OverflowError):
                SharedJson(200).loads(text)
        else:
            assert SharedJson(200).loads(text) == json.loads(text)
    with pytest.raises((OverflowError, RecursionError)):
        SharedJson(200).loads(around.format("[" * 10_000 + "]" * 10_000))
