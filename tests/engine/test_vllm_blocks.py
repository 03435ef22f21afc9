"""The core's prefix cache against a live vLLM's, request by request (make test-engine).

Both are given the same requests in the same order, one at a time: prompts that share prefixes, under salts, in so few
blocks that each few requests evict others, in chunks, with answers that fill blocks. Every block hash, KV event and count
of cached tokens must be the same.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pytest
import zmq
from benchmarks.vllm import VLLMWorker

from foreword.core.cache_request import CacheRequest
from foreword.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from foreword.core.extra_keys import CacheKeys
from foreword.core.hashing import BlockHasher
from foreword.core.prefix_cache import PrefixCache
from foreword.gateway.kv_events import decode_batch

pytestmark = pytest.mark.engine

REQUESTS = 210
BLOCK_SIZE = 32
END_OF_REPLAY = b"\xff" * 8


@dataclass(frozen=True)
class Prompt:
    """One request to both."""

    token_ids: list[int]
    max_tokens: int
    cache_salt: str | None


def prompts(rng: random.Random) -> Iterator[Prompt]:
    """Trunks that branch, asked for whole, in part, to the block's edge and beyond it, under three salts."""
    trunks = [ids(rng, 192) for _ in range(3)]
    trunks += [trunk[: BLOCK_SIZE * rng.randrange(1, 4)] + ids(rng, 128) for trunk in trunks]
    for number in range(REQUESTS):
        trunk = rng.choice(trunks)
        kept = rng.choice([rng.randrange(1, len(trunk)), BLOCK_SIZE * rng.randrange(1, len(trunk) // BLOCK_SIZE + 1)])
        own = rng.choice([0, 0, rng.randrange(1, 40), BLOCK_SIZE])
        answer = rng.randrange(BLOCK_SIZE, 40) if number % 42 == 0 else rng.choice([1, 1, 1, 2, 3])
        yield Prompt(trunk[:kept] + ids(rng, own), answer, rng.choice([None, None, "a", "b"]))


def ids(rng: random.Random, count: int) -> list[int]:
    """Random token ids."""
    return [rng.randrange(100, 49_000) for _ in range(count)]


def ask(vllm: VLLMWorker, prompt: Prompt) -> tuple[int, list[int]]:
    """Cached tokens and the answer's token ids."""
    asked: dict[str, Any] = {
        "prompt": prompt.token_ids,
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = vllm.call("/v1/completions", asked | ({"cache_salt": prompt.cache_salt} if prompt.cache_salt else {}))
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["token_ids"]


def compute(cache: PrefixCache, prompt: Prompt, answer: list[int], chunk: int) -> int:
    """Take the request through the cache as vLLM's scheduler does, chunk by chunk; how many of its tokens were cached."""
    request = CacheRequest("r", list(prompt.token_ids), CacheKeys(prompt.cache_salt))
    computed = cache.get_computed_blocks(request)
    done, length = computed.num_tokens, len(prompt.token_ids)
    while done < length:
        new = min(chunk, length - done)
        assert cache.allocate_slots(request, new, computed)
        done += new
        cache.commit(request, done)
    for token in answer[:-1]:  # of the last one's KV nobody has need
        request.token_ids.append(token)
        assert cache.allocate_slots(request, 1)
        cache.commit(request, len(request.token_ids))
    cache.free(request)
    return request.num_cached_tokens


def published(vllm: VLLMWorker, count: int) -> list[KVCacheEvent]:
    """All events since vLLM's start, as soon as there are so many; whatever there is after ten seconds."""
    deadline = time.monotonic() + 10
    while len(events := replay(vllm)) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    return events


def replay(vllm: VLLMWorker) -> list[KVCacheEvent]:
    """What vLLM's replay socket has."""
    events: list[KVCacheEvent] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, 10_000
        socket.connect(f"tcp://127.0.0.1:{vllm.replay}")
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while (frames := socket.recv_multipart())[2] != END_OF_REPLAY:
            events += decode_batch(int.from_bytes(frames[2], "big"), frames[3]).events
    return events


def as_published(events: Iterable[KVCacheEvent]) -> list[KVCacheEvent]:
    """Our events as the wire's reader gives vLLM's: without the medium, and no list of keys where no block has any."""
    return [
        BlockRemoved(event.block_hashes)
        if isinstance(event, BlockRemoved)
        else BlockStored(
            event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size, None, event.extra_keys
        )
        if isinstance(event, BlockStored)
        else event
        for event in events
    ]


def test_hashes_events_and_hits_are_vllms(vllm: VLLMWorker, vllm_settings: dict[str, int]) -> None:
    """210 requests and a reset: the same hashes, the same events in the same order, the same cached tokens."""
    already = len(replay(vllm))
    vllm.call("/reset_prefix_cache", {})
    cache = PrefixCache(
        vllm_settings["num_gpu_blocks"] - 1, BlockHasher(BLOCK_SIZE, seed="0"), enable_events=True, merge_copies=False
    )
    cache.reset()
    ours: list[KVCacheEvent] = []
    most_copies = 0
    for number, prompt in enumerate(prompts(random.Random(11))):
        cached, answer = ask(vllm, prompt)
        assert len(answer) == prompt.max_tokens
        assert compute(cache, prompt, answer, vllm_settings["max_num_batched_tokens"]) == cached, (number, prompt)
        if number == REQUESTS // 2:
            vllm.call("/reset_prefix_cache", {})
            cache.reset()
        ours += as_published(cache.take_events())
        most_copies = max([most_copies, *Counter(block.block_hash for block in cache.pool.cached_blocks()).values()])
        cache.check_integrity()
    theirs = published(vllm, already + len(ours))[already:]
    for number, (our, their) in enumerate(zip_longest(ours, theirs)):
        assert our == their, number
    seen = cache.statistics()
    kinds = Counter(type(event) for event in ours)
    assert kinds[AllBlocksCleared] == 2
    assert kinds[BlockRemoved] > 300
    assert kinds[BlockStored] > 200
    assert seen.hits > 5000
    assert most_copies > 1
