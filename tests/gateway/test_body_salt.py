"""A body's cache salt is spliced: the rest of the body stays, byte for byte."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from foreword.gateway.body_salt import set_cache_salt, worker_salt

SALT = "5a17"


def test_a_salt_is_put_first() -> None:
    """Where there is none, nothing else moves."""
    assert set_cache_salt(b' {\n "model": "m"} ', SALT, present=False) == b' {"cache_salt":"5a17",\n "model": "m"} '


def test_a_salt_is_replaced_where_it_stands() -> None:
    """Only the value goes; one inside another object is nobody's salt."""
    body = b'{"a": {"cache_salt": "in"}, "cache_salt" :\t"x,}\\"" , "b": ["cache_salt", {"c": 1}]}'
    expected = b'{"a": {"cache_salt": "in"}, "cache_salt" :\t"5a17" , "b": ["cache_salt", {"c": 1}]}'
    assert set_cache_salt(body, SALT, present=True) == expected


def test_every_spelling_and_repetition_is_replaced() -> None:
    """Whichever of several a worker would take, it takes ours."""
    body = b'{"cache_salt":"a","cache\\u005fsalt":null,"cache_salt":\n"z"\n}'
    expected = b'{"cache_salt":"5a17","cache\\u005fsalt":"5a17","cache_salt":\n"5a17"\n}'
    assert set_cache_salt(body, SALT, present=True) == expected


def test_a_salt_is_a_digest_of_both() -> None:
    """The value is fixed for good: gateways of any release agree on it."""
    assert worker_salt("acme", None) == "50b1f7c637f76b768a89c449175854f210c8338aabea2f10544a859dbd44f32d"
    assert worker_salt("acme", "") == worker_salt("acme", None)
    assert len({worker_salt("a", "b"), worker_salt("ab", None), worker_salt("a", None), worker_salt("", "ab")}) == 4
    assert len(worker_salt("x" * 10_000, "\ud800")) == 64


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("cache_salt"), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text(max_size=6) | st.sampled_from(["cache_salt", "model", '"', "\\"])
MEMBERS = st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=6)


@given(MEMBERS, st.sampled_from([None, 2]), st.booleans())
def test_any_body_keeps_the_rest(members: list[tuple[str, Any]], indent: int | None, escapes: bool) -> None:  # noqa: FBT001 - hypothesis fills it
    """Members, their order and repetitions are the same but for the salt, which is ours alone."""
    parts = [
        json.dumps(name) + ": " + json.dumps(value, indent=indent, ensure_ascii=escapes) for name, value in members
    ]
    body = ("{" + " , ".join(parts) + "}").encode("utf-8", "surrogatepass")
    present = any(name == "cache_salt" for name, _ in members)
    salted = set_cache_salt(body, SALT, present=present)
    pairs: list[tuple[str, Any]] = json.loads(salted, object_pairs_hook=list)
    expected = [(name, SALT if name == "cache_salt" else as_pairs(value)) for name, value in members]
    assert pairs == (expected if present else [("cache_salt", SALT), *expected])


def as_pairs(value: Any) -> Any:
    """A value as ``object_pairs_hook=list`` reads it."""
    if isinstance(value, dict):
        return [(name, as_pairs(inner)) for name, inner in value.items()]
    return [as_pairs(inner) for inner in value] if isinstance(value, list) else value


def test_many_repetitions_take_linear_time() -> None:
    """A megabyte of salts is no attack."""
    body = b"{" + b",".join([b'"cache_salt":1 ' + b" " * 9] * 40_000) + b"}"
    assert set_cache_salt(body, SALT, present=True).count(b"5a17") == 40_000
    assert msgspec.json.decode(set_cache_salt(body, SALT, present=True)) == {"cache_salt": SALT}
