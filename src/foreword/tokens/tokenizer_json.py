"""What a tokenizer.json says: its added tokens, the kinds of its steps, and what surrounds the ids of a text."""

from __future__ import annotations

import itertools
import re
from array import array
from dataclasses import dataclass
from typing import Any

import msgspec

from foreword.tokens.boundaries import (
    CL100K_PAIRS,
    GPT2_PAIRS,
    O200K_PAIRS,
    AddedToken,
    Boundaries,
    needs_two_scans,
)

_NORMALIZERS = frozenset({
    "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Replace",
    "Strip", "StripAccents",
})  # fmt: skip
_PRE_TOKENIZERS = frozenset({
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "Split",
    "UnicodeScripts", "Whitespace", "WhitespaceSplit",
})  # fmt: skip
_MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
PATTERNS: dict[str, re.Pattern[str]] = {
    # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2_PAIRS,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2_PAIRS,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": GPT2_PAIRS,
    # cl100k: Llama 3, Qwen 2 and 3
    rf"{_CONTRACTION}|{_START}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}": CL100K_PAIRS,
    rf"{_CONTRACTION}|{_START}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}": CL100K_PAIRS,
    rf"{_CONTRACTION}|{_START}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}": CL100K_PAIRS,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s": CL100K_PAIRS,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+": (
        CL100K_PAIRS
    ),
    # o200k, with and without contractions (Tekken), and with single digits
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}": O200K_PAIRS,
    rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}": (
        O200K_PAIRS
    ),
}
_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^RN\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[RN]*|"""
    r"""\s*[RN]+|\s+(?!\S)|\s+"""
).replace("RN", "\r\n")  # the file has the two characters themselves
_DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_WORDS]


class Model(msgspec.Struct, frozen=True):
    """The model's settings that matter here; its vocabulary is skipped."""

    type: str = ""
    dropout: float | None = None
    alpha: float | None = None
    nbest_size: int | None = None


class Definition(msgspec.Struct, frozen=True):
    """A tokenizer.json without its vocabulary."""

    model: Model
    added_tokens: list[AddedToken] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    truncation: dict[str, Any] | None = None
    padding: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What is done to the ids of a whole text: truncation, then the template around them, then padding.

    Attributes:
        before, after: uint32 ids that ``add_special_tokens`` puts around the text's.
        truncation, padding: as in the tokenizer.json.
    """

    before: bytes = b""
    after: bytes = b""
    truncation: dict[str, Any] | None = None
    padding: dict[str, Any] | None = None

    def apply(self, core: bytes, *, add_special_tokens: bool) -> bytes:
        """The final ids of a whole text."""
        if not add_special_tokens and self.truncation is None and self.padding is None:
            return core
        before, after = (self.before, self.after) if add_special_tokens else (b"", b"")
        if self.truncation is not None:
            core = self._truncated(core, self.truncation["max_length"] - ((len(before) + len(after)) >> 2))
        ids = before + core + after if before or after else core
        return ids if self.padding is None else self._padded(ids, self.padding)

    def _truncated(self, core: bytes, length: int) -> bytes:
        if len(core) <= 4 * length:
            return core
        left = (self.truncation or {}).get("direction") == "Left"
        return core[len(core) - 4 * length :] if left else core[: 4 * length]

    @staticmethod
    def _padded(ids: bytes, padding: dict[str, Any]) -> bytes:
        length = len(ids) >> 2
        strategy, multiple = padding["strategy"], padding.get("pad_to_multiple_of") or 1
        wanted = strategy["Fixed"] if isinstance(strategy, dict) else length
        wanted = -(-wanted // multiple) * multiple
        if wanted <= length:
            return ids
        pads = array("I", [padding["pad_id"]]).tobytes() * (wanted - length)
        return pads + ids if padding["direction"] == "Left" else ids + pads


def certify(definition: Definition, *, encode_special_tokens: bool) -> tuple[Boundaries, Frame]:
    """The certified cuts of a Hugging Face tokenizer and the frame of its ids.

    Args:
        definition: a parsed tokenizer.json.
        encode_special_tokens: whether special tokens in a text are encoded as text.
    """
    model = definition.model
    if model.dropout or model.alpha or model.nbest_size:
        return Boundaries(cacheable=False, reason="its model samples: one text has many encodings"), Frame()
    frame = _frame(definition)
    if isinstance(frame, str):
        return Boundaries(reason=frame), Frame()
    if reason := _unknown_step(definition):
        return Boundaries(reason=reason), frame
    tokens = definition.added_tokens
    raw = [token for token in tokens if not token.normalized]
    late = [token for token in tokens if token.normalized]
    identity = not _steps(definition.normalizer, "normalizers")
    one_scan = identity and not needs_two_scans(raw, late)
    scanned = tokens if one_scan else raw
    anchors = [t for t in scanned if not t.single_word and not (t.special and encode_special_tokens)]
    pairs = _safe_pairs(definition)
    return Boundaries(tokens, scanned=scanned, anchors=anchors, pairs=pairs, one_scan=one_scan or not late), frame


def _steps(step: dict[str, Any] | None, inside: str) -> list[dict[str, Any]]:
    """A step's parts, Sequences opened."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [part for child in step[inside] for part in _steps(child, inside)]


def _unknown_step(definition: Definition) -> str:
    kinds = (
        ("normalizer", [step["type"] for step in _steps(definition.normalizer, "normalizers")], _NORMALIZERS),
        (
            "pre-tokenizer",
            [step["type"] for step in _steps(definition.pre_tokenizer, "pretokenizers")],
            _PRE_TOKENIZERS,
        ),
        ("model", [definition.model.type], _MODELS),
    )
    unknown = [f"{what} {name}" for what, names, known in kinds for name in names if name not in known]
    return f"its {unknown[0]} is not one whose cuts are certified" if unknown else ""


def _safe_pairs(definition: Definition) -> re.Pattern[str] | None:
    """The safe pairs of plain text: only byte-level BPE whose pattern is known, on text that is normalized to NFC at most."""
    if definition.model.type != "BPE" or [s["type"] for s in _steps(definition.normalizer, "normalizers")] not in (
        [],
        ["NFC"],
    ):
        return None
    steps = _steps(definition.pre_tokenizer, "pretokenizers")
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    *splits, byte_level = steps
    if byte_level.get("use_regex", True):
        return GPT2_PAIRS if all(step["type"] == "Digits" for step in splits) else None
    patterns = [_covering_pattern(step) for step in splits]
    if patterns == _DEEPSEEK:
        return CL100K_PAIRS
    return PATTERNS.get(patterns[0]) if len(patterns) == 1 else None


def _covering_pattern(step: dict[str, Any]) -> str:
    """The regular expression whose matches are the pieces, or an empty string."""
    if step["type"] != "Split" or (step["behavior"], step["invert"]) not in (("Isolated", False), ("Removed", True)):
        return ""
    return str(step["pattern"].get("Regex", ""))


def _frame(definition: Definition) -> Frame | str:
    """The frame, or why there is none."""
    around = [step for step in _steps(definition.post_processor, "processors") if step["type"] != "ByteLevel"]
    if len(around) > 1:
        return "it has more than one template"
    before, after = _template(around[0]) if around else (b"", b"")
    if before is None or after is None:
        return "its template is not one that puts tokens around the text"
    truncation, padding = definition.truncation, definition.padding
    if truncation is not None and truncation["max_length"] < (len(before) + len(after)) >> 2:
        return "its template is longer than its truncation allows"
    return Frame(before, after, truncation, padding)


def _template(step: dict[str, Any]) -> tuple[bytes | None, bytes | None]:
    if step["type"] in ("BertProcessing", "RobertaProcessing"):
        return _pack([step["cls"][1]]), _pack([step["sep"][1]])
    if step["type"] != "TemplateProcessing":
        return None, None
    parts = [next(iter(part.items())) for part in step["single"]]
    places = [at for at, (kind, part) in enumerate(parts) if kind == "Sequence"]
    if len(places) != 1 or parts[places[0]][1]["id"] != "A":
        return None, None
    ids = [step["special_tokens"][part["id"]]["ids"] if kind == "SpecialToken" else [] for kind, part in parts]
    return _pack(*ids[: places[0]]), _pack(*ids[places[0] + 1 :])


def _pack(*runs: list[int]) -> bytes:
    return array("I", itertools.chain(*runs)).tobytes()
