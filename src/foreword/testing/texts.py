"""Texts that a cache of token ids gets wrong if it can.

Seeded, so that a failure comes back. Pieces are chat turns with the tokenizer's own added tokens, half-written ones,
combining marks right after them, every kind of space and line end, scripts that join, digits, code and noise; sizes
gather around the distances at which a cache may cut (512 bytes, 4 KB).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SCRAPS: Final = (
    "", " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", "\n\n\n", " \n", "\n ", "\t\n", "\u00a0", "\u3000", "\u2009",
    "\u200b", "\u200d", "\ufeff", "\u2028", "\x00", "\x7f", "\u0085", "\ufffd", "▁", "▁▁", "Ġ",
    "\u0301", "\u0338", "\u0308\u0301", "\u0327", "\u3099", "\ufe0f", "\u0345", "\u0e33", "\u093f",
    "e\u0301", "é", "Å", "A\u030a", "\u212b", "ﬁ", "²", "½", "Ⅷ", "ß", "İ", "ı", "Σ", "ς", "ǅ", "ʼn", "ﷺ",
    "👩‍👩‍👧‍👦", "🇫🇷", "👍🏽", "😀", "❤️", "1️⃣", "𝒳", "𠀀", "한국어", "각", "ᄀ", "日本語", "が", "か\u3099", "。", "，", "！",
    "العربية", "עִבְרִית", "\u202e", "हिन्दी", "ไทยไม่มีวรรค", "က္ည", "1", "12", "123", "1234567", "3.14", "1,000", "٣٤", "①",
    "'s", "'ll", "'", "’s", "don't", "I'M", "it'S", "_", "__init__", "->", "=>", "!=", "/", "//", "\\n", "://", "a/b", "(", ")]}",
    "<", ">", "<|", "|>", "</", "<0x0A>", "<unk>", "##", "@@", "</w>", "the", " the", "The", "THE", "a", "A", "hello", "Big", "café",
    "word", "plain", "norm", "ab", "abb", "x" * 40, " " * 30, "\n" * 12, "\t" * 9, "=" * 25, "0" * 33, "é" * 20, "的" * 25,
)  # fmt: skip
"""The smallest pieces. Every text has some."""

_SENTENCES: Final = (
    "The quick brown fox jumps over the lazy dog.", "I'm sure you'll see that it's what we've said, isn't it?",
    "What is the capital of France?", "Paris.", "Please summarise the following document in three bullet points:",
    "def f(x: int) -> str:\n    if x > 10:\n        return f\"{x!r}\"\n    return '\\n'.join(map(str, range(x)))\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "units": "°C"}}',
    "| a | b |\n|---|---|\n| 1 | 2 |\n", "- item one\n- item two\n\t- nested\n", "https://example.org/path?q=1&r=%20#frag",
    "机器学习是人工智能的一个分支，它使计算机能够从数据中学习。今天天气很好！", "私は日本語を勉強しています。カタカナとひらがな。",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.", "مرحبا بالعالم، كيف حالك؟", "שלום עולם",
    "안녕하세요, 반갑습니다. 오늘은 2024년 11월 30일입니다.", "naïve café résumé — “quoted” … £5 €6 ±7", "camelCaseAndPascalCase HTTPServer2Go",
    "SELECT * FROM t WHERE id IN (1,2,3) AND name LIKE '%x%';", "for(int i=0;i<n;++i){a[i]+=b[i]*c[i];}",
)  # fmt: skip

_ROLES: Final = ("user", "assistant", "system", "tool", "User", "")


@dataclass(frozen=True, slots=True)
class Family:
    """Texts that share beginnings.

    Attributes:
        grown: each begins with the one before.
        edited: each is the last grown one, changed in its middle.
    """

    grown: tuple[str, ...]
    edited: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        yield from self.grown
        yield from self.edited


class TextMaker:
    """Writes texts for one tokenizer, the same ones for the same seed.

    Args:
        seed: of the random numbers.
        added_tokens: contents of the tokenizer's added and special tokens.
    """

    def __init__(self, seed: int, added_tokens: Sequence[str] = ()) -> None:
        self._random = random.Random(seed)
        self._tokens = self._chosen(added_tokens)

    def _chosen(self, added_tokens: Sequence[str]) -> tuple[str, ...]:
        """Some of the added tokens: a chat uses few, and thousands of reserved ones would crowd them out."""
        named = [t for t in added_tokens if not any(c.isdigit() for c in t)][:16]
        rest = self._random.sample(list(added_tokens), min(12, len(added_tokens)))
        return tuple(dict.fromkeys((*named, *rest))) or ("<|im_start|>", "<|im_end|>", "<s>")

    def token(self) -> str:
        """One added token, most often one of the first few."""
        return self._tokens[min(int(self._random.expovariate(0.4)), len(self._tokens) - 1)]

    def half_token(self) -> str:
        """A piece of an added token, or one with a letter changed."""
        token = self.token()
        at = self._random.randrange(len(token) + 1)
        return self._random.choice((token[:at], token[at:], token[:at] + " " + token[at:], token.swapcase()))

    def piece(self) -> str:
        """A few characters to a few lines."""
        kinds: tuple[tuple[Callable[[], str], int], ...] = (
            (self._scrap, 28),
            (self._sentence, 24),
            (self.token, 14),
            (lambda: self.token() + self._scrap(), 6),
            (lambda: self._scrap() + self.token() + self.token(), 6),
            (self.half_token, 5),
            (self.turn, 13),
            (self._noise, 4),
        )
        return self._random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()

    def _scrap(self) -> str:
        return self._random.choice(SCRAPS)

    def _sentence(self) -> str:
        return self._random.choice(_SENTENCES)

    def turn(self) -> str:
        """A chat turn as templates write it."""
        role, line = self._random.choice(_ROLES), self._random.choice(("\n", "\n\n", " ", ""))
        body = self._random.choice((" ", "", "\n")).join(
            self._random.choices(_SENTENCES, k=self._random.randrange(1, 4))
        )
        return self.token() + role + line + body + self.token() + line

    def _noise(self) -> str:
        """Characters from anywhere but the surrogates, or one repeated."""
        if self._random.random() < 0.3:
            return self._random.choice(" \n\ta.0é好") * self._random.randrange(1, 80)
        top = self._random.choice((0x80, 0x800, 0x10000, 0x20000))
        points = (self._random.randrange(1, top) for _ in range(self._random.randrange(1, 30)))
        return "".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)

    def size(self) -> int:
        """Characters to aim for: small, around 512, around 4096, seldom up to 20,000."""
        draw = self._random.random()
        if draw < 0.52:
            return int(self._random.expovariate(1 / 120))
        if draw < 0.82:
            return 512 + self._random.randrange(-24, 160)
        if draw < 0.96:
            return self._random.randrange(600, 2000)
        if draw < 0.994:
            return 4096 + self._random.randrange(-64, 300)
        return self._random.randrange(8_000, 20_000)

    def text(self, size: int | None = None) -> str:
        """A text of about ``size`` characters, cut anywhere."""
        if size is None and self._random.random() < 0.08:
            return self.prose(4096 + self._random.randrange(-64, 5_000))
        return self._join(self.piece, self.size() if size is None else size)

    def prose(self, size: int) -> str:
        """A text with hardly a token, which can be cut only in its plain text."""
        return self._join(self._plain_piece, size)

    def _plain_piece(self) -> str:
        return self._random.choice((self._scrap, self._sentence, self._sentence, self._sentence, self._noise))()

    def _join(self, draw: Callable[[], str], size: int) -> str:
        pieces: list[str] = []
        length = 0
        while length < size:
            pieces.append(draw())
            length += len(pieces[-1])
        return "".join(pieces)[:size]

    def grow(self, text: str) -> str:
        """The text and more, often only the rest of what it broke off in."""
        return text + self._random.choice((self.piece, self.turn, self.token, lambda: self.text(600)))()

    def edit(self, text: str) -> str:
        """The text with something in its middle added, removed or replaced."""
        at = self._random.randrange(len(text) + 1)
        to = min(len(text), at + self._random.choice((0, 1, 1, 2, 9, 80)))
        return text[:at] + self._random.choice((self.piece, self.token, lambda: ""))() + text[to:]

    def family(self, grown: int = 6, edited: int = 4) -> Family:
        """Texts that grow in odd places, then the last of them edited."""
        whole = self.text()
        while len(whole) < grown:
            whole += self.piece() or "x"
        cuts = sorted(self._odd_place(whole) for _ in range(grown - 1))
        texts = (*(whole[:cut] for cut in cuts), whole)
        return Family(texts, tuple(self.edit(whole) for _ in range(edited)))

    def _odd_place(self, text: str) -> int:
        """An index into the text, likely inside or beside an added token."""
        at = self._random.randrange(len(text) + 1)
        if self._random.random() < 0.5:
            token = self.token()
            found = text.find(token, at)
            if found >= 0:
                return found + self._random.choice((len(token), len(token) + 1, self._random.randrange(len(token) + 1)))
        return min(at, len(text))


def families(seed: int, added_tokens: Sequence[str], texts: int) -> list[Family]:
    """Families with at least that many texts together, ten in each."""
    maker = TextMaker(seed, added_tokens)
    return [maker.family() for _ in range(-(-texts // 10))]
