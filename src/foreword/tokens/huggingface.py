"""Hugging Face tokenizers: `tokenizers` is the reference; `fastokens` encodes where it is certain to agree."""

from __future__ import annotations

import hashlib
import itertools
import threading
from array import array
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from foreword.errors import TokenizerError
from foreword.tokens.boundaries import Boundaries
from foreword.tokens.tokenizer import SpecialTokens, TokenIds, TokenizerIdentity, is_refusal, refusal
from foreword.tokens.tokenizer_json import Definition, Frame, certify

SAMPLE_EVERY = 256
_SAMPLE_CHARACTERS = 1 << 15
_FEW = 16
"""Ids up to which each is looked up on its own: the size of a large vocabulary takes 30 to 160 ms to find, once."""
_PROBES = (
    "",
    " ",
    "Hello, world! It's 2024: 3.14159 > 2,718 (don't you think?)\n\n\tTabs\r\n  and   spaces   \n",
    "naïve Ελληνικά русский 日本語の文章。中文\uff0c句子\uff01 한국어 हिन्दी 👩‍👩‍👧 e\u0301 \u200d\ufeff\u0000\x7f",
    "def f(x):\n    return {'a': [1, 2, 3], \"b\": x ** 2}  # comment\n\n\n" * 3,
    "AAAAaaaa'S 'LL we'Ve 1234567890 ١٢٣ Ⅷ ½ ____ ---- ====  //// \\\\ <|> </s> <s> [INST] <|im_end|>",
)


class HuggingFaceTokenizer:
    """A tokenizer of the `tokenizers` library, on a private copy of its definition.

    Attributes:
        key: always None: nothing but the definition matters.
        boundaries: its certified cuts.
        encoder_fallbacks: 1 after the second encoder was given up, else 0.
    """

    key: Hashable = None

    def __init__(
        self, definition: str, *, name: str = "", encode_special_tokens: bool = False, second_encoder: bool = True
    ) -> None:
        """Load a definition.

        Args:
            definition: the text of a tokenizer.json.
            name: what its users call it.
            encode_special_tokens: whether special tokens in a text are encoded as text.
            second_encoder: whether to load the fast encoder, which takes longer than encoding a few hundred KB.

        Raises:
            TokenizerError: the definition is not one that `tokenizers` can load.
        """
        self._reference = _load(definition, encode_special_tokens=encode_special_tokens)
        definition = self._reference.to_str()
        parsed = msgspec.json.decode(definition, type=Definition)
        self.boundaries: Boundaries
        self._frame: Frame
        self.boundaries, self._frame = certify(parsed, encode_special_tokens=encode_special_tokens)
        self._plain = self._reference
        if parsed.truncation is not None or parsed.padding is not None:
            self._plain = _load(definition, encode_special_tokens=encode_special_tokens)
            self._plain.no_truncation()
            self._plain.no_padding()
        self.identity = TokenizerIdentity(
            name, "tokenizers", tokenizers.__version__, _digest(definition, encode_special_tokens=encode_special_tokens)
        )
        self._tokens = [token.content for token in parsed.added_tokens]
        self.encoder_fallbacks = 0
        self._calls = itertools.count(1)
        self._lock = threading.Lock()
        self._check_frame()
        self._fast = self._load_fast(definition) if second_encoder and not encode_special_tokens else None

    @classmethod
    def copy_of(cls, tokenizer: tokenizers.Tokenizer, *, name: str = "") -> HuggingFaceTokenizer:
        """A tokenizer with the present definition and flags of another, which may change later without effect here."""
        return cls(tokenizer.to_str(), name=name, encode_special_tokens=tokenizer.encode_special_tokens)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self._reference.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def encoder(self) -> str:
        """The library that encodes what no cache knows."""
        return "tokenizers" if self._fast is None else "fastokens"

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:
        """The reference's ids for the text; raises TokenizerError."""
        return TokenIds(_encode(self._reference, [text], add_special_tokens=add_special_tokens)[0])

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids; raises TokenizerError for an id outside the vocabulary."""
        ids = list(ids)
        if not (len(ids) <= _FEW and all(map(self._has, ids))):
            self._check_range(ids)
        return self._reference.decode(ids, skip_special_tokens=skip_special_tokens)

    def _has(self, token_id: int) -> bool:
        """Whether the vocabulary has this id; asks for the one, where ``vocab_size`` reads all."""
        return 0 <= token_id < 1 << 32 and self._reference.id_to_token(token_id) is not None

    def _check_range(self, ids: Sequence[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise TokenizerError(
                f"The id {next(i for i in ids if not 0 <= i < self.vocab_size)} is outside the vocabulary.",
                hint=f"Ids are 0 to {self.vocab_size - 1}.",
            )

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's exact string, or None."""
        return self._reference.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string for an id, or None."""
        return self._reference.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def check(self, text: str) -> None:
        """No text is refused as a whole."""

    def with_special_tokens(
        self, allowed: SpecialTokens | None = None, disallowed: SpecialTokens | None = None
    ) -> HuggingFaceTokenizer:
        """Raise TokenizerError: these sets are tiktoken's."""
        raise TokenizerError(
            "Only tiktoken encodings have allowed and disallowed special tokens.",
            hint="Leave both out; a Hugging Face tokenizer recognizes all its added tokens.",
            allowed=allowed,
            disallowed=disallowed,
        )

    def encode_core(self, texts: Sequence[str]) -> list[bytes]:
        """The uint32 ids of each text without template, truncation and padding."""
        fast = self._fast
        if fast is None:
            return _encode(self._plain, texts)
        try:
            encoded = [fast.encode_batch_flat([text])[0] for text in texts]
        except BaseException as error:
            if not is_refusal(error):
                raise
            encoded = []
        if encoded and (next(self._calls) % SAMPLE_EVERY or len(texts[0]) > _SAMPLE_CHARACTERS):
            return encoded
        return self._compared(texts, encoded)

    def assemble(self, core: bytes, *, add_special_tokens: bool) -> bytes:
        """The final uint32 ids: template, truncation and padding applied to the core ids of a whole text."""
        return self._frame.apply(core, add_special_tokens=add_special_tokens)

    def _compared(self, texts: Sequence[str], encoded: Sequence[bytes]) -> list[bytes]:
        """The reference's ids; the second encoder is given up for good when its own differ."""
        reference = _encode(self._plain, texts)
        with self._lock:
            if reference != encoded and self._fast is not None:
                self._fast = None
                self.encoder_fallbacks += 1
                _log().warning("tokenizer.encoder_fallback", tokenizer=self.identity.name)
        return reference

    def _check_frame(self) -> None:
        """Switch the prefix cache off unless putting ids together gives the reference's on a few texts."""
        if self.boundaries.certified and not self._frame_agrees():
            self.boundaries = Boundaries(reason="its template, truncation or padding is not understood")

    def _frame_agrees(self) -> bool:
        texts = [*_PROBES, _PROBES[2] * 40]
        try:
            cores = _encode(self._plain, texts)
            return all(
                self.assemble(core, add_special_tokens=flag) == self.encode(text, add_special_tokens=flag).buffer
                for text, core in zip(texts, cores, strict=True)
                for flag in (False, True)
            )
        except TokenizerError:
            return False

    def _load_fast(self, definition: str) -> Any:
        """The second encoder, if it loads this definition and agrees with the reference on the probes; else None."""
        if not (self.boundaries.certified and self.boundaries.one_scan and self._encodes_every_byte()):
            return None
        import fastokens  # noqa: PLC0415 - commands that encode little do without it

        probes = [*_PROBES, *self._vocabulary_probes()]
        try:
            fast = fastokens.Tokenizer.from_json_str(definition)
            agree = [fast.encode_batch_flat([text])[0] for text in probes] == _encode(self._plain, probes)
            fast.encode_batch_flat([_PROBES[2] * 1000])  # its first calls are slow
        except BaseException as error:
            if not is_refusal(error):
                raise
            _log().debug("tokenizer.encoder_refused", tokenizer=self.identity.name, error=str(error))
            return None
        return fast if agree else None

    def _encodes_every_byte(self) -> bool:
        """Whether every byte has a letter of its own in the vocabulary.

        Where a character can be missing the encoders differ, and with byte fallback too: behind a character that falls
        back, the second one takes the text ``<0x0A>`` for the byte.
        """
        return all(self._reference.token_to_id(letter) is not None for letter in ByteLevel.alphabet())

    def _vocabulary_probes(self) -> list[str]:
        """Strings that an encoder may take for more than text: added tokens between words, vocabulary entries as text."""
        tokens = [f"a{token}b {token}\n{token}" for token in self._tokens[:64]]
        size = self._reference.get_vocab_size(with_added_tokens=False)
        entries = [self._reference.id_to_token(token_id) or "" for token_id in range(0, size, 1 + size // 1000)]
        return [*tokens, *entries, *(f"x{a} {b}" for a, b in itertools.pairwise(entries))]


def _load(definition: str, *, encode_special_tokens: bool) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:
        raise TokenizerError(
            f"This is not a tokenizer.json that tokenizers {tokenizers.__version__} can load: {error}.",
            hint="Check that the file is complete.",
        ) from error
    tokenizer.encode_special_tokens = encode_special_tokens
    return tokenizer


def _digest(definition: str, *, encode_special_tokens: bool) -> str:
    digest = hashlib.sha256(definition.encode())
    digest.update(f"|encode_special_tokens={encode_special_tokens}|tokenizers={tokenizers.__version__}".encode())
    return digest.hexdigest()


def _encode(tokenizer: tokenizers.Tokenizer, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[bytes]:
    """The uint32 ids of each text. ``encode_batch_fast`` is half as long as ``encode`` and lets other threads run."""
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
    except BaseException as error:
        if is_refusal(error):
            raise refusal("tokenizers", texts, error) from error
        raise
    return [array("I", encoding.ids).tobytes() for encoding in encodings]


def _log() -> Any:
    """The logger, imported when there is something to say: structlog takes as long to import as a tokenizer to load."""
    import structlog  # noqa: PLC0415 - see above

    return structlog.get_logger(__name__)
