"""Mistral's tokenizers, through mistral-common (the extra ``mistral``): Tekken and SentencePiece."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Hashable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foreword.errors import TokenizerError
from foreword.tokens.boundaries import Boundaries
from foreword.tokens.tokenizer import SpecialTokens, TokenIds, TokenizerIdentity, is_refusal, refusal
from foreword.tokens.tokenizer_json import PATTERNS


class MistralTokenizer:
    """A tokenizer of mistral-common. It never recognizes control tokens in a text: those come from the chat template.

    Equal to ``tokenizer.encode(text, bos=add_special_tokens, eos=False)``. Cuts are in plain text alone, and only for
    Tekken: SentencePiece has no certain ones.

    Attributes:
        key: always None.
        boundaries: its certified cuts.
        encoder_fallbacks: always 0.
    """

    key: Hashable = None
    encoder = "mistral-common"
    encoder_fallbacks = 0

    def __init__(self, tokenizer: Any, *, pattern: str | None, identity: TokenizerIdentity) -> None:
        """Wrap a Tekkenizer (with its pattern) or a SentencePieceTokenizer (without)."""
        self._tokenizer = tokenizer
        self._bos = array("I", [tokenizer.bos_id]).tobytes()
        pairs = PATTERNS.get(pattern or "")
        self.boundaries = Boundaries(pairs=pairs, reason="" if pairs else "SentencePiece has no certain cuts")
        self.identity = identity

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return int(self._tokenizer.n_words)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:
        """The reference's ids for the text; raises TokenizerError."""
        return TokenIds(self.assemble(self.encode_core([text])[0], add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids; raises TokenizerError for an id outside the vocabulary."""
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy  # noqa: PLC0415 - an extra

        ids = list(ids)
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise TokenizerError("Some ids are outside the vocabulary.", hint=f"Ids are 0 to {self.vocab_size - 1}.")
        policy = SpecialTokenPolicy.IGNORE if skip_special_tokens else SpecialTokenPolicy.KEEP
        return str(self._tokenizer.decode(ids, special_token_policy=policy))

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's exact string, or None."""
        return next((token_id for token_id, piece in enumerate(self._tokenizer.vocab()) if piece == token), None)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's string for an id, or None."""
        return str(self._tokenizer.id_to_piece(token_id)) if 0 <= token_id < self.vocab_size else None

    def check(self, text: str) -> None:
        """No text is refused as a whole."""

    def encode_core(self, texts: Sequence[str]) -> list[bytes]:
        """The uint32 ids of each text without BOS."""
        try:
            return [array("I", self._tokenizer.encode(text, bos=False, eos=False)).tobytes() for text in texts]
        except BaseException as error:
            if is_refusal(error):
                raise refusal("mistral-common", texts, error) from error
            raise

    def assemble(self, core: bytes, *, add_special_tokens: bool) -> bytes:
        """The core ids, behind BOS if asked for."""
        return self._bos + core if add_special_tokens else core

    def with_special_tokens(
        self, allowed: SpecialTokens | None = None, disallowed: SpecialTokens | None = None
    ) -> MistralTokenizer:
        """Raise TokenizerError: these sets are tiktoken's."""
        raise TokenizerError(
            "mistral-common has no allowed and disallowed special tokens.",
            hint="Leave both out; it never recognizes control tokens in a text.",
            allowed=allowed,
            disallowed=disallowed,
        )


def load_mistral(path: Path) -> MistralTokenizer:
    """A tokenizer from a tekken.json or a SentencePiece model.

    Raises:
        TokenizerError: the file is not one, or mistral-common (for a model, sentencepiece too) is not installed.
    """
    try:
        from mistral_common.tokens.tokenizers import sentencepiece, tekken  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TokenizerError(
            f"{path.name} needs mistral-common.", hint="Install it: pip install 'foreword[mistral]'."
        ) from error
    definition = path.read_bytes()
    release = version("mistral_common")
    digest = hashlib.sha256(definition + f"|mistral-common={release}".encode()).hexdigest()
    identity = TokenizerIdentity(path.name, "mistral-common", release, digest)
    try:
        if path.suffix == ".json":
            pattern = json.loads(definition)["config"]["pattern"]
            return MistralTokenizer(tekken.Tekkenizer.from_file(path), pattern=pattern, identity=identity)
        return MistralTokenizer(sentencepiece.SentencePieceTokenizer(path), pattern=None, identity=identity)
    except Exception as error:
        raise TokenizerError(f"mistral-common cannot load {path}: {error}.") from error
