"""Token ids to text as they come: no character before it is whole, no text that may still become a stop string.

The pieces put together are exactly the tokenizer's ``decode`` of all ids, for every kind of decoder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foreword.tokens.stop_strings import StopMatcher

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_PROMPT_CONTEXT = 16
_WINDOW = 6
"""Ids that a window may hold before it is made smaller: cheaper than making it smaller every time."""

_LARGEST_WINDOW = 64
"""Ids after which a replacement character at the end is no unfinished character but one that the vocabulary has."""


def _certain(text: str) -> str:
    """All but a replacement character at the end, which may be waiting for its other bytes."""
    return text[:-1] if text.endswith(_REPLACEMENT) else text


class Decodes(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids."""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string for an id, or None."""


@dataclass(frozen=True, slots=True)
class DetokenizerStatistics:
    """What one detokenizer took in and gave out: ids pushed, characters released, characters held back now."""

    tokens: int
    characters: int
    held: int


class TextDecoder:
    """Ids to text by windows: a few ids of context, and those that are not text yet.

    What an id adds to the text depends, in some decoders, on the id before it or on being first; so an id is decoded
    behind an id that is text already, and what the two have in common is taken away. Ids of single bytes are kept until
    another kind follows: a decoder may only then say what they are. Time is constant an id, over all of them.

    Args:
        tokenizer: decodes the windows.
        skip_special_tokens: whether special tokens are left out of the text.
        context: ids in front of the first, which are text already.
    """

    __slots__ = ("_emitted", "_skip", "_special", "_tokenizer", "_window")

    def __init__(self, tokenizer: Decodes, *, skip_special_tokens: bool = True, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._special: dict[int, bool] = {}
        self._window = [token_id for token_id in context if not self._is_skipped(token_id)]
        text = self._decode(self._window)
        self._emitted = _certain(text)
        self._shrink(text)

    def push(self, ids: Sequence[int]) -> str:
        """The text that has become certain with these ids."""
        self._window += [token_id for token_id in ids if not self._is_skipped(token_id)]
        if not self._window or self._is_byte(self._window[-1]):
            return ""
        text = self._decode(self._window)
        certain = _certain(text)
        if not certain.startswith(self._emitted) and len(self._window) <= _LARGEST_WINDOW:
            return ""
        added = certain[len(self._emitted) :]
        self._emitted = certain
        self._shrink(text)
        return added

    def finish(self) -> str:
        """The rest, whatever it is."""
        text = self._decode(self._window)
        added = text[len(self._emitted) :] if text.startswith(self._emitted) else ""
        self._emitted = text
        return added

    def _shrink(self, text: str) -> None:
        """Keep the fewest ids at the end of the window behind which whatever follows reads the same."""
        if len(self._window) < _WINDOW or self._is_byte(self._window[-1]):
            return
        if text.endswith(_REPLACEMENT) and len(self._window) <= _LARGEST_WINDOW:
            self._shrink_to_unfinished(text)
            return
        waiting = len(text) - len(_certain(text))
        for start in range(len(self._window) - 1, 0, -1):
            if not self._is_byte(self._window[start]) and (tail := self._decode(self._window[start:])):
                self._window, self._emitted = self._window[start:], tail[: len(tail) - waiting]
                return

    def _shrink_to_unfinished(self, text: str) -> None:
        """Cut between two characters: where both sides decode alone to what they are together."""
        for start in range(len(self._window) - 1, max(len(self._window) - _WINDOW, 0), -1):
            tail = self._decode(self._window[start:])
            if self._decode(self._window[:start]) + tail == text:
                self._window, self._emitted = self._window[start:], _certain(tail)
                return

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)

    def _is_byte(self, token_id: int) -> bool:
        token = self._tokenizer.id_to_token(token_id)
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    def _is_skipped(self, token_id: int) -> bool:
        """Whether it is a special token that is left out: it is no text alone, and would be otherwise."""
        if not self._skip:
            return False
        known = self._special.get(token_id)
        if known is None:
            decode = self._tokenizer.decode
            known = decode([token_id]) == "" != decode([token_id], skip_special_tokens=False)
            self._special[token_id] = known
        return known


class Detokenizer:
    """The text of one answer: push ids as they come, then finish.

    ``push`` and ``finish`` change it; it belongs to one request.

    Args:
        tokenizer: the model's.
        stop: strings that end the text; empty ones are ignored.
        include_stop_str_in_output: whether the stop string itself is released.
        skip_special_tokens: whether special tokens are left out of the text.
        prompt_ids: what the answer follows, so that its first id reads as the model meant it; its end is enough.
    """

    __slots__ = ("_characters", "_decoder", "_held", "_include_stop", "_matcher", "_tokens", "stopped")

    def __init__(
        self,
        tokenizer: Decodes,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._decoder = TextDecoder(
            tokenizer, skip_special_tokens=skip_special_tokens, context=prompt_ids[-_PROMPT_CONTEXT:]
        )
        stops = [text for text in stop if text]
        self._matcher = StopMatcher(stops) if stops else None
        self._include_stop = include_stop_str_in_output
        self._held = ""
        self._tokens = self._characters = 0
        self.stopped: str | None = None
        """The stop string that ended the text; after it nothing is released."""

    def push(self, ids: Sequence[int]) -> str:
        """Take in ids; gives the text that is certain now and can be part of no stop string."""
        if self.stopped is not None:
            return ""
        self._tokens += len(ids)
        return self._release(self._decoder.push(ids))

    def finish(self) -> str:
        """No id follows: gives what was held back."""
        if self.stopped is not None:
            return ""
        released = self._release(self._decoder.finish())
        if self._matcher is None or self.stopped is not None:
            return released
        rest, self._held = self._held, ""
        self._matcher.reset()
        self._characters += len(rest)
        return released + rest

    def _release(self, text: str) -> str:
        if self._matcher is None:
            self._characters += len(text)
            return text
        found = self._matcher.feed(text)
        pending = self._held + text
        if found is None:
            end = len(pending) - self._matcher.held
            self._held = pending[end:]
        else:
            end = self._stop_at(len(self._held) + found[0], found[1])
        self._characters += end
        return pending[:end]

    def _stop_at(self, end: int, stop: str) -> int:
        """Remember the stop string that ends there; gives where the text ends."""
        self.stopped, self._held = stop, ""
        return end if self._include_stop else end - len(stop)

    def statistics(self) -> DetokenizerStatistics:
        """Counts so far."""
        return DetokenizerStatistics(self._tokens, self._characters, len(self._held))

    def check_integrity(self) -> None:
        """Raise AssertionError unless what is held back is what the automaton says may become a stop string."""
        expected = self._matcher.held if self._matcher is not None else 0
        if len(self._held) != expected:
            raise AssertionError(f"{len(self._held)} characters are held back, not {expected}")
