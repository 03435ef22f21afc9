"""/v1/tokenize, /v1/detokenize and /v1/tokenizers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from foreword.config import Config
from foreword.gateway.answer_cache import AnswerCache, Reuse
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import Exchange
from foreword.gateway.ids_json import ids_to_json
from foreword.gateway.protocol.tokenize import AddTokenizerRequest, DetokenizeRequest, TokenizeRequest
from foreword.gateway.tokenizers import LoadedTokenizer, TokenizerRegistry
from foreword.tokens.exact_cache import utf8_length
from foreword.tokens.token_cache import Encoded

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)
_ADD = msgspec.json.Decoder(AddTokenizerRequest)


_ANSWER = b'{"tokens":%b,"count":%b,"char_count":%b}'


class TokenizeEndpoints:
    """Text to ids and back, and the tokenizers that do it."""

    def __init__(self, tokenizers: TokenizerRegistry, answers: AnswerCache | None, config: Config) -> None:
        self._tokenizers = tokenizers
        self._answers = answers
        self._max_prompts = config.max_prompts

    def ready_answer(self, organisation: str, body: bytes) -> bytes | None:
        """The answer to a body seen before, if it is held. A miss is not counted: the endpoint will look again."""
        if self._answers is None:
            return None
        return self._answers.peek(organisation, self._tokenizers.generation, body)

    async def tokenize(self, exchange: Exchange) -> None:
        """The ids of a text or of each text of a list. A body seen before is answered without being parsed."""
        generation = self._tokenizers.generation
        if self._answers is not None:
            ready = self._answers.find(exchange.organisation, generation, exchange.body)
            if ready is not None:
                await exchange.respond(ready)
                return
        answer, reuse = await self._tokenize(exchange.decode(_TOKENIZE), exchange.organisation)
        if self._answers is not None:
            self._answers.store(exchange.organisation, generation, exchange.body, answer, reuse)
        await exchange.respond(answer)

    async def _tokenize(self, request: TokenizeRequest, tenant: str) -> tuple[bytes, Reuse]:
        loaded = self._tokenizers.find(request.model)
        prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
        if len(prompts) > self._max_prompts:
            message = f"'prompt' has {len(prompts)} texts, over the limit of {self._max_prompts}."
            raise Refusal(message, param="prompt", code="too_many_prompts")
        rows = [
            await loaded.encode(prompt, add_special_tokens=request.add_special_tokens, tenant=tenant)
            for prompt in prompts
        ]
        arrays = [_json_of(encoded, loaded) for encoded in rows]
        counts = [len(encoded.ids) for encoded in rows]
        reuse = Reuse(len(prompts), sum(map(utf8_length, prompts)), sum(counts))
        if isinstance(request.prompt, str):
            return _ANSWER % (arrays[0], b"%d" % counts[0], b"%d" % len(request.prompt)), reuse
        lengths = [len(prompt) for prompt in prompts]
        lists = b"[%b]" % b",".join(arrays), msgspec.json.encode(counts), msgspec.json.encode(lengths)
        return _ANSWER % lists, reuse

    async def detokenize(self, exchange: Exchange) -> None:
        """The text of ids."""
        request = exchange.decode(_DETOKENIZE)
        loaded = self._tokenizers.find(request.model)
        text = loaded.tokenizer.decode(request.tokens, skip_special_tokens=request.skip_special_tokens)
        await exchange.respond_json({"text": text})

    async def list_tokenizers(self, exchange: Exchange) -> None:
        """Every loaded tokenizer with its identity and how its cache does."""
        await exchange.respond_json({"tokenizers": [_describe(loaded) for loaded in self._tokenizers]})

    async def add_tokenizer(self, exchange: Exchange) -> None:
        """Load one tokenizer more."""
        request = exchange.decode(_ADD)
        loaded = await self._tokenizers.add(request.name or request.source, request.source)
        await exchange.respond_json(_describe(loaded), status=201)

    async def remove_tokenizer(self, exchange: Exchange) -> None:
        """Forget a tokenizer and everything cached for it."""
        self._tokenizers.remove(exchange.path_tail)
        if self._answers is not None:
            self._answers.clear()
        await exchange.respond_json({"name": exchange.path_tail, "deleted": True})


def _describe(loaded: LoadedTokenizer) -> dict[str, Any]:
    identity = loaded.tokenizer.identity
    return {
        "name": loaded.name,
        "source": loaded.source,
        "vocab_size": loaded.tokenizer.vocab_size,
        "chat_template": loaded.template is not None,
        "identity": asdict(identity),
        "cache": asdict(loaded.tokenizer.statistics()),
    }


def _json_of(encoded: Encoded, loaded: LoadedTokenizer) -> bytes:
    """The ids as a JSON array, kept beside them in L0 for the next time."""
    array = encoded.rendered
    if array is None:
        array = ids_to_json(encoded.ids)
        loaded.tokenizer.keep_rendered(encoded, array)
    return array
