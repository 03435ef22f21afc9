"""tiktoken encodings: by name where their ranks are on this machine, or from a rank file."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import tiktoken
from tiktoken.load import load_tiktoken_bpe

from foreword.errors import SpecialTokenNotAllowed, TokenizerError, TokenizerNotFound
from foreword.tokens.boundaries import AddedToken, Boundaries, is_overlap_free
from foreword.tokens.tokenizer import SpecialTokens, TokenIds, TokenizerIdentity, is_refusal, refusal
from foreword.tokens.tokenizer_json import PATTERNS

_BLOBS = "https://openaipublic.blob.core.windows.net/"
_RANKS = {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    "r50k_base": ("encodings/r50k_base.tiktoken",),
    "p50k_base": ("encodings/p50k_base.tiktoken",),
    "p50k_edit": ("encodings/p50k_base.tiktoken",),
    "cl100k_base": ("encodings/cl100k_base.tiktoken",),
    "o200k_base": ("encodings/o200k_base.tiktoken",),
    "o200k_harmony": ("encodings/o200k_base.tiktoken",),
}
_VIEWS = 64


class TiktokenTokenizer:
    """A tiktoken encoding that recognizes some of its special tokens and refuses others.

    Unlike ``tiktoken.Encoding.encode`` it recognizes all special tokens unless told otherwise, as every other tokenizer
    here does. Equal to ``encoding.encode(text, allowed_special=allowed, disallowed_special=disallowed)``.

    Attributes:
        key: the allowed and the disallowed special tokens.
        boundaries: its certified cuts.
        encoder_fallbacks: always 0.
    """

    encoder = "tiktoken"
    encoder_fallbacks = 0

    def __init__(
        self,
        encoding: tiktoken.Encoding,
        *,
        name: str = "",
        allowed: SpecialTokens | None = None,
        disallowed: SpecialTokens | None = None,
        identity: TokenizerIdentity | None = None,
    ) -> None:
        """Wrap an encoding.

        Args:
            encoding: never changed; tiktoken's are immutable.
            name: what its users call it; the encoding's own name if empty.
            allowed: special tokens to recognize; "all", a set, or None for all that are not disallowed.
            disallowed: strings to refuse; "all" for all special tokens that are not allowed, a set, or None for none.
            identity: of a tokenizer with the same encoding, to spare computing it again.
        """
        self._encoding = encoding
        special = encoding.special_tokens_set
        if allowed is None:
            allowed = special - (special if disallowed == "all" else set(disallowed or ()))
        self._allowed = frozenset(special if allowed == "all" else allowed)
        self._disallowed = frozenset(special - self._allowed if disallowed == "all" else disallowed or ())
        self._refused = re.compile("|".join(map(re.escape, self._disallowed))) if self._disallowed else None
        self.key: Hashable = (self._allowed, self._disallowed)
        self.identity = identity or _identify(encoding, name or encoding.name)
        self.boundaries = self._certify()
        self._views: dict[tuple[SpecialTokens | None, SpecialTokens | None], TiktokenTokenizer] = {}

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._encoding.max_token_value + 1

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:  # noqa: ARG002 - there is no template
        """The reference's ids for the text; raises TokenizerError."""
        self.check(text)
        return TokenIds(self.encode_core([text])[0])

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids; raises TokenizerError for an id outside the vocabulary."""
        ids = list(ids)
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise _outside(ids, self.vocab_size)
        if skip_special_tokens:
            ids = [token_id for token_id in ids if not self._encoding.is_special_token(token_id)]
        try:
            return self._encoding.decode(ids)
        except KeyError as error:
            raise _outside(ids, self.vocab_size) from error

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's exact string, or None."""
        try:
            return self._encoding.encode_single_token(token)
        except (KeyError, UnicodeEncodeError):
            return None

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string for an id, or None; bytes that are no character are replaced."""
        try:
            return self._encoding.decode_single_token_bytes(token_id).decode("utf-8", "replace")
        except (KeyError, OverflowError):
            return None

    def check(self, text: str) -> None:
        """Raise SpecialTokenNotAllowed for a text with a disallowed special token."""
        if self._refused is not None and (found := self._refused.search(text)) is not None:
            raise SpecialTokenNotAllowed(
                f"The text holds the disallowed special token {found.group()!r}.",
                hint="Take it out, or allow it.",
                token=found.group(),
                position=found.start(),
            )

    def encode_core(self, texts: Sequence[str]) -> list[bytes]:
        """The uint32 ids of each text; the disallowed set is not looked at."""
        try:
            return [self._encode(text) for text in texts]
        except BaseException as error:
            if is_refusal(error):
                raise refusal("tiktoken", texts, error) from error
            raise

    def _encode(self, text: str) -> bytes:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # as tiktoken's own encode does
        return self._encoding.encode_to_numpy(text, allowed_special=self._allowed, disallowed_special=()).tobytes()

    def assemble(self, core: bytes, *, add_special_tokens: bool) -> bytes:  # noqa: ARG002 - there is no template
        """The core ids: nothing surrounds them."""
        return core

    def with_special_tokens(
        self, allowed: SpecialTokens | None = None, disallowed: SpecialTokens | None = None
    ) -> TiktokenTokenizer:
        """The same encoding with other special tokens recognized or refused."""
        sets = _frozen(allowed), _frozen(disallowed)
        view = self._views.get(sets)
        if view is None:
            view = TiktokenTokenizer(self._encoding, allowed=sets[0], disallowed=sets[1], identity=self.identity)
            if len(self._views) < _VIEWS:
                self._views[sets] = view
        return view

    def _certify(self) -> Boundaries:
        special = self._encoding.special_tokens_set
        if not is_overlap_free(special):
            return Boundaries(reason="its special tokens overlap, and tiktoken finds them in no certain order")
        tokens = [AddedToken(self._encoding.encode_single_token(token), token, special=True) for token in special]
        allowed = [token for token in tokens if token.content in self._allowed]
        return Boundaries(tokens, scanned=allowed, anchors=allowed, pairs=PATTERNS.get(self._encoding._pat_str))  # noqa: SLF001 - tiktoken has no public name for it


def load_rank_file(path: Path, *, pattern: str, special_tokens: Mapping[str, int]) -> TiktokenTokenizer:
    """An encoding from a file of ranks (base64, a space, the rank; one a line).

    Raises:
        TokenizerError: the file is not one, or the pattern or the special tokens do not fit it.
    """
    try:
        ranks = load_tiktoken_bpe(str(path))
        encoding = tiktoken.Encoding(
            path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=dict(special_tokens)
        )
    except (ValueError, KeyError) as error:
        raise TokenizerError(f"{path} and its pattern make no tiktoken encoding: {error}.") from error
    return TiktokenTokenizer(encoding, name=path.stem)


def load_encoding(name: str) -> TiktokenTokenizer:
    """One of tiktoken's own encodings. Never downloads.

    Raises:
        TokenizerNotFound: its ranks are not on this machine.
    """
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    cache = Path(folder or Path(tempfile.gettempdir()) / "data-gym-cache")
    missing = [
        blob
        for blob in _RANKS[name]
        if not (cache / hashlib.sha1((_BLOBS + blob).encode()).hexdigest()).is_file()  # noqa: S324 - tiktoken names its files so
    ]
    if missing:
        raise TokenizerNotFound(
            f"The ranks of the tiktoken encoding {name} are not on this machine.",
            hint=f"Set TIKTOKEN_CACHE_DIR to a folder that has them; {cache} has not.",
            name=name,
            missing=missing,
        )
    return TiktokenTokenizer(tiktoken.get_encoding(name))


def is_encoding_name(name: str) -> bool:
    """Whether tiktoken has an encoding of that name."""
    return name in _RANKS


def _frozen(tokens: SpecialTokens | None) -> SpecialTokens | None:
    return tokens if tokens is None or tokens == "all" else frozenset(tokens)


def _outside(ids: Sequence[int], vocab_size: int) -> TokenizerError:
    return TokenizerError(
        "Some ids are outside the vocabulary.", hint=f"Ids are 0 to {vocab_size - 1}, with gaps.", ids=ids[:16]
    )


def _identify(encoding: tiktoken.Encoding, name: str) -> TokenizerIdentity:
    digest = hashlib.sha256(f"{encoding._pat_str}|tiktoken={tiktoken.__version__}".encode())  # noqa: SLF001 - as above
    for token, token_id in sorted(encoding._special_tokens.items()):  # noqa: SLF001 - as above
        digest.update(f"|{token}={token_id}".encode())
    for token_id in range(encoding.max_token_value + 1):
        digest.update(_bytes_of(encoding, token_id))
    return TokenizerIdentity(name, "tiktoken", tiktoken.__version__, digest.hexdigest())


def _bytes_of(encoding: tiktoken.Encoding, token_id: int) -> bytes:
    try:
        token = encoding.decode_single_token_bytes(token_id)
    except KeyError:
        return b"-"
    return b"%d:%b" % (len(token), token)
