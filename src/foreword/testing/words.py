"""A tokenizer with no vocabulary file, for tests of code that uses Foreword."""

from __future__ import annotations

import re
from collections.abc import Sequence

from foreword.tokens.tokenizer import TokenIds, TokenizerIdentity

_WORD = re.compile(r"[^\S\n]?[A-Za-z]+|[^\S\n]?\d{1,3}|\s+|[^\w\s]|.", re.DOTALL)


class WordTokenizer:
    """A token a word, with the space before it, as byte-pair vocabularies do; ids are given out as words are met.

    Immutable but for the vocabulary, which only grows; two instances that met the same texts in the same order agree.
    """

    def __init__(self, name: str = "words", bos: str | None = None) -> None:
        self.identity = TokenizerIdentity(name, "foreword.testing", "1", name.encode().hex())
        self._ids: dict[str, int] = {}
        self._words: list[str] = []
        self._bos = bos

    @property
    def vocab_size(self) -> int:
        """Words met so far."""
        return len(self._words)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:
        """One id for each word, with BOS first where asked for and set."""
        words = _WORD.findall(text)
        if add_special_tokens and self._bos:
            words = [self._bos, *words]
        return TokenIds.of([self._id(word) for word in words])

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The words joined as they were."""
        words = [self._words[i] for i in ids]
        return "".join(word for word in words if not (skip_special_tokens and word == self._bos))

    def token_to_id(self, token: str) -> int | None:
        """The id of a word already met."""
        return self._ids.get(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The word of an id."""
        return self._words[token_id] if token_id < len(self._words) else None
