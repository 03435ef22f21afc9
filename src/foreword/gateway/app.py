"""The gateway as an ASGI application: the route table, the stages before it, and what lives as long as the server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from prometheus_client import start_http_server

from foreword.config import Config
from foreword.diagnose.ledger import FingerprintLedger
from foreword.diagnose.verdicts import SeamWatch
from foreword.gateway.answer_cache import AnswerCache
from foreword.gateway.anthropic import MessagesEndpoints
from foreword.gateway.authentication import ApiKeys
from foreword.gateway.chat import ChatEndpoint
from foreword.gateway.completions import CompletionsEndpoint
from foreword.gateway.discovery import Discovery, parse_source
from foreword.gateway.errors import Interrupted, anthropic_body
from foreword.gateway.exchange import Exchange, Message, Receive, Send
from foreword.gateway.fingerprints import DistinctFingerprints, SegmentFingerprints
from foreword.gateway.fleet import Fleet
from foreword.gateway.forwarding import Forwarding
from foreword.gateway.immediate import Immediate
from foreword.gateway.inflight import InFlight
from foreword.gateway.kv_follow import follow
from foreword.gateway.member import Client
from foreword.gateway.message_events import broken as messages_broken
from foreword.gateway.metrics import Metrics, Sample
from foreword.gateway.middleware import Authenticate, Dispatch, Limit, Observe
from foreword.gateway.pages import PageEndpoints
from foreword.gateway.policies import make_policy
from foreword.gateway.prefix_cache import PrefixCacheEndpoints
from foreword.gateway.response_events import broken as responses_broken
from foreword.gateway.responses import ResponsesEndpoint
from foreword.gateway.routing import Route, Router
from foreword.gateway.seams import SeamEndpoints
from foreword.gateway.serving import Serving
from foreword.gateway.shared_state import SharedFingerprints, connect
from foreword.gateway.tokenize import TokenizeEndpoints
from foreword.gateway.tokenizers import TokenizerRegistry, answer_cache_memory
from foreword.gateway.worker_clients import make_client, read_eos_token_ids
from foreword.gateway.worker_endpoints import WorkerEndpoints
from foreword.gateway.worker_tokenizers import TokenizerProvider
from foreword.gateway.worker_url import expand_ranks
from foreword.gateway.workers import Worker


class Gateway:
    """The application. It owns the workers and everything counted; the server owns sockets and signals."""

    def __init__(self, config: Config, tokenizers: TokenizerRegistry, workers: Sequence[Worker]) -> None:
        self.config = config
        self.metrics = Metrics(config.metrics_namespace)
        self.tokenizers = tokenizers
        self._make_client = _client_maker(config, tokenizers)
        self.pool = Fleet(
            make_policy(config.policy),
            [*workers, *map(self._make_client, chain.from_iterable(map(expand_ranks, config.worker_urls)))],
            follow=follow,
            greet=TokenizerProvider(tokenizers, config.tokenizer_path or config.model_path).provide,
            on_failure=self.metrics.observe_failure,
        )
        self._discovery = _discovery(config, self.pool, self._make_client)
        self.in_flight = InFlight(config.request_timeout)
        self.limit = Limit(
            self.in_flight,
            max_body=config.max_body_bytes,
            max_running=config.max_concurrent_requests,
            max_queued=config.max_queued_requests,
        )
        self._answers = _answer_cache(config)
        self._tokenize = TokenizeEndpoints(tokenizers, self._answers, config)
        self._distinct = _distinct(config)
        self._seams = SeamWatch(compared=config.seam_history, show_text=config.log_prompts)
        self._ledger = FingerprintLedger()
        self._tasks: list[asyncio.Task[None]] = []
        self.router = Router(self._routes())
        keys = ApiKeys.load(config.api_keys) if config.api_keys is not None else None
        self._handle = Observe(Dispatch(self.router, Authenticate(self.limit, keys)), self.metrics)
        self.immediate = Immediate("/v1/tokenize", self._tokenize.ready_answer, self._handle, self.limit, keys)
        self._add_sources()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "http":
            await self._handle(Exchange(scope, receive, send))
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    def _routes(self) -> tuple[Route, ...]:
        serving = Serving(
            self.config,
            self.tokenizers,
            self.pool,
            self.metrics,
            self.in_flight,
            SegmentFingerprints(),
            self._distinct,
            self._seams,
            self._ledger,
        )
        tokenize = self._tokenize
        workers = WorkerEndpoints(self.pool, self._make_client)
        seams = SeamEndpoints(self._seams, self._ledger)
        chat, completions, responses = ChatEndpoint(serving), CompletionsEndpoint(serving), ResponsesEndpoint(serving)
        messages = MessagesEndpoints(serving)
        answer_chat = Forwarding(serving, chat, chat.read_prompt)
        complete = Forwarding(serving, completions, completions.read_prompt)
        respond = Forwarding(serving, responses, responses.read_prompt, responses_broken)
        answer_messages = Forwarding(serving, messages.answer, messages.read_prompt, messages_broken)
        prefix_cache = PrefixCacheEndpoints(self.pool, self.tokenizers)
        pages = PageEndpoints(self.tokenizers, self.pool, self.metrics, self.limit)
        pages.routes = (
            Route("GET", "/", pages.page, "What runs here.", "open"),
            Route("POST", "/v1/chat/completions", answer_chat, "Answer a conversation."),
            Route("POST", "/v1/completions", complete, "Go on from a text or ids."),
            Route("POST", "/v1/responses", respond, "Respond to input items."),
            Route("POST", "/v1/messages", answer_messages, "Answer messages.", error_body=anthropic_body),
            Route("POST", "/v1/messages/count_tokens", messages.count, "Count a prompt.", error_body=anthropic_body),
            Route("GET", "/v1/prefix_cache", prefix_cache.show, "Look into the prefix caches.", "admin"),
            Route("POST", "/v1/prefix_cache/reset", prefix_cache.reset, "Empty the prefix caches.", "admin"),
            Route("POST", "/v1/tokenize", tokenize.tokenize, "Turn text into token ids."),
            Route("POST", "/v1/detokenize", tokenize.detokenize, "Turn token ids into text."),
            Route("GET", "/v1/models", pages.models, "List the models."),
            Route("GET", "/v1/models/{model}", pages.model, "Describe one model."),
            Route("GET", "/v1/tokenizers", tokenize.list_tokenizers, "List the tokenizers and their caches."),
            Route("POST", "/v1/tokenizers", tokenize.add_tokenizer, "Load a tokenizer.", "admin"),
            Route("DELETE", "/v1/tokenizers/{name}", tokenize.remove_tokenizer, "Remove a tokenizer.", "admin"),
            Route("GET", "/v1/workers", workers.list, "List the workers and how they are.", "admin"),
            Route("POST", "/v1/workers", workers.add, "Take a worker in.", "admin"),
            Route("DELETE", "/v1/workers/{name}", workers.remove, "Drain a worker and let it go.", "admin"),
            Route("GET", "/v1/fingerprints", seams.fingerprints, "Count distinct prefixes by window.", "admin"),
            Route("GET", "/v1/seams", seams.seams, "Say where prefixes broke, and why.", "admin"),
            Route("GET", "/health", pages.liveness, "The server runs.", "open"),
            Route("GET", "/liveness", pages.liveness, "The server runs.", "open"),
            Route("GET", "/readiness", pages.readiness, "New requests are taken.", "open"),
            Route("GET", "/metrics", pages.metrics, "Metrics for Prometheus.", "admin"),
        )
        return pages.routes

    def _add_sources(self) -> None:
        self.metrics.add_source(self.tokenizers.samples)
        self.metrics.add_source(self.pool.samples)
        self.metrics.add_source(self._distinct.samples)
        self.metrics.add_source(self._verdicts)
        self.metrics.add_source(self._load)
        if self._answers is not None:
            self.metrics.add_source(self._answers.samples)

    def _verdicts(self) -> list[Sample]:
        return [
            ("seam_verdicts", (model, code or "none"), count) for (model, code), count in self._seams.counts.items()
        ]

    def _load(self) -> list[Sample]:
        running = len(self.in_flight) - self.limit.queued
        shared = isinstance(self._distinct, SharedFingerprints) and self._distinct.connected
        return [
            ("requests_running", (), running),
            ("requests_queued", (), self.limit.queued),
            ("shared_state_connected", (), float(shared)),
        ]

    async def _live(self, receive: Receive, send: Send) -> None:
        """The lifespan: start, wait for the end, stop."""
        await receive()
        try:
            await self.start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Start the workers, the watches and the metrics port; raises WorkerUnavailable."""
        await self.pool.start()
        self._tasks = [
            asyncio.create_task(self.in_flight.sweep_forever()),
            asyncio.create_task(self.pool.check_forever()),
        ]
        if self._discovery is not None:
            await self._discovery.look()
            self._tasks.append(asyncio.create_task(self._discovery.run()))
        if isinstance(self._distinct, SharedFingerprints):
            self._tasks.append(asyncio.create_task(self._distinct.run()))
        if self.config.prometheus_port is not None:
            start_http_server(self.config.prometheus_port, addr=self.config.host, registry=self.metrics.registry)

    async def stop(self) -> None:
        """Stop the watches and the workers."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.stop()
        if isinstance(self._distinct, SharedFingerprints):
            await self._distinct.close()

    def drain(self) -> None:
        """Take no new requests; readiness says so."""
        self.limit.draining = True

    def abort(self) -> None:
        """End what is still in work, each with an error."""
        message = "The server stopped before this request was done."
        self.in_flight.interrupt_all(Interrupted(message, status=503, code="draining"))


def _answer_cache(config: Config) -> AnswerCache | None:
    if not config.tokenizer_cache_enable_l0:
        return None
    return AnswerCache(
        max_entries=config.tokenizer_cache_l0_max_entries,
        max_memory=answer_cache_memory(config.tokenizer_cache_l0_max_memory),
    )


def _client_maker(config: Config, tokenizers: TokenizerRegistry) -> Callable[[str], Client]:
    """Makes clients for workers' URLs. What an engine over ZMQ cannot say of its model is read off the model here."""
    source = config.model_path or config.tokenizer_path
    eos_token_ids = read_eos_token_ids(Path(source)) if source else ()
    model = next((loaded.name for loaded in tokenizers), "")
    has_organisations = config.api_keys is not None
    return partial(make_client, model=model, eos_token_ids=eos_token_ids, has_organisations=has_organisations)


def _discovery(config: Config, fleet: Fleet, make: Callable[[str], Client]) -> Discovery | None:
    if config.worker_discovery is None:
        return None
    return Discovery(fleet, parse_source(config.worker_discovery), make)


def _distinct(config: Config) -> DistinctFingerprints | SharedFingerprints:
    local = DistinctFingerprints(time.monotonic)
    return local if config.redis_url is None else SharedFingerprints(connect(config.redis_url), local)


def create_app(config: Config, tokenizers: TokenizerRegistry, workers: Sequence[Worker] = ()) -> Gateway:
    """The application for these tokenizers and workers; raises ConfigError for a bad API key file."""
    return Gateway(config, tokenizers, workers)
