"""The engine, step by step, and ``LLM``, which runs it to the end.

from foreword import LLM, SamplingParams
outputs = LLM("SmolLM2-135M-Instruct.Q4_1.gguf").generate([[1, 4093, 198]], SamplingParams(temperature=0))
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from foreword.core.cache_request import Emptied
from foreword.core.hashing import BlockHasher, HashAlgorithm
from foreword.core.prefix_cache import PrefixCache
from foreword.core.retention import DAY, Retention
from foreword.engine.disk_tier import DiskTier, open_store
from foreword.engine.kv_cache import KVCache
from foreword.engine.model import Chunk, LlamaModel
from foreword.engine.requests import check_request, sequence_of
from foreword.engine.scheduler import ScheduledChunk, Scheduler, SchedulerStatistics
from foreword.engine.sequence import Sequence
from foreword.engine.threads import ComputeThreads, usable_cores
from foreword.engine.tiles import TILE_ROWS
from foreword.engine.weights import Array, ModelConfig, TensorSource, load_weights, model_digest, open_model
from foreword.errors import ConfigError, IntegrityError, ModelError, WorkerError
from foreword.generation import FinishReason, GenerateOutput, GenerateRequest, SamplingParams, TokenLogprobs

_PAUSE = 1e-4
"""Seconds after which a waiting thread has surely taken over; without a pause this one would go on before it wakes."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine uses the machine.

    Attributes:
        max_model_len: prompt and answer together; None takes the model's context length. Cut to what the KV cache holds.
        max_num_seqs: sequences computed together at most.
        max_num_batched_tokens: tokens computed in one step at most; a longer prompt is computed in chunks.
        block_size: tokens in a KV block.
        kv_cache_memory: bytes for keys and values.
        num_threads: cores used for arithmetic.
        retention: how long cached prefixes are kept; by default until their blocks are needed.
        prefix_caching_hash_algo: of block hashes, as vLLM names them.
        hash_seed: PYTHONHASHSEED of the engines whose hashes these must equal.
        prompt_cache_disk: folder for the prefixes of requests that ask for 24 hours; without it memory keeps those as
            long as it can.
        prompt_cache_disk_max_bytes: bytes in that folder at most.
        enable_kv_cache_events: collect KV events for ``take_events``.

    Raises:
        ConfigError: a number that is out of range.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    block_size: int = 16
    kv_cache_memory: int = 1 << 30
    num_threads: int = min(2, usable_cores())
    retention: Retention = field(default_factory=Retention)
    prefix_caching_hash_algo: str = HashAlgorithm.SHA256
    hash_seed: str | None = None
    prompt_cache_disk: Path | None = None
    prompt_cache_disk_max_bytes: int = 4 << 30
    enable_kv_cache_events: bool = False

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("max_num_seqs", self.max_num_seqs, TILE_ROWS),
            ("max_num_batched_tokens", self.max_num_batched_tokens, None),
            ("block_size", self.block_size, None),
            ("num_threads", self.num_threads, None),
        ):
            if value < 1 or (limit is not None and value > limit):
                raise ConfigError(
                    f"{name} is {value}.", hint=f"It must be 1 to {limit}." if limit else "It must be 1 or more."
                )


def kv_blocks(model: ModelConfig, config: EngineConfig) -> int:
    """Blocks that the memory allowed holds; raises ModelError if that is not even one."""
    size = KVCache.block_bytes(model, config.block_size)
    if config.kv_cache_memory < size:
        raise ModelError(
            f"A KV cache of {config.kv_cache_memory:,} bytes holds no block.", hint=f"Give it {size:,} or more."
        )
    return config.kv_cache_memory // size


def effective_max_model_len(model: ModelConfig, config: EngineConfig) -> int:
    """Longest sequence: the model's context, the configured limit or what the KV cache holds, whichever is least."""
    limit = config.max_model_len or model.max_position_embeddings
    return min(limit, model.max_position_embeddings, kv_blocks(model, config) * config.block_size)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that could not be carried on, and why."""

    request_id: str
    error: WorkerError


StepOutput = GenerateOutput | Failure


class LLMEngine:
    """Continuous batching over one model. Synchronous, not thread-safe: one thread calls everything.

    ``clock`` gives the time in seconds by which prefixes in memory age, ``wall_clock`` that by which those on disk do.
    """

    def __init__(
        self,
        source: TensorSource,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        config = config or EngineConfig()
        self._clock = clock
        self.model_config = source.config
        self.max_model_len = effective_max_model_len(source.config, config)
        num_blocks = kv_blocks(source.config, config)
        self._threads = ComputeThreads(config.num_threads)
        kv_cache = KVCache(source.config, num_blocks, config.block_size)
        weights = load_weights(source, num_threads=config.num_threads)
        self.model = LlamaModel(weights, kv_cache, self._threads, self.max_model_len)
        self.prefix_cache = PrefixCache(
            num_blocks,
            BlockHasher(config.block_size, config.prefix_caching_hash_algo, seed=config.hash_seed),
            retention=config.retention,
            enable_events=config.enable_kv_cache_events,
        )
        self.disk = _open_disk(source, config, kv_cache, self.prefix_cache, wall_clock)
        self._scheduler = Scheduler(
            self.prefix_cache,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            can_restore=self.disk.can_restore if self.disk is not None else None,
        )
        self._sequences: dict[str, Sequence] = {}

    def add(self, request: GenerateRequest) -> None:
        """Queue a request; raises RequestError or ContextOverflow."""
        check_request(request, self.model_config.vocab_size, self.max_model_len, taken=self._sequences)
        sequence = sequence_of(request, self.model_config.eos_token_ids, self.max_model_len)
        self._hash(sequence)
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def _hash(self, sequence: Sequence) -> None:
        """Hash a prompt in pieces, and let other threads run after each: an event loop waits for the interpreter too."""
        cache = sequence.cache
        for piece in self.prefix_cache.hasher.slices(cache.token_ids, cache.keys):
            cache.block_hashes += piece
            time.sleep(_PAUSE)

    def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds; one that is unknown or has ended is passed over."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.free(sequence, self._clock())

    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._sequences)

    def step(self) -> list[StepOutput]:
        """Compute one batch. A fault in it fails the requests that were in the batch and no others."""
        if self.disk is not None:
            for sequence in self._scheduler.restorable():
                self.disk.restore(sequence.cache, self._clock())
        chunks = self._scheduler.schedule(self._clock())
        if not chunks:
            return []
        try:
            logits = self.model.forward([_model_chunk(chunk) for chunk in chunks])
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the other requests go on
            return [self._fail(chunk.sequence, error) for chunk in chunks]
        completed = [chunk.sequence for chunk in chunks if chunk.completes]
        self._scheduler.commit(chunks, self._clock())
        self._save([chunk.sequence for chunk in chunks])
        return [self._sample(sequence, row) for sequence, row in zip(completed, logits, strict=True)]

    def _sample(self, sequence: Sequence, logits: Array) -> StepOutput:
        if not sequence.num_output_tokens:
            self._pin(sequence)
        try:
            token_id, logprobs = sequence.sampler.sample(logits)
        except Exception as error:  # noqa: BLE001 - a fault in one request's sampling is that request's alone
            return self._fail(sequence, error)
        sequence.token_ids.append(token_id)
        reason = sequence.finish_reason()
        if reason is not None:
            self.abort(sequence.request_id)
        return _output(sequence, reason, logprobs)

    def _pin(self, sequence: Sequence) -> None:
        """Keep the prefixes that the request asks to be kept; every request that uses them asks anew."""
        now = self._clock()
        for breakpoint_ in sequence.request.breakpoints:
            self.prefix_cache.pin(sequence.cache, breakpoint_.num_tokens, now + breakpoint_.seconds)
        if sequence.request.retention == "24h" and self.disk is None:
            self.prefix_cache.pin(sequence.cache, sequence.num_prompt_tokens, now + DAY)

    def _save(self, sequences: SequenceOf[Sequence]) -> None:
        """Have what 24 hours were asked for written to disk."""
        if self.disk is not None:
            for sequence in sequences:
                if sequence.request.retention == "24h":
                    self.disk.save(sequence)

    def reset_prefix_cache(self, organisation: str | None = None, cache_salt: str | None = None) -> Emptied:
        """Forget everything, or what belongs to an organisation, a salt, or both, in memory and on disk."""
        emptied = self.prefix_cache.reset(organisation=organisation, cache_salt=cache_salt)
        if self.disk is None:
            return emptied
        on_disk = self.disk.store.reset(organisation=organisation, cache_salt=cache_salt)
        return replace(emptied, num_disk_blocks=on_disk)

    def _fail(self, sequence: Sequence, error: Exception) -> Failure:
        self.abort(sequence.request_id)
        failure = WorkerError(f"The engine failed on this request: {error!r}.", hint="Try again.")
        failure.__cause__ = error
        return Failure(sequence.request_id, failure)

    def close(self) -> None:
        """Drop every request, end the compute threads, and write out what is still to be on disk."""
        for request_id in list(self._sequences):
            self.abort(request_id)
        self._threads.close()
        if self.disk is not None:
            self.disk.store.close()

    def statistics(self) -> SchedulerStatistics:
        """How busy the engine is."""
        return self._scheduler.statistics()

    def check_integrity(self) -> None:
        """Raise RuntimeError unless queues, blocks and requests agree."""
        self._scheduler.check_integrity()
        if len(self._sequences) != len(self._scheduler.running) + len(self._scheduler.waiting):
            raise IntegrityError("A request neither runs nor waits.")


def _open_disk(
    source: TensorSource,
    config: EngineConfig,
    kv_cache: KVCache,
    prefix_cache: PrefixCache,
    clock: Callable[[], float],
) -> DiskTier | None:
    """The disk tier if one is configured and its folder can be had."""
    if config.prompt_cache_disk is None:
        return None
    hasher = prefix_cache.hasher
    parts = (
        model_digest(source),
        "float32",
        sys.byteorder,
        hasher.block_size,
        hasher.algorithm,
        hasher.none_hash.hex(),
    )
    store = open_store(
        config.prompt_cache_disk,
        model="/".join(map(str, parts)),
        block_bytes=kv_cache.bytes_per_block,
        max_bytes=config.prompt_cache_disk_max_bytes,
        clock=clock,
    )
    return None if store is None else DiskTier(store, kv_cache, prefix_cache)


def _model_chunk(chunk: ScheduledChunk) -> Chunk:
    sequence = chunk.sequence
    start = sequence.cache.num_computed_tokens
    return Chunk(
        token_ids=sequence.token_ids[start : start + chunk.num_tokens],
        start=start,
        block_table=[block.block_id for block in sequence.cache.block_table],
        wants_logits=chunk.completes,
    )


def _output(sequence: Sequence, reason: FinishReason | None, logprobs: TokenLogprobs | None) -> GenerateOutput:
    token_id = sequence.token_ids[-1]
    return GenerateOutput(
        request_id=sequence.request_id,
        token_ids=(token_id,),
        finish_reason=reason,
        stop_token_id=token_id if reason == "stop" else None,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        logprobs=None if logprobs is None else (logprobs,),
    )


class LLM:
    """A model in this process, for programs: prompts in, whole answers out.

    Raises ModelError when made if the weights cannot be loaded. A context manager; ``close`` ends its threads.
    """

    def __init__(self, model: str | Path, config: EngineConfig | None = None) -> None:
        self.engine = LLMEngine(open_model(Path(model)), config)

    def generate(
        self,
        prompts: SequenceOf[SequenceOf[int]],
        sampling: SamplingParams | SequenceOf[SamplingParams] | None = None,
    ) -> list[GenerateOutput]:
        """Answer every prompt, given as token ids; outputs in the prompts' order, each with all its tokens.

        ``sampling`` is one for all or one for each. Raises RequestError, ContextOverflow or WorkerError.
        """
        many = [sampling or SamplingParams()] * len(prompts) if not isinstance(sampling, SequenceOf) else sampling
        parts: dict[str, list[GenerateOutput]] = {str(index): [] for index in range(len(prompts))}
        with self._aborting(parts):
            for request_id, prompt, params in zip(parts, prompts, many, strict=True):
                self.engine.add(GenerateRequest(request_id, prompt, params))
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    if isinstance(output, Failure):
                        raise output.error
                    parts[output.request_id].append(output)
        return [_joined(outputs) for outputs in parts.values()]

    @contextmanager
    def _aborting(self, request_ids: SequenceOf[str] | dict[str, list[GenerateOutput]]) -> Iterator[None]:
        """Whatever ends the block, leave none of these requests behind."""
        try:
            yield
        finally:
            for request_id in request_ids:
                self.engine.abort(request_id)

    def close(self) -> None:
        """End the compute threads."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _joined(outputs: SequenceOf[GenerateOutput]) -> GenerateOutput:
    """One output with the tokens of all."""
    last = outputs[-1]
    logprobs = [entry for output in outputs for entry in output.logprobs or ()]
    return GenerateOutput(
        request_id=last.request_id,
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        num_prompt_tokens=last.num_prompt_tokens,
        num_cached_tokens=last.num_cached_tokens,
        logprobs=tuple(logprobs) if last.logprobs is not None else None,
    )
