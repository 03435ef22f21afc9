"""The engine: batching, chunking, preemption and abort never change what a request is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from foreword.engine.kv_cache import KVCache
from foreword.engine.llm import LLM, EngineConfig, Failure, LLMEngine, StepOutput
from foreword.engine.weights import open_model
from foreword.errors import ContextOverflow, ModelError, RequestError, WorkerError
from foreword.generation import GenerateRequest, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 97, length).tolist() for length in lengths]


def cache_of(tiny: Any, num_blocks: int, block_size: int = 4) -> EngineConfig:
    """A configuration with exactly that many blocks."""
    size = KVCache.block_bytes(open_model(tiny.path).config, block_size)
    return EngineConfig(block_size=block_size, kv_cache_memory=num_blocks * size)


@pytest.fixture
def make_engine(tiny: Any) -> Iterator[Callable[..., LLMEngine]]:
    """Engines over the tiny model, closed afterwards."""
    made: list[LLMEngine] = []

    def make(config: EngineConfig | None = None) -> LLMEngine:
        made.append(LLMEngine(open_model(tiny.path), config))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def add(answers: dict[str, list[int]], output: StepOutput) -> None:
    """Append a step's tokens to the answer they belong to."""
    assert not isinstance(output, Failure), output
    answers.setdefault(output.request_id, []).extend(output.token_ids)


def run(engine: LLMEngine) -> dict[str, list[int]]:
    """Step to the end, checking integrity after each step."""
    answers: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            add(answers, output)
        engine.check_integrity()
    return answers


def test_greedy_answers_equal_the_reference(tiny: Any) -> None:
    """Several prompts at once are continued as the float64 loops continue each alone."""
    asked = prompts(1, 7, 25, 3)
    with LLM(tiny.path) as llm:
        outputs = llm.generate(asked, GREEDY)
    assert [tiny.greedy(ids, 12) for ids in asked] == [list(output.token_ids) for output in outputs]
    assert [len(ids) for ids in asked] == [output.num_prompt_tokens for output in outputs]
    assert {"length"} == {output.finish_reason for output in outputs}


def test_chunks_and_company_change_nothing(tiny: Any, make_engine: Callable[..., LLMEngine]) -> None:
    """Six requests through a budget of five tokens a step, arriving while others decode, answer as alone."""
    asked = prompts(18, 2, 9, 21, 1, 6, seed=1)
    engine = make_engine(EngineConfig(max_num_batched_tokens=5, max_num_seqs=3))
    answers: dict[str, list[int]] = {}
    for index, ids in enumerate(asked):
        engine.add(GenerateRequest(str(index), ids, GREEDY))
        for output in engine.step():
            add(answers, output)
    for request_id, token_ids in run(engine).items():
        answers.setdefault(request_id, []).extend(token_ids)
    assert {str(index): tiny.greedy(ids, 12) for index, ids in enumerate(asked)} == answers


def test_preemption_changes_nothing(tiny: Any, make_engine: Callable[..., LLMEngine]) -> None:
    """In a cache too small for all, sequences are preempted and computed again, and every answer is whole."""
    asked = prompts(14, 13, 12, 15, seed=2)
    engine = make_engine(cache_of(tiny, 14))
    for index, ids in enumerate(asked):
        engine.add(GenerateRequest(str(index), ids, GREEDY))
    assert {str(index): tiny.greedy(ids, 12) for index, ids in enumerate(asked)} == run(engine)
    assert engine.statistics().preemptions > 0
    assert engine.statistics().prefix_cache.num_free == 14


def test_decoding_goes_on_beside_a_long_prefill(make_engine: Callable[..., LLMEngine]) -> None:
    """While a 400-token prompt is computed in chunks, the other request gets a token at every step."""
    engine = make_engine(EngineConfig(max_num_batched_tokens=64))
    (short, long) = prompts(4, 400)
    engine.add(GenerateRequest("short", short, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)))
    engine.step()
    engine.add(GenerateRequest("long", long, GREEDY))
    steps = 0
    while (names := [output.request_id for output in engine.step()]) == ["short"]:
        steps += 1
    assert names == ["short", "long"]
    assert steps >= 20


@pytest.mark.parametrize("after", [0, 1, 3], ids=["waiting", "in prefill", "decoding"])
def test_abort_frees_everything(make_engine: Callable[..., LLMEngine], after: int) -> None:
    """An aborted request gives its blocks back, whatever state it is in; aborting twice is no error."""
    engine = make_engine(EngineConfig(max_num_batched_tokens=8))
    engine.add(GenerateRequest("a", prompts(12)[0], GREEDY))
    for _ in range(after):
        engine.step()
    engine.abort("a")
    engine.abort("a")
    engine.check_integrity()
    assert not engine.has_unfinished_requests()
    assert engine.statistics().kv_usage == 0


def test_seeded_answers_do_not_depend_on_company(tiny: Any) -> None:
    """A seed gives the same tokens alone, in company, and in another order; other seeds give other tokens."""
    (ids,) = prompts(9)
    many = [SamplingParams(temperature=1.5, seed=seed, max_tokens=20, ignore_eos=True) for seed in (1, 2, 3, 1)]
    with LLM(tiny.path) as llm:
        alone = [llm.generate([ids], params)[0].token_ids for params in many]
        together = [output.token_ids for output in llm.generate([ids] * 4, many)]
        backwards = [output.token_ids for output in llm.generate([ids] * 4, many[::-1])][::-1]
    assert alone == together == backwards
    assert alone[0] == alone[3]
    assert len({*alone}) == 3


def test_stop_tokens_end_the_answer(tiny: Any) -> None:
    """The token that ends an answer is in it and named; min_tokens puts it off."""
    (ids,) = prompts(6, seed=8)
    answer = tiny.greedy(ids, 8)
    stop = answer[4]
    until_stop = tuple(answer[: answer.index(stop) + 1])
    with LLM(tiny.path) as llm:
        (ended,) = llm.generate([ids], SamplingParams(temperature=0, max_tokens=8, stop_token_ids=(stop,)))
        (later,) = llm.generate(
            [ids], SamplingParams(temperature=0, max_tokens=8, min_tokens=8, stop_token_ids=(stop,))
        )
    assert (until_stop, "stop", stop) == (ended.token_ids, ended.finish_reason, ended.stop_token_id)
    assert len(later.token_ids) == 8
    assert stop not in later.token_ids


def test_end_of_sequence_ends_the_answer_unless_ignored(tiny: Any) -> None:
    """End-of-sequence ends an answer as a stop token does; with ignore_eos it is a token like any other."""
    (ids,) = prompts(6, seed=8)
    with LLM(tiny.path) as llm:
        params = SamplingParams(temperature=0, max_tokens=3, logit_bias={2: 100.0})
        (ended,) = llm.generate([ids], params)
        params = SamplingParams(temperature=0, max_tokens=3, logit_bias={2: 100.0}, ignore_eos=True)
        (went_on,) = llm.generate([ids], params)
    assert (ended.token_ids, ended.finish_reason, ended.stop_token_id) == ((2,), "stop", 2)
    assert (went_on.token_ids, went_on.finish_reason, went_on.stop_token_id) == ((2, 2, 2), "length", None)


def test_context_is_used_to_its_last_token(tiny: Any) -> None:
    """Without max_tokens an answer runs to the end of the context, and a prompt that fills it is refused."""
    with LLM(tiny.path, EngineConfig(max_model_len=32)) as llm:
        (output,) = llm.generate(prompts(20), SamplingParams(temperature=0, ignore_eos=True))
        assert (len(output.token_ids), output.finish_reason) == (12, "length")
        with pytest.raises(ContextOverflow, match="32 tokens") as caught:
            llm.generate(prompts(32), GREEDY)
    assert caught.value.evidence == {"prompt_tokens": 32, "max_model_len": 32}


def test_context_is_cut_to_what_the_cache_holds(tiny: Any, make_engine: Callable[..., LLMEngine]) -> None:
    """A cache of 10 blocks of 4 holds no sequence over 40 tokens, so none is promised; the longest completes."""
    engine = make_engine(cache_of(tiny, 10))
    assert engine.max_model_len == 40
    engine.add(GenerateRequest("a", prompts(39)[0], GREEDY))
    assert [len(answer) for answer in run(engine).values()] == [1]


def test_cache_without_a_block_is_refused(tiny: Any) -> None:
    """A cache too small for one block is a ModelError that says how much one takes."""
    with pytest.raises(ModelError, match="holds no block"):
        LLM(tiny.path, EngineConfig(kv_cache_memory=100))


@pytest.mark.parametrize(
    "token_ids, params, message",
    [
        ([], {}, "no tokens"),
        ([97], {}, "token id 97"),
        ([5, -1], {}, "token id -1"),
        (["x"], {}, "not a list of integers"),
        ([1], {"temperature": -1}, "temperature is -1"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
        ([1], {"top_p": 0}, "top_p is 0"),
        ([1], {"top_p": 1.1}, r"top_p is 1\.1"),
        ([1], {"top_k": -2}, "top_k is -2"),
        ([1], {"min_p": 1.5}, r"min_p is 1\.5"),
        ([1], {"max_tokens": 0}, "max_tokens is 0"),
        ([1], {"max_tokens": 2, "min_tokens": 3}, "min_tokens is 3"),
        ([1], {"presence_penalty": 3}, "presence_penalty is 3"),
        ([1], {"repetition_penalty": 0}, "repetition_penalty is 0"),
        ([1], {"logprobs": 21}, "logprobs is 21"),
        ([1], {"stop_token_ids": (97,)}, "stop_token_ids has token id 97"),
        ([1], {"logit_bias": {-4: 1.0}}, "logit_bias has token id -4"),
    ],
)
def test_bad_requests_are_refused(
    make_engine: Callable[..., LLMEngine], token_ids: list[Any], params: dict[str, Any], message: str
) -> None:
    """What the model cannot answer is a RequestError naming the value, and leaves nothing behind."""
    engine = make_engine()
    with pytest.raises(RequestError, match=message):
        engine.add(GenerateRequest("a", token_ids, SamplingParams(**params)))
    assert not engine.has_unfinished_requests()


def test_request_ids_are_unique(make_engine: Callable[..., LLMEngine]) -> None:
    """A second request under a running one's id is refused."""
    engine = make_engine()
    engine.add(GenerateRequest("a", [5], GREEDY))
    with pytest.raises(RequestError, match="already running"):
        engine.add(GenerateRequest("a", [6], GREEDY))


def test_fault_in_a_step_fails_only_its_requests(
    make_engine: Callable[..., LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a step breaks, the requests in it fail with WorkerError, the waiting one is answered, nothing leaks."""
    engine = make_engine(EngineConfig(max_num_seqs=2))
    for name in "abc":
        engine.add(GenerateRequest(name, [5, 6, 7], GREEDY))

    def broken(_: object) -> None:
        raise FloatingPointError("no such number")

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", broken)
        failures = engine.step()
    assert [failure.request_id for failure in failures] == ["a", "b"]
    assert all(isinstance(failure, Failure) and isinstance(failure.error, WorkerError) for failure in failures)
    engine.check_integrity()
    assert [(name, len(answer)) for name, answer in run(engine).items()] == [("c", 12)]


def test_logprobs_of_the_reference(tiny: Any) -> None:
    """Reported log probabilities are the reference's log-softmax, best first, the sampled token's apart."""
    (ids,) = prompts(6)
    with LLM(tiny.path) as llm:
        (output,) = llm.generate([ids], SamplingParams(temperature=0, max_tokens=3, logprobs=4, ignore_eos=True))
    assert output.logprobs is not None
    token_ids = list(ids)
    for entry, token_id in zip(output.logprobs, output.token_ids, strict=True):
        logits = tiny.logits(token_ids)[-1]
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert np.argsort(-expected)[:4].tolist() == [top for top, _ in entry.top]
        np.testing.assert_allclose([value for _, value in entry.top], np.sort(expected)[::-1][:4], atol=1e-4)
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(expected[token_id], abs=1e-4)
        token_ids.append(token_id)
