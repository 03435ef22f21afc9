"""Small tokenizers of every pipeline kind, trained on the spot, and random ones for the fuzzer.

A ``Recipe`` names the parts in ``tokenizer.json``'s own words. ``RECIPES`` holds one for every kind of normalizer,
pre-tokenizer, model, post-processor and added token, and one for every trap known to make a cache of token ids wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer
from tokenizers import trainers as hf_trainers
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from foreword.testing.tokenizer_parts import (
    BERT,
    CHAT,
    CL100K,
    LEGACY,
    NFC,
    O200K,
    QWEN,
    Json,
    added,
    bert_normalizer,
    byte_level,
    metaspace,
    pad,
    replace,
    sequence,
    split,
    split_bytes,
    truncate,
)  # fmt: skip

_CORPUS: Final = (
    "The quick brown fox jumps over the lazy dog. I'm sure that you'll say it's what we've seen before.",
    "user\nWhat is the capital of France?\nassistant\nThe capital of France is Paris.\nsystem\nYou are helpful.",
    "def encode(self, text: str) -> list[int]:\n    return [ord(c) for c in text]  # 1234567890 3.14159 2024-11-30",
    "机器学习是人工智能的一个分支。今天天气很好，我们去公园吧！ 東京は日本の首都です。 안녕하세요 세계",
    "Привет, мир! Это проверка. naïve café résumé Ångström über straße ΑΒΓ αβγ שלום עולם مرحبا بالعالم",
    '{"role": "user", "content": "hello hello hello", "n": [1, 2, 22, 333, 4444]} <b>bold</b> https://x.org/a?b=c&d=e',
    "hello world  hello\tworld\r\n\r\n   indented   and the and the and the end\n\n\nim_start im_end",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a tokenizer. Parts are as ``tokenizer.json`` spells them.

    Attributes:
        model: "BPE", "WordPiece", "Unigram" or "WordLevel".
        patch: entries of the trained model to set afterwards, such as ``dropout``.
        template: special tokens before and after the text, both may be empty.
        tokens: added tokens, in order.
        byte_fallback: give the model the 256 byte tokens.
        config: what tokenizer_config.json says.
    """

    model: str = "BPE"
    normalizer: Json | None = None
    pre_tokenizer: Json | None = None
    post_processor: Json | None = None
    template: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    tokens: tuple[Json, ...] = CHAT
    truncation: Json | None = None
    padding: Json | None = None
    byte_fallback: bool = False
    patch: Json = field(default_factory=dict)
    config: Json = field(default_factory=dict)


def write(recipe: Recipe, folder: Path) -> Path:
    """Make the tokenizer in a Hugging Face folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(craft(recipe), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(recipe.config), encoding="utf-8")
    return folder


def craft(recipe: Recipe) -> str:
    """Train and assemble the recipe; the text of its tokenizer.json."""
    definition = _trained(recipe)
    definition["model"] |= recipe.patch
    if recipe.byte_fallback:
        _add_byte_tokens(definition["model"])
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    for token in recipe.tokens:
        (tokenizer.add_special_tokens if token["special"] else tokenizer.add_tokens)([AddedToken(**token)])
    _set_template(tokenizer, recipe.template)
    assembled: Json = json.loads(tokenizer.to_str())
    assembled |= {"truncation": recipe.truncation, "padding": recipe.padding}
    return json.dumps(assembled, ensure_ascii=False)


def _trained(recipe: Recipe) -> Json:
    """The definition with a trained model and no added token but <unk>."""
    skeleton: Json = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "decoder": None,
        "normalizer": recipe.normalizer, "pre_tokenizer": recipe.pre_tokenizer,
        "post_processor": recipe.post_processor, "model": _EMPTY[recipe.model],
    }  # fmt: skip
    tokenizer = Tokenizer.from_str(json.dumps(skeleton))
    tokenizer.train_from_iterator(_CORPUS * 3, trainer=_TRAINERS[recipe.model](_is_byte_level(recipe)))
    trained: Json = json.loads(tokenizer.to_str())
    return trained


_EMPTY: Final[Mapping[str, Json]] = MappingProxyType(
    {
        "BPE": {"type": "BPE", "vocab": {}, "merges": []},
        "WordPiece": {
            "type": "WordPiece", "vocab": {}, "unk_token": "<unk>",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        },
        "Unigram": {"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": 0, "byte_fallback": False},
        "WordLevel": {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"},
    }
)  # fmt: skip


def _bpe_trainer(byte_level: bool) -> hf_trainers.Trainer:  # noqa: FBT001 - one of four alike
    if byte_level:
        return hf_trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=ByteLevel.alphabet())
    return hf_trainers.BpeTrainer(vocab_size=700, show_progress=False, special_tokens=["<unk>"])


_TRAINERS: Final[Mapping[str, Callable[[bool], Any]]] = MappingProxyType(
    {
        "BPE": _bpe_trainer,
        "WordPiece": lambda _: hf_trainers.WordPieceTrainer(
            vocab_size=600, show_progress=False, special_tokens=["<unk>"]
        ),
        "Unigram": lambda _: hf_trainers.UnigramTrainer(
            vocab_size=400,
            show_progress=False,
            special_tokens=["<unk>"],
            unk_token="<unk>",  # noqa: S106
        ),
        "WordLevel": lambda _: hf_trainers.WordLevelTrainer(
            vocab_size=600, show_progress=False, special_tokens=["<unk>"]
        ),
    }
)


def _is_byte_level(recipe: Recipe) -> bool:
    return '"ByteLevel"' in json.dumps([recipe.normalizer, recipe.pre_tokenizer])


def _add_byte_tokens(model: Json) -> None:
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if isinstance(model["vocab"], list):
        model["vocab"] += [[name, -12.0] for name in names]
    else:
        first = max(model["vocab"].values()) + 1
        model["vocab"] |= {name: first + number for number, name in enumerate(names)}
    model["byte_fallback"] = True


def _set_template(tokenizer: Tokenizer, template: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    before, after = template
    if before or after:
        names = dict.fromkeys((*before, *after))
        tokenizer.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in names],
        )


_OVERLAPPING: Final = tuple(
    added(c) for c in ("<a>", "<b>", "<a><b>", "b><a", "<|im_end|>", "<|im_start|>", "<a><b><a>")
)
_CONTAINED: Final = (
    *CHAT,
    added("<|im_end|>\n"),
    added("<|im_start|>user", special=False),
    added("<|im_end|><|im_start|>"),
)
_STRIPPING: Final = (
    *CHAT, added("<|user|>", rstrip=True), added("<|left|>", lstrip=True), added("<|both|>", lstrip=True, rstrip=True),
    added("<mask>", lstrip=True, single_word=True), added("word", single_word=True, special=False),
    added("plain", special=False), added("norm", special=False, normalized=True),
)  # fmt: skip
_NORMALIZED: Final = (
    *(added(t["content"], normalized=True) for t in CHAT),
    added("café", special=False, normalized=True), added("Big", special=False, normalized=True),
    added("<|MiX|>", normalized=True), added("<|raw|>"), added("<e\u0301>"),
)  # fmt: skip
_WHITESPACE: Final = (*CHAT, *(added(c, special=False) for c in (" ", "  ", "\n\n", "\t", "\r\n", "▁▁", "    ")))
_WORDS: Final = (*CHAT, *(added(c, special=False) for c in ("the", "hello", "a", "é", "好", "7", "\n", "</b>")))

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "bytelevel": Recipe(pre_tokenizer=byte_level()),
        "bytelevel-prefix-space": Recipe(pre_tokenizer=byte_level(prefix_space=True)),
        "bytelevel-no-regex": Recipe(pre_tokenizer=byte_level(regex=False)),
        "bytelevel-normalizer": Recipe(normalizer={"type": "ByteLevel"}, pre_tokenizer=split(CL100K)),
        "metaspace-always": Recipe(pre_tokenizer=metaspace("always"), template=(("<s>",), ())),
        "metaspace-first": Recipe(pre_tokenizer=metaspace("first"), template=(("<s>",), ())),
        "metaspace-never": Recipe(pre_tokenizer=metaspace("never")),
        "metaspace-first-unsplit": Recipe(
            pre_tokenizer=metaspace("first", split_words=False), byte_fallback=True, patch={"unk_token": "<unk>"}
        ),
        "legacy-prepend": Recipe(
            normalizer=LEGACY, byte_fallback=True, patch={"unk_token": "<unk>", "fuse_unk": True}, template=(("<s>",), ())
        ),
        "gemma-like": Recipe(
            normalizer=replace(" ", "▁"),
            pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
            tokens=_WHITESPACE, byte_fallback=True, patch={"unk_token": "<unk>", "fuse_unk": True}, template=(("<s>",), ()),
        ),
        "wordpiece-bert": Recipe(
            "WordPiece", bert_normalizer(), BERT, template=(("<s>",), ("</s>",)), tokens=(*CHAT, added("[MASK]", lstrip=True))
        ),
        "bert-processing": Recipe(
            "WordPiece", bert_normalizer(lowercase=False), BERT,
            post_processor={"type": "BertProcessing", "sep": ["</s>", 3], "cls": ["<s>", 2]},
        ),
        "roberta": Recipe(
            pre_tokenizer=byte_level(prefix_space=True),
            post_processor={
                "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
                "add_prefix_space": True,
            },
        ),
        "unigram-t5": Recipe(
            "Unigram", sequence("normalizers", {"type": "Nmt"}, {"type": "NFKC"}), metaspace("always"),
            template=((), ("</s>",)),
        ),
        "unigram-byte-fallback": Recipe("Unigram", pre_tokenizer=metaspace("first"), byte_fallback=True),
        "wordlevel": Recipe("WordLevel", pre_tokenizer={"type": "Whitespace"}),
        "wordlevel-punctuation": Recipe(
            "WordLevel", {"type": "Lowercase"},
            sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"}),
        ),
        "cl100k-like": Recipe(pre_tokenizer=split_bytes(CL100K), patch={"ignore_merges": True}),
        "o200k-like": Recipe(pre_tokenizer=split_bytes(O200K)),
        "qwen-like": Recipe(normalizer=NFC, pre_tokenizer=split_bytes(QWEN)),
        "digits": Recipe(
            pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level())
        ),
        "split-removed": Recipe(pre_tokenizer=sequence("pretokenizers", split(r"\s+", "Removed"), byte_level(regex=False))),
        "split-merged": Recipe(
            pre_tokenizer=sequence("pretokenizers", split(r"[,.;]", "MergedWithNext"), byte_level(regex=False))
        ),
        "scripts": Recipe(pre_tokenizer=sequence("pretokenizers", {"type": "UnicodeScripts"}, byte_level())),
        "char-delimiter": Recipe(pre_tokenizer={"type": "CharDelimiterSplit", "delimiter": "\n"}),
        "fixed-length": Recipe(pre_tokenizer={"type": "FixedLength", "length": 5}),
        "clip": Recipe(
            normalizer=sequence("normalizers", NFC, {"type": "Lowercase"}), pre_tokenizer={"type": "Whitespace"},
            patch={"end_of_word_suffix": ""}, template=(("<s>",), ("</s>",)),
        ),
        "nfkc-lowercase": Recipe(
            normalizer=sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}), pre_tokenizer=byte_level(),
            tokens=_NORMALIZED,
        ),
        "nfd-strip-accents": Recipe(
            normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "StripAccents"}), pre_tokenizer=byte_level()
        ),
        "strip": Recipe(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}, pre_tokenizer=byte_level()),
        "replace-regex": Recipe(
            normalizer={"type": "Replace", "pattern": {"Regex": r"\s{2,}"}, "content": " "}, pre_tokenizer=byte_level()
        ),
        "prepend-bytelevel": Recipe(normalizer={"type": "Prepend", "prepend": "x"}, pre_tokenizer=byte_level()),
        "template-bos": Recipe(pre_tokenizer=split_bytes(CL100K), template=(("<s>",), ())),
        "template-bos-eos": Recipe(pre_tokenizer=split_bytes(CL100K), template=(("<s>",), ("</s>",))),
        "template-many": Recipe(pre_tokenizer=byte_level(), template=(("<s>", "<|im_start|>"), ("<|im_end|>", "</s>"))),
        "truncation": Recipe(pre_tokenizer=byte_level(), template=(("<s>",), ("</s>",)), truncation=truncate(64)),
        "truncation-left": Recipe(
            pre_tokenizer=byte_level(), template=(("<s>",), ()), truncation=truncate(100, "Left", stride=3)
        ),
        "padding-fixed": Recipe(pre_tokenizer=byte_level(), template=(("<s>",), ()), padding=pad({"Fixed": 128})),
        "padding-multiple": Recipe(pre_tokenizer=byte_level(), padding=pad("BatchLongest", "Left", 8)),
        "truncation-padding": Recipe(
            pre_tokenizer=split_bytes(QWEN), truncation=truncate(50), padding=pad({"Fixed": 70}), template=((), ("</s>",))
        ),
        "dropout-zero": Recipe(pre_tokenizer=byte_level(), patch={"dropout": 0.0}),
        "stripping-tokens": Recipe(pre_tokenizer=byte_level(), tokens=_STRIPPING),
        "stripping-tokens-two-passes": Recipe(
            pre_tokenizer=byte_level(),
            tokens=(added("<|im_end|>\n", rstrip=True), added("\n\n", special=False, normalized=True)),
        ),
        "stripping-tokens-metaspace": Recipe(pre_tokenizer=metaspace("first"), tokens=_STRIPPING),
        "contained-tokens": Recipe(pre_tokenizer=split_bytes(QWEN), tokens=_CONTAINED),
        "overlapping-tokens": Recipe(pre_tokenizer=byte_level(), tokens=_OVERLAPPING),
        "normalized-tokens-nfc": Recipe(normalizer=NFC, pre_tokenizer=byte_level(), tokens=_NORMALIZED),
        "normalized-tokens": Recipe(pre_tokenizer=byte_level(), tokens=_NORMALIZED),
        "normalized-tokens-legacy": Recipe(normalizer=LEGACY, tokens=_NORMALIZED, patch={"unk_token": "<unk>"}),
        "whitespace-tokens": Recipe(pre_tokenizer=split_bytes(CL100K), tokens=_WHITESPACE),
        "word-tokens": Recipe(pre_tokenizer=split_bytes(O200K), tokens=_WORDS),
        "pad-plain-word": Recipe(
            pre_tokenizer=byte_level(), config={"pad_token": "the", "eos_token": "hello", "bos_token": "user"}
        ),
    }
)  # fmt: skip

DROPOUT: Final = Recipe(pre_tokenizer=byte_level(), patch={"dropout": 0.3})
"""A tokenizer that answers differently each time: nothing of its may be cached."""

# --- random recipes ---------------------------------------------------------------------------------------------------

_NORMALIZERS: Final[tuple[Json | None, ...]] = (
    None, None, None, NFC, {"type": "NFKC"}, {"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}, LEGACY,
    {"type": "Nmt"}, bert_normalizer(), replace(" ", "▁"), replace("ab", "b"), replace("<", "("), replace("\n", " "),
    {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    sequence("normalizers", NFC, {"type": "Lowercase"}), sequence("normalizers"),
)  # fmt: skip
_PRE_TOKENIZERS: Final[tuple[Json | None, ...]] = (
    byte_level(), byte_level(), byte_level(prefix_space=True), byte_level(regex=False), split_bytes(CL100K),
    split_bytes(CL100K), split_bytes(O200K), split_bytes(QWEN), metaspace("always"), metaspace("first"),
    metaspace("never"), metaspace("first", split_words=False), None, {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, BERT,
    {"type": "Punctuation", "behavior": "Isolated"}, {"type": "CharDelimiterSplit", "delimiter": " "},
    {"type": "FixedLength", "length": 3}, sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level()),
    sequence("pretokenizers", split(r"\p{N}{1,3}"), split(r"[一-龥]+"), byte_level()),
    sequence("pretokenizers", split(r"\s", "MergedWithPrevious"), byte_level(regex=False)),
    sequence("pretokenizers", split(CL100K, "Removed", invert=True), byte_level(regex=False)),
)  # fmt: skip
_CONTENTS: Final = (
    "<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<s>", "</s>", "<a>", "<a><b>", "a", "the", " ", "\n\n", "é", "<e\u0301>",
    "Big", "<|end|>", "▁", "7", "<|im_", "|>", "user\n", "好",
)  # fmt: skip


def random_recipe(rng: random.Random) -> Recipe:
    """A recipe nobody thought of."""
    tokens = [added("<s>"), added("</s>"), added("<pad>")]
    for content in rng.sample(_CONTENTS, rng.randrange(1, 7)):
        flags = {name: rng.random() < 0.15 for name in ("lstrip", "rstrip", "single_word", "normalized")}
        tokens.append(added(content, special=rng.random() < 0.7, **flags))
    return Recipe(
        model=rng.choice(("BPE", "BPE", "BPE", "BPE", "WordPiece", "Unigram", "WordLevel")),
        normalizer=rng.choice(_NORMALIZERS),
        pre_tokenizer=rng.choice(_PRE_TOKENIZERS),
        template=rng.choice((((), ()), (("<s>",), ()), (("<s>",), ("</s>",)), ((), ("</s>",)))),
        tokens=tuple(tokens),
        truncation=truncate(rng.randrange(8, 80)) if rng.random() < 0.06 else None,
        padding=pad({"Fixed": 40}) if rng.random() < 0.06 else None,
    )
