"""From configuration to what a gateway is made of: tokenizers with their caches, templates, and the embedded worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from foreword.cli.models import pull_with_progress
from foreword.config import Config
from foreword.core.retention import IN_MEMORY
from foreword.engine import AsyncLLM, EngineConfig
from foreword.errors import ModelNotFound, TokenizerNotFound
from foreword.gateway.kv_publisher import KvPublisher, parse_config
from foreword.gateway.tokenizers import LoadedTokenizer, TokenizerRegistry, answer_cache_memory
from foreword.models import DEFAULT_MODEL, ModelFiles, ModelStore, cache_folder, resolve_model, resolve_tokenizer
from foreword.tokens import CachedTokenizer, L0Config, L1Config, load_tokenizer
from foreword.tokens.chat_template import ChatTemplate, load_chat_template
from foreword.tokens.tiktoken_backend import is_encoding_name

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """What runs.

    Attributes:
        name: the model's or, without one, the tokenizer's.
        registry: the tokenizers; it loads more when asked to.
        worker: the embedded engine, or None when there are no weights.
        publisher: of its KV events; whoever runs the worker closes it afterwards.
    """

    name: str
    registry: TokenizerRegistry
    worker: AsyncLLM | None
    publisher: KvPublisher | None = None


def assemble(config: Config, store: ModelStore) -> Assembly:
    """Find, fetch and load everything the configuration asks for; raises ForewordError."""
    if config.worker_urls or config.worker_discovery:
        return _assemble_front(config, store)
    model = _find_model(config, store)
    tokenizer = _find_tokenizer(config, store, model)
    name = model.name if model is not None else _name_of(tokenizer)
    loaded = _load(config, name, str(tokenizer), template=config.chat_template)

    def load_another(source: str, own_name: str) -> LoadedTokenizer:
        return _load(config, own_name, str(_resolve(source, store)))

    registry = TokenizerRegistry([loaded], load=load_another, limit=config.max_tokenizers)
    publisher = _publisher(config) if model is not None else None
    return Assembly(name, registry, _worker(config, model, publisher), publisher)


def _assemble_front(config: Config, store: ModelStore) -> Assembly:
    """A gateway before other workers: no engine of its own, and a tokenizer only where one is named.

    Workers of other names get theirs when they are reached (:mod:`foreword.gateway.worker_tokenizers`).
    """

    def load(source: str, name: str) -> LoadedTokenizer:
        return _load(config, name, str(_resolve(source, store)), template=config.chat_template)

    source = config.tokenizer_path or config.model_path
    loaded = [] if source is None else [load(source, _name_of(source))]
    registry = TokenizerRegistry(loaded, load=load, limit=config.max_tokenizers)
    return Assembly(loaded[0].name if loaded else "no model of its own", registry, None)


def _find_model(config: Config, store: ModelStore) -> ModelFiles | None:
    """The model to serve; none when only a tokenizer is configured."""
    if config.model_path is None and config.tokenizer_path is not None:
        return None
    return resolve_model(config.model_path or DEFAULT_MODEL, store=store, pull=pull_with_progress)


def _find_tokenizer(config: Config, store: ModelStore, model: ModelFiles | None) -> Path | str:
    if config.tokenizer_path is not None:
        return _resolve(config.tokenizer_path, store)
    if model is None or model.tokenizer is None:
        raise TokenizerNotFound(
            f"{config.model_path} comes without a tokenizer.", hint="Give one with --tokenizer-path."
        )
    return model.tokenizer


def _resolve(reference: str, store: ModelStore) -> Path | str:
    """A path, or the name of a tiktoken encoding."""
    if is_encoding_name(reference) and not Path(reference).exists():
        return reference
    try:
        return resolve_tokenizer(reference, store=store, pull=pull_with_progress)
    except ModelNotFound as error:
        raise TokenizerNotFound(error.message, hint=error.hint, **error.evidence) from error


def _name_of(tokenizer: Path | str) -> str:
    path = Path(tokenizer)
    return path.parent.resolve().name if path.is_file() else path.resolve().name


def _load(config: Config, name: str, source: str, *, template: Path | None = None) -> LoadedTokenizer:
    """A tokenizer behind the configured caches, with its chat template."""
    tokenizer = load_tokenizer(source)
    l0_memory = config.tokenizer_cache_l0_max_memory
    l0_memory -= answer_cache_memory(l0_memory)
    cached = CachedTokenizer(
        tokenizer,
        L0Config(max_entries=config.tokenizer_cache_l0_max_entries, max_memory=l0_memory)
        if config.tokenizer_cache_enable_l0
        else None,
        L1Config(max_memory=config.tokenizer_cache_l1_max_memory) if config.tokenizer_cache_enable_l1 else None,
    )
    if config.tokenizer_cache_enable_l1 and not tokenizer.boundaries.certified:
        log.warning("tokenizer.l1_off", tokenizer=name, reason=tokenizer.boundaries.reason)
    return LoadedTokenizer(name, source, cached, _template(source, template))


def _template(source: str, template: Path | None) -> ChatTemplate | None:
    path = Path(source)
    return load_chat_template(path, template=template) if path.exists() or template is not None else None


def prompt_cache_disk(config: Config) -> Path | None:
    """The folder for prompts that ask for 24 hours; None when nothing may be written."""
    if not config.prompt_cache_disk_max_bytes:
        return None
    return config.prompt_cache_disk or cache_folder() / "prompt-cache"


def _publisher(config: Config) -> KvPublisher | None:
    if config.kv_events_config is None:
        return None
    events = parse_config(config.kv_events_config)
    return KvPublisher(events) if events.publishes else None


def _worker(config: Config, model: ModelFiles | None, publisher: KvPublisher | None) -> AsyncLLM | None:
    if model is None or model.weights is None:
        return None
    engine = EngineConfig(
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        kv_cache_memory=config.kv_cache_memory,
        num_threads=config.num_threads or EngineConfig().num_threads,
        retention=IN_MEMORY,
        prompt_cache_disk=prompt_cache_disk(config),
        prompt_cache_disk_max_bytes=config.prompt_cache_disk_max_bytes,
    )
    on_kv_events = publisher.publish if publisher is not None else None
    return AsyncLLM(model.weights, model=model.name, config=engine, on_kv_events=on_kv_events)
