"""Block hashes are vLLM's, bit for bit."""

import array
import asyncio
import hashlib
import json
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword import hash_request_tokens
from foreword.core.extra_keys import CacheKeys, MultiModalItem, PromptEmbeds
from foreword.core.hashing import BlockHasher, HashAlgorithm, event_hash, signed_event_hash
from foreword.errors import ConfigError
from foreword.tokens.tokenizer import TokenIds

VECTORS = json.loads(Path(__file__).with_name("vllm_0_32_block_hashes.json").read_text())

# The sizes at which pickle changes an int's opcode, and their neighbours.
EDGES = [0, 1, 254, 255, 256, 257, 65534, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, 2**200]
IDS = st.one_of(st.integers(0, 200_000), st.integers(0, 300), st.sampled_from(EDGES), st.integers(-(2**40), 2**70))


def vllm_hashes(
    token_ids: list[int], block_size: int, keys: Any = (None,), none_hash: bytes | None = None
) -> list[bytes]:
    """VLLM's rule written out: ``keys`` are of the first blocks, and the last of them of all others."""
    parent = none_hash or hashlib.sha256(pickle.dumps("vllm-none-hash", protocol=5)).digest()
    hashes = []
    for i in range(len(token_ids) // block_size):
        block = (parent, tuple(token_ids[i * block_size : (i + 1) * block_size]), keys[min(i, len(keys) - 1)])
        parent = hashlib.sha256(pickle.dumps(block, protocol=5)).digest()
        hashes.append(parent)
    return hashes


@pytest.mark.parametrize(
    "case", VECTORS["cases"], ids=lambda c: f"{c['algo']}-{c['seed']}-{c['prompt']}-{c['block_size']}"
)
def test_every_vector_of_vllm_matches(case: dict[str, Any]) -> None:
    """None hash, block hashes and event integers are those the engine computed."""
    lora = case["lora"] and tuple(case["lora"])
    token_ids = VECTORS["prompts"][case["prompt"]]
    hashes = hash_request_tokens(token_ids, case["block_size"], case["algo"], case["cache_salt"], lora, case["seed"])
    assert BlockHasher(16, case["algo"], seed=case["seed"]).none_hash.hex() == case["none_hash"]
    assert [block_hash.hex() for block_hash in hashes] == case["expected"]
    assert [event_hash(block_hash) for block_hash in hashes] == case["event_ints"]


def test_there_are_eighty_vectors() -> None:
    """All of them are looked at, over all algorithms."""
    assert len(VECTORS["cases"]) == 80
    assert {case["algo"] for case in VECTORS["cases"]} == set(HashAlgorithm)


@given(ids=st.lists(IDS, max_size=200), block_size=st.integers(1, 40))
def test_any_ids_hash_as_their_pickle(ids: list[int], block_size: int) -> None:
    """Frames and pickle give the same bytes for ints of every width and blocks of every size."""
    assert hash_request_tokens(ids, block_size) == vllm_hashes(ids, block_size)


@given(
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=64, max_size=200), name=st.text(), path=st.text(), salt=st.text()
)
def test_extra_keys_hash_as_their_pickle(ids: list[int], name: str, path: str, salt: str) -> None:
    """LoRA is in every block, the salt in the first; equal strings count as strings of their own."""
    lora = ("lora", *((text + " ")[:-1] for text in (name, path)))
    first = (lora, ("cache_salt", (salt + " ")[:-1])) if salt else (lora,)
    assert hash_request_tokens(ids, 16, lora=(name, path), cache_salt=salt) == vllm_hashes(ids, 16, [first, (lora,)])


@pytest.mark.parametrize("block_size", [3, 4, 64, 3000, 4096, 4097, 8192, 8193, 13_107, 13_108, 21_845, 40_000])
@pytest.mark.parametrize("token_id", [7, 300, 70_000, 2**31])
def test_blocks_around_the_pickle_frame_size_hash_as_their_pickle(block_size: int, token_id: int) -> None:
    """Pickle ends a frame at 64 KiB; blocks shorter and longer than that are right."""
    ids = [token_id] * (2 * block_size + 1)
    assert hash_request_tokens(ids, block_size) == vllm_hashes(ids, block_size)


@pytest.mark.parametrize("length", [8_000, 8_300, 65_000, 66_000, 200_000])
def test_huge_extra_keys_hash_as_their_pickle(length: int) -> None:
    """A LoRA path of any length is right."""
    key = (("lora", "name", "/" * length),)
    assert hash_request_tokens(list(range(96)), 16, lora=("name", "/" * length)) == vllm_hashes(
        list(range(96)), 16, [key]
    )


def test_a_hash_does_not_depend_on_who_made_the_strings() -> None:
    """Pickle would write the second use of one string object as a reference to the first."""
    name = "adapter"
    assert hash_request_tokens(range(32), 16, lora=(name, name)) == hash_request_tokens(
        range(32), 16, lora=(name, "adap" + name[4:])
    )


@pytest.mark.parametrize(
    "make", [tuple, TokenIds.of, lambda ids: array.array("I", ids), lambda ids: array.array("q", ids)]
)
def test_any_sequence_of_ints_gives_the_same_hashes(make: Any) -> None:
    """Lists, tuples, arrays and id buffers."""
    ids = [i * 37 % 70_000 for i in range(5000)]
    assert hash_request_tokens(make(ids), 16) == vllm_hashes(ids, 16)


def test_numpy_ids_give_the_same_hashes() -> None:
    """An array's items are no plain ints, nor are a list's that was made from one."""
    numpy = pytest.importorskip("numpy")
    ids = numpy.arange(5000, dtype=numpy.uint32) * 13
    expected = vllm_hashes(ids.tolist(), 16)
    assert hash_request_tokens(ids, 16) == expected
    assert hash_request_tokens(list(ids), 16) == expected


def test_bools_count_as_the_ints_they_equal() -> None:
    """True is the token 1."""
    assert hash_request_tokens([True, False] * 16, 16) == vllm_hashes([1, 0] * 16, 16)


def test_ids_that_are_no_ints_are_refused() -> None:
    """A float is not silently hashed."""
    with pytest.raises(TypeError, match="integer"):
        hash_request_tokens([1.5] * 16, 16)  # type: ignore[list-item]


def test_only_full_blocks_are_hashed() -> None:
    """What is over waits until its block fills."""
    assert [len(hash_request_tokens(range(n), 16)) for n in (0, 15, 16, 17, 31, 32)] == [0, 0, 1, 1, 1, 2]


@given(cuts=st.lists(st.integers(0, 600), max_size=8), lora=st.sampled_from([None, ("a", "/a")]))
def test_hashes_extended_as_blocks_fill_are_those_of_the_whole(cuts: list[int], lora: tuple[str, str] | None) -> None:
    """Decoding adds tokens a few at a time; earlier hashes are never computed again nor changed."""
    ids, keys, hasher = list(range(600)), CacheKeys("salt", lora), BlockHasher(16)
    hashes: list[bytes] = []
    for cut in [*sorted(cuts), 600]:
        hasher.extend(hashes, ids[:cut], keys)
    assert hashes == hasher.hash_tokens(ids, keys)


def test_multimodal_items_are_in_the_blocks_they_touch() -> None:
    """An item's key holds its offset from the block's start, negative in later blocks; vLLM's worked example."""
    items = (MultiModalItem("img-1", 5, 20), MultiModalItem("img-2", 28, 2))
    expected = [
        (("mm", "img-1", 5),),
        (("mm", "img-1", -11), ("mm", "img-2", 12)),
        None,
    ]  # fmt: skip
    assert hash_request_tokens(range(48), 16, mm=items) == vllm_hashes(list(range(48)), 16, expected)


def test_prompt_embeddings_count_by_their_digest() -> None:
    """Each block has the SHA-256 of its own rows; generated blocks have that of no bytes."""
    data = bytes(range(250)) * 2
    embeds = PromptEmbeds(data, 10)
    digests = [hashlib.sha256(data[i * 160 : (i + 1) * 160]).digest() for i in range(5)]
    expected = [(("prompt_embeds", digest),) for digest in digests]
    assert hash_request_tokens([0] * 80, 16, prompt_embeds=embeds) == vllm_hashes([0] * 80, 16, expected)
    assert digests[4] == hashlib.sha256(b"").digest()


def test_keys_of_all_kinds_come_in_the_engines_order() -> None:
    """LoRA, multi-modal items, salt, embeddings."""
    keys = CacheKeys("salt", ("name", "/path"), (MultiModalItem("img", 0, 4),), PromptEmbeds(b"x" * 16, 1))
    assert keys.of_block(0, 16) == (
        ("lora", "name", "/path"),
        ("mm", "img", 0),
        ("cache_salt", "salt"),
        ("prompt_embeds", hashlib.sha256(b"x" * 16).digest()),
    )


def test_older_engines_hash_bare_keys() -> None:
    """Before 0.32 the values had no tags, and the LoRA path did not count."""
    expected = [("name", ("img", 3), "salt"), ("name",)]
    hashes = hash_request_tokens(
        range(32), 16, "sha256", "salt", ("name", "/path"), mm=[MultiModalItem("img", 3, 4)], tagged=False
    )
    assert hashes == vllm_hashes(list(range(32)), 16, expected)


def test_a_random_seed_is_drawn_for_hashes_that_can_be_forged() -> None:
    """Without a seed, two xxhash hashers disagree and one agrees with itself; sha256 hashers all agree."""
    one, other = BlockHasher(4, "xxhash"), BlockHasher(4, "xxhash")
    assert one.hash_tokens(range(8)) == one.hash_tokens(range(8))
    assert one.hash_tokens(range(8)) != other.hash_tokens(range(8))
    assert BlockHasher(4).none_hash == BlockHasher(4).none_hash


def test_event_hashes_are_the_low_64_bits() -> None:
    """Unsigned in ZMQ events, the same bits signed in gRPC ones."""
    block_hash = bytes(24) + b"\xff" * 7 + b"\xfe"
    assert event_hash(block_hash) == 2**64 - 2
    assert signed_event_hash(block_hash) == -2


def test_an_unknown_algorithm_is_refused() -> None:
    """The error names those there are."""
    with pytest.raises(ConfigError, match=r"'md5'\. Use one of sha256, sha256_cbor, xxhash, xxhash_cbor\."):
        hash_request_tokens([], 16, "md5")


@pytest.mark.parametrize("block_size", [0, -1])
def test_a_block_of_no_tokens_is_refused(block_size: int) -> None:
    """A block has one token at least."""
    with pytest.raises(ConfigError, match="is none"):
        BlockHasher(block_size)


@pytest.mark.parametrize("library, algorithm", [("cbor2", "sha256_cbor"), ("xxhash", "xxhash")])
def test_a_missing_library_is_named(library: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install; the default algorithm needs nothing."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"needs the library {library}.*foreword\[hashing\]"):
        BlockHasher(16, algorithm)
    assert BlockHasher(16).hash_tokens(range(16))


def longest_piece(pieces: Iterator[list[bytes]]) -> float:
    """Seconds the slowest step of an iterator took, in CPU time of this thread."""
    longest = 0.0
    while True:
        start = time.thread_time()
        if next(pieces, None) is None:
            return longest
        longest = max(longest, time.thread_time() - start)


@pytest.mark.parametrize("block_size", [1, 2, 16, 32, 128])
def test_no_piece_of_a_long_prompt_blocks_an_event_loop(block_size: int) -> None:
    """A 32k-token prompt is hashed in pieces under 2 ms each; the best of five, as others use the machine too."""
    ids = TokenIds.of([i * 7919 % 128_000 for i in range(32_768)])
    hasher = BlockHasher(block_size)
    assert min(longest_piece(hasher.slices(ids)) for _ in range(5)) < 0.002


async def test_an_event_loop_runs_between_pieces() -> None:
    """Another task gets a turn after each piece, and the hashes are those of one go."""
    ids, hasher, turns = list(range(32_768)), BlockHasher(16), 0
    hashes: list[bytes] = []

    async def other() -> None:
        nonlocal turns
        while len(hashes) < 2048:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for piece in hasher.slices(ids):
        hashes += piece
        await asyncio.sleep(0)
    await task
    assert turns >= 8
    assert hashes == hasher.hash_tokens(ids)
