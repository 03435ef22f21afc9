"""Stop strings over text that comes in pieces: an automaton that knows how much may still become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopMatcher:
    """Aho and Corasick's automaton over the stop strings; constant time a character, however many there are.

    The first stop string to be complete wins; of those that end together, the longest. How the text was cut into pieces
    makes no difference.
    """

    __slots__ = ("_depth", "_fail", "_longest", "_next", "_state")

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._longest = [""]
        self._state = 0
        for stop in stops:
            self._add(stop)
        self._fail = [0] * len(self._next)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._longest.append("")
            state = self._next[state][character]
        self._longest[state] = stop

    def _link(self) -> None:
        """Point each state to that of its longest proper suffix, which also ends what ends there."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], character)
                self._longest[child] = self._longest[child] or self._longest[self._fail[child]]
                waiting.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)

    @property
    def held(self) -> int:
        """Characters at the end of what was fed that may be the beginning of a stop string."""
        return self._depth[self._state]

    def reset(self) -> None:
        """Forget what was fed."""
        self._state = 0

    def feed(self, text: str) -> tuple[int, str] | None:
        """Go on through a text; gives where in it the first stop string ends, and which, or None."""
        state = self._state
        for position, character in enumerate(text, 1):
            state = self._step(state, character)
            if self._longest[state]:
                self._state = 0
                return position, self._longest[state]
        self._state = state
        return None
