"""Ids as JSON: whatever the way they are written, they read the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.gateway.ids_json import FEW, ids_to_json
from foreword.tokens.tokenizer import TokenIds

EDGES = [0, 1, 9, 10, 99, 100, 999, 1000, 99_999, 100_000, 262_143]
IDS = st.sampled_from([*EDGES, 262_144, 9_999_999, 10_000_000, 2**32 - 1]) | st.integers(0, 200_000)


@given(st.lists(IDS, max_size=2 * FEW), st.integers(0, 600))
def test_reads_as_the_same_ids(ids: list[int], more: int) -> None:
    """Short and long lists, ids in the table and beyond."""
    ids = ids + [7] * more
    assert json.loads(ids_to_json(TokenIds.of(ids))) == ids


@pytest.mark.parametrize("count", [0, 1, FEW])
def test_few_ids_have_no_spaces(count: int) -> None:
    """Short answers stay pretty."""
    assert b" " not in ids_to_json(TokenIds.of(range(count)))


def test_every_id_of_the_table() -> None:
    """Each row of the table is its number."""
    ids = range(1 << 18)
    assert json.loads(ids_to_json(TokenIds.of(ids))) == list(ids)
