"""Prefix caching in the engine: hits skip prefill and change no answer, whatever is chunked, preempted or evicted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from foreword.core.events import BlockRemoved, BlockStored
from foreword.core.hashing import BlockHasher
from foreword.core.retention import Retention
from foreword.engine.async_llm import AsyncLLM
from foreword.engine.kv_cache import KVCache
from foreword.engine.llm import LLM, EngineConfig, Failure, LLMEngine
from foreword.engine.weights import open_model
from foreword.generation import CacheBreakpoint, GenerateOutput, GenerateRequest, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=5)
ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


def ids(length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return [int(token) for token in np.random.default_rng(seed).integers(3, 97, length)]


class Counting:
    """An engine over the tiny model with blocks of 4, a clock of ours, and a count of the tokens it computes."""

    def __init__(
        self, tiny: Any, num_blocks: int = 200, *, wall_clock: Callable[[], float] = time.time, **changes: Any
    ) -> None:
        source = open_model(tiny.path)
        memory = num_blocks * KVCache.block_bytes(source.config, 4)
        self.now = 0.0
        self.computed = 0
        config = EngineConfig(block_size=4, kv_cache_memory=memory, **changes)
        self.engine = LLMEngine(source, config, clock=lambda: self.now, wall_clock=wall_clock)
        self._forward = self.engine.model.forward
        self.engine.model.forward = self._count  # type: ignore[method-assign]

    def _count(self, chunks: Any) -> Any:
        self.computed += sum(len(chunk.token_ids) for chunk in chunks)
        return self._forward(chunks)

    def add(self, name: str, prompt: list[int], params: SamplingParams = GREEDY, **more: Any) -> None:
        """Queue a request."""
        self.engine.add(GenerateRequest(name, prompt, params, **more))

    def run(self) -> dict[str, list[GenerateOutput]]:
        """Step to the end; every request's outputs."""
        outputs: dict[str, list[GenerateOutput]] = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                assert not isinstance(output, Failure), output
                outputs.setdefault(output.request_id, []).append(output)
            self.engine.check_integrity()
        return outputs

    def ask(self, prompt: list[int], params: SamplingParams = GREEDY, **more: Any) -> list[GenerateOutput]:
        """One request alone."""
        self.add("only", prompt, params, **more)
        return self.run()["only"]


@pytest.fixture
def make(tiny: Any) -> Iterator[Callable[..., Counting]]:
    """Make counting engines, closed afterwards."""
    made: list[Counting] = []

    def make_one(**changes: Any) -> Counting:
        made.append(Counting(tiny, **changes))
        return made[-1]

    yield make_one
    for counting in made:
        counting.engine.close()


@pytest.fixture(scope="module")
def cold(tiny: Any) -> Iterator[Callable[[list[int]], list[int]]]:
    """The greedy answer of an engine that never has a hit: every prompt comes under a salt of its own."""
    with LLM(tiny.path) as llm:

        def answer(prompt: list[int], count: int = 8) -> list[int]:
            params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
            name = f"{len(prompt)}-{hash(tuple(prompt))}"
            llm.engine.add(GenerateRequest(name, prompt, params, cache_salt=name))
            tokens: list[int] = []
            while llm.engine.has_unfinished_requests():
                for output in llm.engine.step():
                    assert not isinstance(output, Failure)
                    tokens += output.token_ids
            return tokens

        yield answer


def tokens(outputs: list[GenerateOutput]) -> list[int]:
    """All tokens of an answer."""
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("length, cached", [(3, 0), (4, 0), (5, 4), (44, 40), (45, 44)])
def test_a_repeated_prompt_computes_what_is_behind_its_last_full_block(
    make: Callable[..., Counting], length: int, cached: int
) -> None:
    """The second time all full blocks are found, but never the last token; only the rest is computed."""
    counting = make()
    first = counting.ask(ids(length), ONE)
    counting.computed = 0
    second = counting.ask(ids(length), ONE)
    assert {output.num_cached_tokens for output in first} == {0}
    assert {output.num_cached_tokens for output in second} == {cached}
    assert counting.computed == length - cached
    assert tokens(first) == tokens(second)


def test_logprobs_with_a_hit_equal_those_without(make: Callable[..., Counting]) -> None:
    """Every reported log probability agrees to 1e-4 with and without a hit."""
    counting = make()
    without = counting.ask(ids(150))
    with_hit = counting.ask(ids(150))
    assert with_hit[0].num_cached_tokens == 148
    for a, b in zip(without, with_hit, strict=True):
        assert a.logprobs is not None
        assert b.logprobs is not None
        assert dict(a.logprobs[0].top) == pytest.approx(dict(b.logprobs[0].top), abs=1e-4)


def test_blocks_filled_by_decoding_are_found(make: Callable[..., Counting]) -> None:
    """The next turn of a conversation finds the answer's blocks too."""
    counting = make()
    answer = tokens(counting.ask(ids(10)))
    (output, *_) = counting.ask(ids(10) + answer + ids(5, seed=1))
    assert output.num_cached_tokens == 16  # 10 + 7 computed tokens fill four blocks; the eighth's KV was never needed


def test_three_newcomers_compute_a_shared_prefix_once(
    make: Callable[..., Counting], cold: Callable[[list[int]], list[int]]
) -> None:
    """Requests that arrive together with one new prefix wait for the first to compute it."""
    counting = make(max_num_batched_tokens=16)
    prompts = [ids(160) + ids(6, seed=index) for index in (1, 2, 3)]
    for index, prompt in enumerate(prompts):
        counting.add(str(index), prompt, ONE)
    outputs = counting.run()
    assert counting.computed == 166 + 6 + 6
    assert [outputs[str(index)][0].num_cached_tokens for index in range(3)] == [0, 160, 160]
    assert [cold(prompt)[0] for prompt in prompts] == [tokens(outputs[str(index)])[0] for index in range(3)]


def test_a_waiter_starts_when_the_one_it_waits_for_is_aborted(make: Callable[..., Counting]) -> None:
    """An abort in the middle of a shared prefix leaves the waiter what was computed, and it computes the rest."""
    counting = make(max_num_batched_tokens=16)
    counting.add("first", [*ids(160), 5])
    counting.add("second", [*ids(160), 6], ONE)
    for _ in range(3):
        counting.engine.step()
    counting.engine.abort("first")
    (output,) = counting.run()["second"]
    assert output.num_cached_tokens == 48


def test_those_behind_a_waiter_are_not_held_up(make: Callable[..., Counting]) -> None:
    """A request with another prompt passes the one that waits for a prefix."""
    counting = make(max_num_batched_tokens=64)
    for name, prompt in (("first", ids(160)), ("waits", ids(160)), ("other", ids(20, seed=9))):
        counting.add(name, prompt, ONE)
    third_step = [counting.engine.step() for _ in range(3)][2]
    assert [output.request_id for output in third_step] == ["first", "other"]
    assert set(counting.run()) == {"waits"}


def test_salts_share_nothing(make: Callable[..., Counting]) -> None:
    """Under another salt, or none, a prompt is new."""
    counting = make()
    for salt in ("a", "b", None):
        assert counting.ask(ids(40), ONE, cache_salt=salt)[0].num_cached_tokens == 0
    for salt in ("a", "b", None):
        assert counting.ask(ids(40), ONE, cache_salt=salt)[0].num_cached_tokens == 36


def test_fifty_prompts_under_pressure_are_answered_as_cold(
    make: Callable[..., Counting], cold: Callable[[list[int]], list[int]]
) -> None:
    """Shared prefixes, small chunks, preemption and eviction all at once: greedy answers are those of a cold engine."""
    rng = np.random.default_rng(3)
    trunks = [ids(40, seed=100), ids(28, seed=101), ids(12, seed=102)]
    prompts = [trunks[rng.integers(3)][: rng.integers(1, 41)] + ids(int(rng.integers(1, 9)), seed=i) for i in range(50)]
    counting = make(num_blocks=32, max_num_batched_tokens=24, max_num_seqs=8)
    for index, prompt in enumerate(prompts):
        counting.add(str(index), prompt)
    answers = {name: tokens(outputs) for name, outputs in counting.run().items()}
    assert answers == {str(index): cold(prompt) for index, prompt in enumerate(prompts)}
    statistics = counting.engine.statistics()
    assert statistics.preemptions > 0
    assert statistics.prefix_cache.evicted > 0
    assert statistics.prefix_cache.hits > 0


def test_a_preempted_request_reports_its_first_hit(make: Callable[..., Counting]) -> None:
    """Finding its own blocks again after preemption does not make more of its prompt cached."""
    counting = make(num_blocks=14)
    for index in range(4):
        counting.add(str(index), ids(13, seed=index), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    outputs = counting.run()
    assert counting.engine.statistics().preemptions > 0
    assert {output.num_cached_tokens for answer in outputs.values() for output in answer} == {0}


def test_a_broken_step_leaves_nothing_wrong_behind(
    make: Callable[..., Counting], cold: Callable[[list[int]], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV of a step that failed half way is never found."""
    counting = make(max_num_batched_tokens=16)

    def broken(layer: int, *_: object) -> None:
        raise FloatingPointError(layer)

    counting.add("only", ids(60))
    counting.engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(counting.engine.model, "_feed_forward", broken)
        (failure,) = counting.engine.step()
    assert isinstance(failure, Failure)
    outputs = counting.ask(ids(60))
    assert outputs[0].num_cached_tokens == 16
    assert tokens(outputs) == cold(ids(60))


def test_idle_prefixes_expire(make: Callable[..., Counting]) -> None:
    """With an idle time of 300 s a prefix is found at 299 s, which refreshes it, and not 301 s later."""
    counting = make(retention=Retention(idle_seconds=300))
    counting.ask(ids(40), ONE)
    for now, cached in ((299.0, 36), (598.0, 36), (900.0, 0)):
        counting.now = now
        assert counting.ask(ids(40), ONE)[0].num_cached_tokens == cached


def test_breakpoints_outlive_idleness(make: Callable[..., Counting]) -> None:
    """A breakpoint keeps its prefix for its own time; what is behind it goes as always."""
    counting = make(retention=Retention(idle_seconds=300))
    counting.ask(ids(40), ONE, breakpoints=(CacheBreakpoint(20, 3600.0),))
    counting.now = 3000.0
    assert counting.ask(ids(40), ONE)[0].num_cached_tokens == 20


def test_events_tell_what_is_stored(make: Callable[..., Counting]) -> None:
    """Stored minus removed hashes are those a hasher gives the computed tokens, eviction included."""
    counting = make(num_blocks=12, enable_kv_cache_events=True)
    present: set[bytes] = set()
    for index in range(6):
        answer = counting.ask(ids(22, seed=index), ONE)
        for event in counting.engine.prefix_cache.take_events():
            if isinstance(event, BlockStored):
                present.update(h for h in event.block_hashes if isinstance(h, bytes))
            elif isinstance(event, BlockRemoved):
                present.difference_update(h for h in event.block_hashes if isinstance(h, bytes))
        assert set(BlockHasher(4).hash_tokens(ids(22, seed=index))) <= present
        assert answer[0].num_prompt_tokens == 22
    assert len(present) == counting.engine.statistics().prefix_cache.held


async def test_worker_is_inspected_and_reset(tiny: Any) -> None:
    """While it serves, the worker shows its hottest prefix, forgets on request, and publishes its events."""
    events: list[object] = []
    worker = AsyncLLM(tiny.path, model="tiny", config=EngineConfig(block_size=4), on_kv_events=events.extend)
    await worker.start()
    for name in "ab":
        outputs = [output async for output in worker.generate(GenerateRequest(name, ids(40), ONE))]
    assert outputs[-1].num_cached_tokens == 36
    report = await worker.inspect_prefix_cache(5)
    assert (report.block_size, report.hottest[0].token_ids[:36]) == (4, tuple(ids(40)[:36]))
    assert (await worker.reset_prefix_cache()).num_tokens == 40
    assert isinstance(events[0], BlockStored)
    outputs = [output async for output in worker.generate(GenerateRequest("c", ids(40), ONE))]
    assert outputs[-1].num_cached_tokens == 0
    await worker.stop()


class Traffic(RuleBasedStateMachine):
    """Requests of a few prompts come, go and are aborted in any order in a small cache."""

    tiny: Any
    answers: dict[tuple[int, ...], list[int]]
    cold: Callable[[list[int]], list[int]]

    @initialize(blocks=st.integers(14, 40), budget=st.integers(4, 40))
    def start(self, blocks: int, budget: int) -> None:
        """A new engine."""
        self.counting = Counting(self.tiny, blocks, max_num_batched_tokens=budget, max_num_seqs=4)
        self.asked: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.number = 0

    @rule(trunk=st.integers(0, 2), keep=st.integers(0, 30), tail=st.integers(1, 3))
    def add(self, trunk: int, keep: int, tail: int) -> None:
        """A request comes."""
        self.number += 1
        prompt = ids(30, seed=trunk)[:keep] + ids(6, seed=50 + tail)
        self.asked[str(self.number)] = prompt
        self.counting.add(str(self.number), prompt)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        """Some steps are computed."""
        for _ in range(steps):
            if self.counting.engine.has_unfinished_requests():
                for output in self.counting.engine.step():
                    assert not isinstance(output, Failure)
                    self.got.setdefault(output.request_id, []).extend(output.token_ids)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """A consumer leaves."""
        if self.asked:
            name = data.draw(st.sampled_from(sorted(self.asked)))
            self.counting.engine.abort(name)
            del self.asked[name]

    @rule()
    def reset(self) -> None:
        """An admin empties the cache."""
        self.counting.engine.prefix_cache.reset()

    @invariant()
    def integrity(self) -> None:
        """Queues, blocks and hashes agree."""
        if hasattr(self, "counting"):
            self.counting.engine.check_integrity()

    def teardown(self) -> None:
        """Everything that was not aborted is answered as a cold engine answers it."""
        if not hasattr(self, "counting"):
            return
        while self.counting.engine.has_unfinished_requests():
            self.step(6)
        for name, prompt in self.asked.items():
            if tuple(prompt) not in self.answers:
                self.answers[tuple(prompt)] = type(self).cold(prompt)
            assert self.got[name] == self.answers[tuple(prompt)]
        self.counting.engine.close()


def test_traffic(tiny: Any, cold: Callable[[list[int]], list[int]]) -> None:
    """No order of arrivals, steps, aborts and resets breaks integrity or changes an answer."""
    machine = type("TinyTraffic", (Traffic,), {"tiny": tiny, "answers": {}, "cold": staticmethod(cold)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
