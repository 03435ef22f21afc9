"""The Tokenizer protocol, the ids it returns, and who it is."""

from __future__ import annotations

import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, Protocol, overload

from foreword.errors import TokenizerError
from foreword.tokens.boundaries import Boundaries

SpecialTokens = Literal["all"] | AbstractSet[str]


class TokenIds(Sequence[int]):
    """Token ids over an immutable buffer of native uint32: as cheap to keep and to pass on as the bytes are.

    ``list(ids)`` gives ints; ``ids.buffer`` is the bytes; ``numpy.frombuffer(ids.buffer, numpy.uint32)`` and
    ``memoryview(ids.buffer).cast("I")`` are views. Equal to any sequence of the same ints.
    """

    __slots__ = ("buffer",)

    def __init__(self, buffer: bytes = b"") -> None:
        self.buffer = buffer

    @classmethod
    def of(cls, ids: Iterable[int]) -> TokenIds:
        """The ids of any iterable of ints in 0..2**32-1."""
        return cls(array.array("I", ids).tobytes())

    def __len__(self) -> int:
        return len(self.buffer) >> 2

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> TokenIds: ...
    def __getitem__(self, index: int | slice) -> int | TokenIds:
        view = memoryview(self.buffer).cast("I")[index]
        return view if isinstance(view, int) else TokenIds(view.tobytes())

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self.buffer).cast("I").tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self.buffer == other.buffer
        if isinstance(other, Sequence):
            return len(self) == len(other) and list(self) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.buffer)

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self[:8]))
        return f"TokenIds([{shown}{', ...' if len(self) > 8 else ''}], {len(self)} ids)"


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """Who a tokenizer is. Two with one digest return the same ids for every input.

    Attributes:
        name: what its users call it; a label, never part of a key.
        library: "tokenizers", "tiktoken" or "mistral-common".
        version: of the library.
        digest: sha256, in hex, over the definition, its flags and the library's version.
    """

    name: str
    library: str
    version: str
    digest: str


class Tokenizer(Protocol):
    """An uncached tokenizer. Immutable: the backends work on a private copy of what they were given."""

    @property
    def identity(self) -> TokenizerIdentity:
        """Who it is."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:
        """The reference's ids for the text; raises TokenizerError."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids; raises TokenizerError for an id outside the vocabulary."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's exact string, or None."""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string for an id, or None."""


class CacheableTokenizer(Tokenizer, Protocol):
    """A tokenizer that says how its ids come about, so that a cache can put them together from parts.

    For every text, ``encode(text, add_special_tokens=flag) == assemble(encode_core([text])[0], flag)`` wherever
    ``boundaries`` is certified.
    """

    @property
    def key(self) -> Hashable:
        """What else its ids depend on: two views of one tokenizer that may differ have different keys."""

    @property
    def boundaries(self) -> Boundaries:
        """Where its texts may be cut."""

    @property
    def encoder_fallbacks(self) -> int:
        """Times a second encoder was given up: ids from before that may be wrong."""

    def check(self, text: str) -> None:
        """Raise TokenizerError for a text that must be refused as a whole."""

    def encode_core(self, texts: Sequence[str]) -> list[bytes]:
        """The uint32 ids of each text without template, truncation and padding."""

    def assemble(self, core: bytes, *, add_special_tokens: bool) -> bytes:
        """The final uint32 ids: template, truncation and padding applied to the core ids of a whole text."""

    def with_special_tokens(
        self, allowed: SpecialTokens | None = None, disallowed: SpecialTokens | None = None
    ) -> CacheableTokenizer:
        """The same tokenizer with other special tokens recognized or refused; raises TokenizerError if it cannot."""


def is_refusal(error: BaseException) -> bool:
    """Whether a library failed on its input: with an exception, or a panic of its Rust part, which is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def refusal(library: str, texts: Sequence[str], error: BaseException) -> TokenizerError:
    """The error for texts that a tokenizer library fails on."""
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        return TokenizerError("The text has a lone surrogate, which is no character.", hint="Send well-formed Unicode.")
    return TokenizerError(f"{library} fails on this text: {error}.", hint="Send less text, or text of another kind.")
