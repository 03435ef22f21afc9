"""Two requests ready to be composed, laid out and encoded with any choice of changes from either side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foreword.diagnose.changes import Change, Side, changes_in, compare, compose
from foreword.diagnose.layout import Layout, neutral_layout
from foreword.diagnose.likeness import text_of
from foreword.diagnose.seam import shared_tokens
from foreword.diagnose.splice import PieceEncoder
from foreword.tokens.tokenizer import TokenIds, Tokenizer

LAYOUT = Change("value", ("chat_template",), "A's template", "B's template")
TOKENIZER = Change("value", ("tokenizer",), "A's tokenizer", "B's tokenizer")
"""Two changes that are in no body: the template and the tokenizer themselves."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How one side turns a body into ids: its layout and its tokenizer."""

    tokenizer: Tokenizer
    layout: Layout
    template: str
    encoder: PieceEncoder

    @property
    def is_neutral(self) -> bool:
        """Whether the layout is the neutral one, so that where templates differ nothing can be said."""
        return self.layout is neutral_layout


Overrides = Mapping[Change, Side]
_KEEP: Overrides = {}


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Requests A and B, their changes, and the ids of every mixture of the two."""

    a: Any
    b: Any
    a_reading: Reading
    b_reading: Reading
    worth: int = 16
    tree: Any = field(init=False)
    changes: tuple[Change, ...] = field(init=False)
    _texts: dict[tuple[Side, ...], str] = field(init=False, default_factory=dict)
    _ids: dict[tuple[str, str], TokenIds] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        tree = compare(self.a, self.b)
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "changes", tuple(changes_in(tree)))

    def environment(self) -> tuple[Change, ...]:
        """The template and tokenizer changes there are between the two sides."""
        found = []
        if self.a_reading.template != self.b_reading.template:
            found.append(LAYOUT)
        if self.a_reading.tokenizer.identity.digest != self.b_reading.tokenizer.identity.digest:
            found.append(TOKENIZER)
        return tuple(found)

    def document(self, base: Side, overrides: Overrides = _KEEP) -> Any:
        """One side's request, with some changes taken from the other side or cut and put at its end."""
        document = compose(self.tree, lambda change: overrides.get(change, base))
        cut = (change for change, side in overrides.items() if side == "cut")
        tail = [text_of(change.a if base == "a" else change.b) for change in cut]
        return append_to_end(document, "\n".join(text for text in tail if text))

    def text(self, base: Side, overrides: Overrides = _KEEP) -> str:
        """That request as the text a model reads."""
        key = self._mixture(base, overrides)
        if key not in self._texts:
            reading = self.a_reading if overrides.get(LAYOUT, base) == "a" else self.b_reading
            self._texts[key] = reading.layout(self.document(base, overrides))
        return self._texts[key]

    def _mixture(self, base: Side, overrides: Overrides) -> tuple[Side, ...]:
        """The side of every change, which is what a mixture is, whichever side it was asked for from; cuts keep the base."""
        sides = tuple(overrides.get(change, base) for change in (LAYOUT, *self.changes))
        return (*sides, base) if "cut" in sides else sides

    def ids(self, base: Side, overrides: Overrides = _KEEP) -> TokenIds:
        """That text's token ids."""
        which = overrides.get(TOKENIZER, base)
        text = self.text(base, overrides)
        if (which, text) not in self._ids:
            self._ids[which, text] = (self.a_reading if which == "a" else self.b_reading).encoder.encode(text)
        return self._ids[which, text]

    def position(self, change: Change) -> int:
        """Where this change alone, put into A, parts it from A."""
        return shared_tokens(self.ids("a"), self.ids("a", {change: "b"}))

    def fixed(self, fixes: Mapping[Change, str]) -> tuple[TokenIds, TokenIds]:
        """The ids of both sides after these fixes.

        "move" cuts the change out of both and puts it at the end; "align" gives B what A has.
        """
        a, b = _sides(fixes)
        return self.ids("a", a), self.ids("b", b)

    def fixed_documents(self, fixes: Mapping[Change, str]) -> tuple[Any, Any]:
        """Both requests after these fixes."""
        a, b = _sides(fixes)
        return self.document("a", a), self.document("b", b)


def read_pair(
    a: Any,
    b: Any,
    tokenizer: Tokenizer,
    *,
    layout: Layout,
    other_tokenizer: Tokenizer | None = None,
    other_layout: Layout | None = None,
    encoder: PieceEncoder | None = None,
) -> Pair:
    """Two requests as they are read: B by A's tokenizer and layout where it has none of its own."""
    known = encoder or PieceEncoder(tokenizer)
    first = Reading(tokenizer, layout, "A", known)
    second = Reading(
        other_tokenizer or tokenizer,
        other_layout or layout,
        "B" if other_layout else "A",
        PieceEncoder(other_tokenizer) if other_tokenizer else known,
    )
    return Pair(a, b, first, second)


def _sides(fixes: Mapping[Change, str]) -> tuple[Overrides, Overrides]:
    a: dict[Change, Side] = {change: "cut" for change, fix in fixes.items() if fix == "move"}
    b: dict[Change, Side] = {change: "cut" if fix == "move" else "a" for change, fix in fixes.items()}
    return a, b


def append_to_end(document: Any, text: str) -> Any:
    """The request with a text put where it costs nothing: behind the last user message's own text."""
    if not text:
        return document
    if isinstance(document, str):
        return f"{document}\n{text}"
    for key in ("messages", "input", "prompt"):
        if key in document:
            return {**document, key: _append_to_turns(document[key], text, "input_text" if key == "input" else "text")}
    return document


def _append_to_turns(turns: Any, text: str, kind: str) -> Any:
    if isinstance(turns, str):
        return f"{turns}\n{text}"
    turns = list(turns)
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        if isinstance(turn, dict) and turn.get("role") == "user":
            turns[index] = {**turn, "content": _append_to_content(turn.get("content"), text, kind)}
            return turns
    return [*turns, {"role": "user", "content": text}]


def _append_to_content(content: Any, text: str, kind: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": kind, "text": text}]
    return f"{content}\n{text}" if content else text
