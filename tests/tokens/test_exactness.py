"""Cached ids are the reference's ids: every tokenizer, level, order of requests and flag.

The full matrix is ``slow``: at least 2,000 texts a tokenizer. A sample of it runs every time. The summary at the end of
the run says how many answers were compared.
"""

import hashlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from foreword import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.testing.crafted import DROPOUT, RECIPES, write
from foreword.testing.histories import SCENARIOS, Oracle, replay
from foreword.testing.material import tokenizer_path
from foreword.testing.reference import Reference, load_reference
from foreword.testing.texts import families
from foreword.tokens.gguf import read_gguf_metadata, tokenizer_files

RecordProperty = Callable[[str, object], None]

L0, L1 = L0Config(max_entries=10_000, max_memory=64 << 20), L1Config(max_memory=50 << 20)
LEVELS = {"L0": (L0, None), "L1": (None, L1), "both": (L0, L1)}
EVICTING = L0Config(max_entries=40, max_memory=60_000), L1Config(max_memory=60_000)
RUNS = [*itertools.product(LEVELS.values(), SCENARIOS.values()), (EVICTING, SCENARIOS["interleaved"])]
"""Every level in every order of requests, and both with hardly any room."""

REAL = (
    "claude", "cl100k_base", "deepseek_v3", "deepseek_v4", "gemini", "gemma3", "gpt35turbo", "gpt4o", "gptoss", "llama2", "llama3",
    "llama3_1", "o200k_base", "qwen", "qwen3",
)  # fmt: skip
SAMPLED_REAL = ("llama2", "qwen3", "qwen")
SMOLLM2 = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"
"""sha256 of the tokenizer.json that its makers publish."""
TEKKEN = ("tekken_240718.json", "tekken_240911.json")


def compare(reference: Reference, texts: int, seed: int, record: RecordProperty) -> None:
    """Run every order of requests at every level."""
    tokenizer = load_tokenizer(reference.path, **reference.options)
    oracle, compared = Oracle(reference), 0
    made = families(seed, reference.added_tokens, texts)
    for (l0, l1), scenario in RUNS:
        cache = CachedTokenizer(tokenizer, l0=l0, l1=l1)
        compared += replay(cache, scenario(made, random.Random(seed)), oracle)
        cache.check_integrity()
        assert cache.statistics().encoder_fallbacks == 0, "the second encoder differed from the reference"
    assert compared >= texts * len(RUNS) * 2
    record("compared", compared)


@pytest.mark.parametrize("name", RECIPES)
def test_sampled_ids_of_crafted_tokenizers_are_the_reference_s(
    name: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    """A sample of the matrix on one small tokenizer of each kind."""
    reference = load_reference(write(RECIPES[name], tmp_path), name)
    compare(reference, texts=10, seed=1, record=record_property)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.material(name)) for name in SAMPLED_REAL])
def test_sampled_ids_of_real_tokenizers_are_the_reference_s(name: str, record_property: RecordProperty) -> None:
    """A sample of the matrix on tokenizers of three families."""
    compare(load_reference(tokenizer_path(name), name), texts=10, seed=2, record=record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_ids_of_crafted_tokenizers_are_the_reference_s(
    name: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    """The matrix on one small tokenizer of each kind."""
    reference = load_reference(write(RECIPES[name], tmp_path), name)
    compare(reference, texts=2000, seed=3, record=record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.material(name)) for name in REAL])
def test_ids_of_real_tokenizers_are_the_reference_s(name: str, record_property: RecordProperty) -> None:
    """The matrix on every fetched tokenizer."""
    compare(load_reference(tokenizer_path(name), name), texts=2000, seed=4, record=record_property)


@pytest.mark.slow
@pytest.mark.parametrize("file", TEKKEN)
def test_ids_of_tekken_are_the_reference_s(file: str, record_property: RecordProperty) -> None:
    """The matrix on Mistral's tekken files, which match no special token in text at all."""
    path = Path(MistralTokenizer._data_path()) / file
    compare(load_reference(path), texts=2000, seed=5, record=record_property)


def test_a_sampling_tokenizer_is_never_cached(tmp_path: Path) -> None:
    """A tokenizer that answers differently each time keeps doing so, and nothing of it is kept."""
    cache = CachedTokenizer(load_tokenizer(write(DROPOUT, tmp_path)), l0=L0, l1=L1)
    answers = {tuple(cache.encode("the capital of France, hello world " * 20)) for _ in range(8)}
    statistics = cache.statistics()
    assert len(answers) > 1
    assert (statistics.l0.entries, statistics.l1.entries) == (0, 0)


@pytest.fixture
def smollm2(tmp_path: Path) -> Path:
    """SmolLM2's tokenizer, taken out of the GGUF file as the engine does."""
    for name, text in tokenizer_files(read_gguf_metadata(tokenizer_path("smollm2_gguf"))).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.material("smollm2_gguf")
def test_ids_of_smollm2_are_the_reference_s(smollm2: Path, record_property: RecordProperty) -> None:
    """The embedded engine's tokenizer is byte for byte the published one, and the matrix holds on it."""
    assert hashlib.sha256((smollm2 / "tokenizer.json").read_bytes()).hexdigest() == SMOLLM2
    compare(load_reference(smollm2, "smollm2"), texts=2000, seed=6, record=record_property)
