"""Histories of requests, replayed against a cache and compared id for id with the reference."""

from __future__ import annotations

import array
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from foreword.errors import TokenizerError
from foreword.testing.reference import Reference
from foreword.testing.texts import Family
from foreword.tokens.tokenizer import TokenIds

Step = tuple[str, bool] | None
"""A text and add_special_tokens, or None to clear the cache."""


class Cache(Protocol):
    """What is put to the test."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Sequence[int]:
        """The ids of the text."""

    def clear(self) -> None:
        """Forget every entry."""

    def check_integrity(self) -> None:
        """Raise where the cache contradicts itself."""


_ANSWERS = {False: "gives ids", True: "fails"}


class Difference(AssertionError):
    """The cache and the reference disagree on a text."""

    def __init__(self, step: tuple[str, bool], actual: list[int] | None, expected: list[int] | None) -> None:
        self.step, self.actual, self.expected = step, actual, expected
        super().__init__(f"{self._what()}; add_special_tokens={step[1]}, text {step[0][:300]!r}")

    def _what(self) -> str:
        if self.actual is None or self.expected is None:
            return f"{_ANSWERS[self.actual is None]} where the reference {_ANSWERS[self.expected is None]}"
        pairs = enumerate(zip(self.actual, self.expected, strict=False))
        seam = next((n for n, (a, b) in pairs if a != b), min(len(self.actual), len(self.expected)))
        near = slice(max(0, seam - 3), seam + 5)
        return (
            f"ids differ from index {seam} on: actual {self.actual[near]} of {len(self.actual)}, "
            f"expected {self.expected[near]} of {len(self.expected)}"
        )


class Oracle:
    """The reference's ids, computed once a text and flag."""

    def __init__(self, reference: Reference) -> None:
        self._encode = reference.encode
        self._known: dict[tuple[str, bool], bytes | None] = {}

    def __call__(self, step: tuple[str, bool]) -> bytes | None:
        """The ids as native uint32, or None where the reference itself fails (``tokenizers`` panics on some inputs)."""
        if step not in self._known:
            self._known[step] = self._ask(step)
        return self._known[step]

    def _ask(self, step: tuple[str, bool]) -> bytes | None:
        try:
            return array.array("I", self._encode(step[0], add_special_tokens=step[1])).tobytes()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - a Rust panic is no Exception
            return None


def replay(cache: Cache, history: Iterable[Step], oracle: Oracle) -> int:
    """Run a history; the number of answers compared.

    Raises:
        Difference: at the first answer that is not the reference's.
    """
    compared = 0
    for step in history:
        if step is None:
            cache.clear()
            continue
        expected, actual = oracle(step), _answer(cache, step)
        if actual != expected:
            raise Difference(step, _ids(actual), _ids(expected))
        compared += 1
    return compared


def _answer(cache: Cache, step: tuple[str, bool]) -> bytes | None:
    """The cache's ids as native uint32, or None where it refuses the text as it should: with a TokenizerError."""
    try:
        ids = cache.encode(step[0], add_special_tokens=step[1])
    except TokenizerError:
        return None
    return ids.buffer if isinstance(ids, TokenIds) else array.array("I", ids).tobytes()


def _ids(answer: bytes | None) -> list[int] | None:
    return None if answer is None else array.array("I", answer).tolist()


# --- the orders in which a family of texts is asked for ---------------------------------------------------------------


def cold(families: Sequence[Family], rng: random.Random) -> Iterator[Step]:
    """Every text with nothing cached."""
    for step in _shuffled_flags(_all(families), rng):
        yield None
        yield step


def warm(families: Sequence[Family], rng: random.Random) -> Iterator[Step]:
    """Every text, then every text again in another order."""
    steps = list(_shuffled_flags(_all(families), rng))
    yield from steps
    rng.shuffle(steps)
    yield from steps


def growing(families: Sequence[Family], rng: random.Random) -> Iterator[Step]:
    """Each conversation as it grows; then backwards, as a client that retries from an earlier turn."""
    for family in families:
        yield from _shuffled_flags(family, rng)
        yield from _shuffled_flags(reversed(family.grown), rng)


def edited(families: Sequence[Family], rng: random.Random) -> Iterator[Step]:
    """The longest text, then each edit of it, back and forth; the shorter ones last."""
    for family in families:
        for text in family.edited:
            yield from _shuffled_flags((family.grown[-1], text), rng)
        yield from _shuffled_flags(family.grown[:-1], rng)


def interleaved(families: Sequence[Family], rng: random.Random) -> Iterator[Step]:
    """All conversations at once."""
    steps = list(_shuffled_flags(_all(families), rng))
    rng.shuffle(steps)
    yield from steps


SCENARIOS: Final[Mapping[str, Callable[[Sequence[Family], random.Random], Iterator[Step]]]] = MappingProxyType(
    {"cold": cold, "warm": warm, "growing": growing, "edited": edited, "interleaved": interleaved}
)


def _all(families: Sequence[Family]) -> Iterator[str]:
    return (text for family in families for text in family)


def _shuffled_flags(texts: Iterable[str], rng: random.Random) -> Iterator[Step]:
    """Each text with the flag on and off, either first."""
    for text in texts:
        first = rng.random() < 0.5
        yield text, first
        yield text, not first
