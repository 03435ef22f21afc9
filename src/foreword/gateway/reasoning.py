"""Reasoning in generated text: what stands between ``<think>`` and ``</think>``, split off while the text streams."""

from __future__ import annotations

START, END = "<think>", "</think>"


class ReasoningSplitter:
    """Splits a stream of text into reasoning and content.

    Reasoning comes first or not at all: it is open from the start when the prompt ends in ``<think>``, or opened by
    ``<think>`` at the start of the answer. White space around the tags belongs to neither side.
    """

    def __init__(self, prompt: str) -> None:
        self._state = "reasoning" if prompt.rstrip().endswith(START) else "start"
        self._held = ""
        self._trim = True

    @property
    def reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._state == "reasoning"

    def push(self, text: str) -> tuple[str, str]:
        """Take more text; returns (reasoning, content) that is certain."""
        if self._state == "content":
            return "", self._trimmed(text)
        self._held += text
        if self._state == "start" and not self._open():
            return "", self._take_all() if self._state == "content" else ""
        return self._split()

    def finish(self) -> tuple[str, str]:
        """The end of the text: what was held back."""
        rest, self._held = self._held, ""
        return (rest, "") if self._state == "reasoning" else ("", rest)

    def _open(self) -> bool:
        """Decide whether reasoning begins; stays undecided while the text could still become ``<think>``."""
        begun = self._held.lstrip()
        if begun.startswith(START):
            self._state, self._held = "reasoning", begun[len(START) :]
            return True
        if not START.startswith(begun):
            self._state = "content"
            self._trim = False
        return False

    def _split(self) -> tuple[str, str]:
        reasoning, end, content = self._held.partition(END)
        if end:
            self._state, self._held = "content", ""
            return self._trimmed(reasoning).rstrip(), self._begin_content(content)
        ready = self._held[: len(self._held) - _overlap(self._held, END)].rstrip()
        self._held = self._held[len(ready) :]
        return self._trimmed(ready), ""

    def _begin_content(self, text: str) -> str:
        self._trim = True
        return self._trimmed(text)

    def _trimmed(self, text: str) -> str:
        """Drop white space until the first character that is none."""
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        return text

    def _take_all(self) -> str:
        text, self._held = self._held, ""
        return text


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that begins ``tag``."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0)
