"""Block hashes, bit for bit vLLM's: ``hash = H(parent hash or NONE_HASH, token ids, extra keys)`` for each full block.

A block's hash stands for every token up to its end, so equal hashes mean equal prefixes. The algorithms are vLLM's
``--prefix-caching-hash-algo`` (vllm/utils/hashing.py); their values are held by vectors taken from vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from operator import index
from typing import Any, Protocol

from foreword.core.block_pickle import PICKLE_PROTOCOL, frame, is_regular, split_ids
from foreword.core.extra_keys import NO_KEYS, CacheKeys, ExtraKeys, MultiModalItem, PromptEmbeds, untag
from foreword.errors import ConfigError

_DEFAULT_SEED = "vllm-none-hash"
_SLICE_IDS = 4096  # about half a millisecond's work
_SLICE_BLOCKS = 256


class _Hash(Protocol):
    def digest(self) -> bytes: ...


class HashAlgorithm(StrEnum):
    """How the tuple becomes bytes, and bytes a digest. The ``xxhash`` forms are fast and not collision resistant."""

    SHA256 = "sha256"
    SHA256_CBOR = "sha256_cbor"
    XXHASH = "xxhash"
    XXHASH_CBOR = "xxhash_cbor"

    @property
    def is_cryptographic(self) -> bool:
        """Whether nobody can make two prompts of one hash."""
        return self in (HashAlgorithm.SHA256, HashAlgorithm.SHA256_CBOR)

    @property
    def uses_pickle(self) -> bool:
        """Whether the tuple is pickled; canonical CBOR otherwise."""
        return self in (HashAlgorithm.SHA256, HashAlgorithm.XXHASH)


class BlockHasher:
    """Hashes the blocks of any number of requests under one block size, algorithm and seed. Never changes.

    Args:
        block_size: tokens a block.
        algorithm: a :class:`HashAlgorithm` or its name.
        seed: PYTHONHASHSEED of the engine to agree with; None when it has none. Without a seed the ``xxhash`` forms
            draw a random one, as engines do, so that nobody can prepare collisions: keep the hasher.
        tagged: extra keys as vLLM 0.32 hashes them; False for the bare values of older releases.

    Raises:
        ConfigError: an unknown algorithm, one whose library is not installed, or a block size below 1.
    """

    def __init__(
        self, block_size: int, algorithm: str = HashAlgorithm.SHA256, *, seed: str | None = None, tagged: bool = True
    ) -> None:
        if block_size < 1:
            raise ConfigError(f"A block of {block_size} tokens is none.", hint="Use 16, as engines do.")
        self.block_size = block_size
        self.algorithm = _algorithm(algorithm)
        self.tagged = tagged
        self._serialize = _serializer(self.algorithm)
        self._hash = _hash_function(self.algorithm)
        if seed is None:
            seed = _DEFAULT_SEED if self.algorithm.is_cryptographic else os.urandom(32).hex()
        self.none_hash = self._hash(self._serialize(seed)).digest()
        self._has_frames = self.algorithm.uses_pickle and is_regular(block_size)
        self._slice_blocks = max(1, min(_SLICE_BLOCKS, _SLICE_IDS // block_size))

    def hash_block(self, parent: bytes | None, token_ids: Sequence[int], extra_keys: ExtraKeys | None = None) -> bytes:
        """The hash of one block; ``parent`` is None for a first block, ``extra_keys`` are in the form to be hashed."""
        block = (parent or self.none_hash, _plain_ints(token_ids), extra_keys)
        return self._hash(self._serialize(block)).digest()

    def hash_tokens(self, token_ids: Sequence[int], keys: CacheKeys = NO_KEYS) -> list[bytes]:
        """The hash of every full block, first to last."""
        hashes: list[bytes] = []
        self.extend(hashes, token_ids, keys)
        return hashes

    def extend(self, hashes: list[bytes], token_ids: Sequence[int], keys: CacheKeys = NO_KEYS) -> None:
        """Append to ``hashes``, which are those of the first blocks, the hashes of the full blocks after them."""
        for piece in self.slices(token_ids, keys, hashes=hashes):
            hashes += piece

    def slices(
        self, token_ids: Sequence[int], keys: CacheKeys = NO_KEYS, *, hashes: Sequence[bytes] = ()
    ) -> Iterator[list[bytes]]:
        """The hashes of the full blocks after those of ``hashes``, in pieces that take a millisecond at most.

        An event loop takes a piece, lets others run, and takes the next::

            for piece in hasher.slices(token_ids):
                hashes += piece
                await asyncio.sleep(0)
        """
        if hasattr(token_ids, "tolist"):  # arrays of any make, whose items may be no plain ints
            token_ids = token_ids.tolist()
        size, start, parent = self.block_size, len(hashes), hashes[-1] if hashes else self.none_hash
        num_full_blocks = len(token_ids) // size
        while start < num_full_blocks:
            alone = keys.vary_by_block or start == 0
            stop = min(start + (1 if alone else self._slice_blocks), num_full_blocks)
            extra_keys = keys.of_block(start * size, start * size + size)
            piece = self._hash_run(
                parent, token_ids[start * size : stop * size], extra_keys if self.tagged else untag(extra_keys)
            )
            yield piece
            start, parent = stop, piece[-1]

    def _hash_run(self, parent: bytes, ids: Sequence[int], extra_keys: ExtraKeys | None) -> list[bytes]:
        """Hash neighbouring blocks with equal extra keys, by frames where that gives pickle's bytes."""
        size, new_hash = self.block_size, self._hash
        if len(ids) > size and self._has_frames:
            around, blocks = frame(size, len(parent), extra_keys), split_ids(ids, size)
            if around and blocks:
                heads, begin, end, join = around.heads, around.begin, around.end, b"".join
                return [parent := new_hash(join((heads[len(b)], parent, begin, b, end))).digest() for b in blocks]
        return [parent := self.hash_block(parent, ids[i : i + size], extra_keys) for i in range(0, len(ids), size)]


def hash_request_tokens(  # noqa: PLR0917  the published signature
    token_ids: Sequence[int],
    block_size: int,
    algorithm: str = HashAlgorithm.SHA256,
    cache_salt: str | None = None,
    lora: tuple[str, str] | None = None,
    seed: str | None = None,
    *,
    mm: Sequence[MultiModalItem] = (),
    prompt_embeds: PromptEmbeds | None = None,
    tagged: bool = True,
) -> list[bytes]:
    """The hashes of a request's full blocks, as vLLM computes them.

    Args:
        token_ids: any sequence of ints.
        block_size: tokens a block.
        algorithm: a :class:`HashAlgorithm` or its name.
        cache_salt: the request's salt.
        lora: the adapter's name and path.
        seed: the engine's PYTHONHASHSEED; see :class:`BlockHasher` for what None means.
        mm: multi-modal items in the order of their offsets.
        prompt_embeds: embeddings in place of token ids.
        tagged: extra keys as vLLM 0.32 hashes them; False for older releases.

    Raises:
        ConfigError: see :class:`BlockHasher`.
    """
    keys = CacheKeys(cache_salt, lora, tuple(mm), prompt_embeds)
    return BlockHasher(block_size, algorithm, seed=seed, tagged=tagged).hash_tokens(token_ids, keys)


def event_hash(block_hash: bytes) -> int:
    """A block hash as ZMQ events carry it: the low 64 bits, unsigned."""
    return int.from_bytes(block_hash[-8:], "big")


def signed_event_hash(block_hash: bytes) -> int:
    """A block hash as gRPC events carry it: the low 64 bits, signed."""
    return int.from_bytes(block_hash[-8:], "big", signed=True)


def _plain_ints(token_ids: Sequence[int]) -> tuple[int, ...]:
    """The ids as ints and nothing that merely passes for one, whose pickle would be another."""
    ids = tuple(token_ids)
    return ids if set(map(type, ids)) <= {int} else tuple(int(index(token_id)) for token_id in ids)


def _algorithm(name: str) -> HashAlgorithm:
    try:
        return HashAlgorithm(name)
    except ValueError:
        raise ConfigError(
            f"There is no block hash algorithm {name!r}.",
            hint=f"Use one of {', '.join(HashAlgorithm)}.",
            algorithm=name,
        ) from None


def _serializer(algorithm: HashAlgorithm) -> Callable[[Any], bytes]:
    if algorithm.uses_pickle:
        return lambda value: pickle.dumps(value, protocol=PICKLE_PROTOCOL)
    try:
        import cbor2  # noqa: PLC0415  an optional library, needed by this algorithm only
    except ImportError:
        raise _missing(algorithm, "cbor2") from None
    return lambda value: cbor2.dumps(value, canonical=True)


def _hash_function(algorithm: HashAlgorithm) -> Callable[[bytes], _Hash]:
    if algorithm.is_cryptographic:
        return hashlib.sha256
    try:
        import xxhash  # noqa: PLC0415  an optional library, needed by this algorithm only
    except ImportError:
        raise _missing(algorithm, "xxhash") from None
    return xxhash.xxh3_128


def _missing(algorithm: HashAlgorithm, library: str) -> ConfigError:
    return ConfigError(
        f"The block hash algorithm {algorithm} needs the library {library}, which is not installed.",
        hint='Install it with: pip install "foreword[hashing]".',
        library=library,
    )
