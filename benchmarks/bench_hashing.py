"""Request hashing (sha256, block 16) against vLLM's own code and against a bare loop of pickle and SHA-256."""

from __future__ import annotations

import hashlib
import pickle
import random
from functools import partial

from benchmarks import vllm_hashing
from benchmarks.table import Row, compare, interleave
from foreword.core.hashing import BlockHasher

BLOCK_SIZE = 16
NUM_TOKENS = 32_768
VOCABULARIES = {"SmolLM2": 49_152, "Llama 3": 128_256}


def bare_loop(token_ids: list[int], none_hash: bytes) -> list[bytes]:
    """The least that hashing block by block can be."""
    parent, hashes = none_hash, []
    for i in range(0, len(token_ids), BLOCK_SIZE):
        block = (parent, tuple(token_ids[i : i + BLOCK_SIZE]), None)
        parent = hashlib.sha256(pickle.dumps(block, protocol=5)).digest()
        hashes.append(parent)
    return hashes


def rows() -> list[Row]:
    """Microseconds a block, for ids drawn evenly from vocabularies of two sizes: the larger, the wider the ids."""
    hasher, vllm = BlockHasher(BLOCK_SIZE), vllm_hashing.request_hasher(BLOCK_SIZE)
    found = []
    for name, size in VOCABULARIES.items():
        ids = random.Random(size).choices(range(size), k=NUM_TOKENS)
        bare = partial(bare_loop, ids, hasher.none_hash)
        ours = partial(hasher.hash_tokens, ids)
        if not ours() == vllm(ids) == bare():
            raise AssertionError("The hashes differ.")
        for peer_name, target, peer in (
            (f"vLLM {vllm_hashing.VERSION}", 1.2, partial(vllm, ids)),
            ("pickle and SHA-256", 1.0, bare),
        ):
            times = interleave(ours, peer, rounds=31)
            title = f"hash a block of {BLOCK_SIZE}, {name} vocabulary"
            scale = 1e6 * BLOCK_SIZE / NUM_TOKENS
            found.append(compare(title, *times, peer_name=peer_name, target=target, unit="us", scale=scale))
    return found
