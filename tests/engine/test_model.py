"""The decoder against a loop-based float64 implementation of the same architecture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from foreword.engine.kv_cache import KVCache
from foreword.engine.model import Chunk, LlamaModel
from foreword.engine.threads import ComputeThreads
from foreword.engine.weights import load_weights, open_model

BLOCK_SIZE = 4


@pytest.fixture(scope="module")
def model(tiny: Any) -> Iterator[LlamaModel]:
    """The tiny model over 160 blocks of 4 tokens."""
    weights = load_weights(open_model(tiny.path))
    threads = ComputeThreads(2)
    yield LlamaModel(weights, KVCache(weights.config, 160, BLOCK_SIZE), threads, 512)
    threads.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return [int(token_id) for token_id in np.random.default_rng(seed).integers(3, 97, length)]


def blocks(length: int, first: int = 0) -> list[int]:
    """A block table of consecutive blocks."""
    return list(range(first, first + -(-length // BLOCK_SIZE)))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 31, 32, 33, 63])
def test_prompt_logits_equal_the_reference(model: LlamaModel, tiny: Any, length: int) -> None:
    """A whole prompt in one step gives the reference's last logits, whichever way rows fall into tiles."""
    ids = prompt(length)
    actual = model.forward([Chunk(ids, 0, blocks(length), wants_logits=True)])
    np.testing.assert_allclose(actual, tiny.logits(ids)[-1:], atol=1e-4)


def test_long_prompt_equals_the_reference(model: LlamaModel, tiny: Any) -> None:
    """More rows than a tile and more than attend at once still give the reference's logits."""
    ids = prompt(270, seed=1)
    actual = model.forward([Chunk(ids, 0, blocks(270), wants_logits=True)])
    np.testing.assert_allclose(actual, tiny.logits(ids)[-1:], atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 7, 32, 50])
def test_chunked_prefill_equals_whole(model: LlamaModel, tiny: Any, size: int) -> None:
    """A prompt computed in chunks leaves the same logits as one computed at once."""
    ids = prompt(100, seed=2)
    for start in range(0, 100, size):
        last = start + size >= 100
        actual = model.forward([Chunk(ids[start : start + size], start, blocks(100), wants_logits=last)])
    np.testing.assert_allclose(actual, tiny.logits(ids)[-1:], atol=1e-4)


def test_only_wanted_logits_are_returned(model: LlamaModel) -> None:
    """Chunks that want no logits take part in the step and get no row."""
    ids = prompt(40, seed=3)
    assert model.forward([Chunk(ids[:30], 0, blocks(40), wants_logits=False)]).shape == (0, 97)


def test_batch_equals_single(model: LlamaModel, tiny: Any) -> None:
    """Prompts of several lengths and decode tokens in one step each get the logits they get alone."""
    prompts = [prompt(length, seed=length) for length in (1, 5, 33, 80, 12)]
    tables = [blocks(81, first=21 * index) for index in range(5)]
    model.forward([Chunk(prompts[3][:-1], 0, tables[3], wants_logits=False)])
    chunks = [Chunk(ids, 0, table, wants_logits=True) for ids, table in zip(prompts, tables, strict=True)]
    chunks[3] = Chunk(prompts[3][-1:], 79, tables[3], wants_logits=True)
    expected = np.array([tiny.logits(ids)[-1] for ids in prompts])
    np.testing.assert_allclose(model.forward(chunks), expected, atol=1e-4)


def test_scattered_blocks_equal_consecutive_ones(model: LlamaModel, tiny: Any) -> None:
    """Neither the order of a sequence's blocks in memory nor the number of runs changes the logits."""
    ids = prompt(150, seed=4)
    rng = np.random.default_rng(5)
    few_runs = [*range(80, 100), *range(10, 28)]
    for table in (few_runs, rng.permutation(160)[:38].tolist()):
        model.forward([Chunk(ids[:149], 0, table, wants_logits=False)])
        actual = model.forward([Chunk(ids[149:], 149, table, wants_logits=True)])
        np.testing.assert_allclose(actual, tiny.logits(ids)[-1:], atol=1e-4)


def test_many_decoding_sequences(model: LlamaModel, tiny: Any) -> None:
    """Thirty-nine sequences decode in one step, more than one tile with a multi-threaded product takes."""
    prompts = [prompt(15, seed=100 + index) for index in range(39)]
    tables = [blocks(16, first=4 * index) for index in range(39)]
    for ids, table in zip(prompts, tables, strict=True):
        model.forward([Chunk(ids[:-1], 0, table, wants_logits=False)])
    chunks = [Chunk(ids[-1:], 14, table, wants_logits=True) for ids, table in zip(prompts, tables, strict=True)]
    expected = np.array([tiny.logits(ids)[-1] for ids in prompts])
    np.testing.assert_allclose(model.forward(chunks), expected, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {"head_dim": 16},
        {"rope_theta": 500000.0},
        {"num_hidden_layers": 1},
    ],
    ids=str,
)
def test_other_shapes_equal_the_reference(make_tiny: Any, changes: dict[str, Any]) -> None:
    """Untied output, no or all heads shared, wide heads, other rotation, a single layer: the same logits."""
    other = make_tiny(**changes)
    weights = load_weights(open_model(other.path))
    threads = ComputeThreads(2)
    model = LlamaModel(weights, KVCache(weights.config, 20, BLOCK_SIZE), threads, 512)
    ids = prompt(45, seed=6)
    actual = model.forward([Chunk(ids, 0, blocks(45), wants_logits=True)])
    threads.close()
    np.testing.assert_allclose(actual, other.logits(ids)[-1:], atol=1e-4)
