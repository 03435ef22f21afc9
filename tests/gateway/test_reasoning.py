"""Splitting thoughts from the answer, whatever pieces the text comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.gateway.reasoning import ReasoningSplitter


def read(prompt: str, pieces: list[str]) -> tuple[str, str]:
    """Reasoning and content of a text in pieces."""
    splitter = ReasoningSplitter(prompt)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    "prompt,text,reasoning,content",
    [
        ("", "Paris.", "", "Paris."),
        ("", "<think>Hm.</think>Paris.", "Hm.", "Paris."),
        ("", "\n<think>\nHm.\n</think>\n\nParis.\n", "Hm.", "Paris.\n"),
        ("...<think>\n", "Hm.</think>Paris.", "Hm.", "Paris."),
        ("...<think>\n", "a < b\n\nso", "a < b\n\nso", ""),
        ("", "<think>never closed </thin", "never closed </thin", ""),
        ("", "Look: <think>", "", "Look: <think>"),
        ("", "<thin", "", "<thin"),
        ("", "  indented", "", "  indented"),
        ("", "<think></think>x", "", "x"),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_split(prompt: str, text: str, reasoning: str, content: str, size: int) -> None:
    """The same in pieces of any size."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert read(prompt, pieces) == (reasoning, content)


@given(
    st.sampled_from(["", "<think>"]),
    st.lists(st.sampled_from(["<think>", "</think>", "</", "thi", "nk>", " ", "\n", "a"])),
)
def test_pieces_do_not_matter(prompt: str, pieces: list[str]) -> None:
    """Any cut of a text gives the same as the text in one piece."""
    text = "".join(pieces)
    assert read(prompt, pieces) == read(prompt, [text]) == read(prompt, list(text))
