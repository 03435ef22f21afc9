"""The table: every setting of the gateway, declared once as a field of ``Config``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from foreword.config.setting import Setting, setting

POLICIES = ("cache_aware", "round_robin", "random", "least_load", "power_of_two", "prefix_hash")

MODEL, ENGINE, WORKERS, TOKENIZER_CACHE = "Model", "Embedded engine", "Workers", "Tokenizer cache"
PROMPT_CACHING = "Prompt caching"
SERVER, LIMITS, OBSERVABILITY = "Server", "Limits", "Logs and metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the gateway is told, never changed after. ``sources`` says where each value that is no default came from."""

    model_path: str | None = setting(
        MODEL,
        None,
        "Model to serve: a folder, a GGUF file, a Hugging Face hub id, or a name of `foreword models list`. "
        "Without it and without --worker-urls and --tokenizer-path, smollm2-135m is fetched.",
        metavar="PATH|ID",
    )
    tokenizer_path: str | None = setting(
        MODEL,
        None,
        "Tokenizer to use: a folder, a tokenizer file, a GGUF file or a hub id. Defaults to the model's own; alone, "
        "without a model, the gateway only tokenizes.",
        metavar="PATH|ID",
    )
    chat_template: Path | None = setting(
        MODEL, None, "Jinja file to use in place of the model's own chat template.", metavar="FILE"
    )
    max_model_len: int | None = setting(
        ENGINE,
        None,
        "Tokens of prompt and answer together at most; without it the model's own limit holds.",
        minimum=1,
        maximum=2**31,
    )
    max_num_seqs: int = setting(ENGINE, 16, "Requests computed together at most.", minimum=1, maximum=4096)
    max_num_batched_tokens: int = setting(
        ENGINE,
        512,
        "Tokens computed in one step at most; a longer prompt takes several.",
        minimum=1,
        maximum=1_048_576,
    )
    kv_cache_memory: int = setting(
        ENGINE, 1_073_741_824, "Bytes for keys and values.", metavar="BYTES", minimum=1, maximum=2**48
    )
    num_threads: int | None = setting(
        ENGINE, None, "Cores used for arithmetic; without it two, where there are two.", minimum=1, maximum=1024
    )
    kv_events_config: str | None = setting(
        ENGINE,
        None,
        "How the embedded engine publishes its KV events, in vLLM's words: "
        '`{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}`.',
        metavar="JSON",
    )
    worker_urls: tuple[str, ...] = setting(
        WORKERS,
        (),
        "Workers to route to; several are separated by spaces or commas. Without it the embedded engine is the worker.",
        metavar="URL...",
    )
    worker_discovery: str | None = setting(
        WORKERS,
        None,
        "Where further workers are found while the gateway runs: file:PATH, or kubernetes://NAMESPACE/SERVICE:PORT.",
        metavar="SOURCE",
    )
    policy: str = setting(
        WORKERS,
        "cache_aware",
        "How a worker is picked when there are several; module:Class is a policy of your own.",
        choices=POLICIES,
        pattern=r"[\w.]+:\w+",
    )
    redis_url: str | None = setting(
        WORKERS,
        None,
        "Valkey or Redis through which several gateways count distinct prefixes together; none is needed.",
        metavar="URL",
    )
    tokenizer_cache_enable_l0: bool = setting(TOKENIZER_CACHE, False, "Cache the ids of whole inputs (L0).")
    tokenizer_cache_l0_max_entries: int = setting(
        TOKENIZER_CACHE, 10_000, "Inputs that L0 holds at most.", minimum=1, maximum=2**31
    )
    tokenizer_cache_l0_max_memory: int = setting(
        TOKENIZER_CACHE, 268_435_456, "Bytes that L0 holds at most.", metavar="BYTES", minimum=1, maximum=2**48
    )
    tokenizer_cache_enable_l1: bool = setting(TOKENIZER_CACHE, False, "Cache the ids of prefixes (L1).")
    tokenizer_cache_l1_max_memory: int = setting(
        TOKENIZER_CACHE, 52_428_800, "Bytes that L1 holds at most.", metavar="BYTES", minimum=1, maximum=2**48
    )
    prompt_cache_minimum_tokens: int = setting(
        PROMPT_CACHING,
        0,
        "Cached tokens reported to clients count as none below this, as at a provider; OpenAI's is 1024.",
        minimum=0,
        maximum=2**31,
    )
    prompt_cache_step: int = setting(
        PROMPT_CACHING,
        0,
        "Cached tokens reported to clients are rounded down to a multiple of this; OpenAI's is 128. 0 reports them as "
        "they were.",
        minimum=0,
        maximum=2**31,
    )
    prompt_cache_disk: Path | None = setting(
        PROMPT_CACHING,
        None,
        'Folder in which the embedded engine keeps prompts that ask for 24 hours (`prompt_cache_retention: "24h"`), through '
        "eviction and restart; without it `prompt-cache` in the cache folder.",
        metavar="DIR",
    )
    prompt_cache_disk_max_bytes: int = setting(
        PROMPT_CACHING,
        4_294_967_296,
        "Bytes that folder holds at most, the least recently used going first. With 0 nothing is written: such prompts are "
        "kept in memory as long as there is room.",
        metavar="BYTES",
        minimum=0,
        maximum=2**60,
    )
    host: str = setting(SERVER, "127.0.0.1", "Address to listen on; 0.0.0.0 takes requests from other machines.")
    port: int = setting(SERVER, 30_000, "Port to listen on; 0 picks a free one.", minimum=0, maximum=65_535)
    prometheus_port: int | None = setting(
        SERVER,
        None,
        "Port that serves /metrics; without it the main port does.",
        minimum=0,
        maximum=65_535,
    )
    api_keys: Path | None = setting(
        SERVER,
        None,
        "File of API keys, `organisation key [admin]` a line. Without it every request is let in.",
        metavar="FILE",
    )
    request_timeout: float = setting(
        SERVER, 600.0, "Seconds that one request may take.", metavar="SECONDS", minimum=0.001, maximum=86_400
    )
    drain_timeout: float = setting(
        SERVER,
        30.0,
        "Seconds that running requests are given to end when the gateway is told to stop.",
        metavar="SECONDS",
        minimum=0,
        maximum=86_400,
    )
    max_concurrent_requests: int = setting(LIMITS, 256, "Requests in work at a time.", minimum=1, maximum=1_000_000)
    max_queued_requests: int = setting(
        LIMITS, 1024, "Requests that wait for their turn; more are refused with 429.", minimum=0, maximum=1_000_000
    )
    max_body_bytes: int = setting(
        LIMITS, 67_108_864, "Bytes of one request's body.", metavar="BYTES", minimum=1024, maximum=2**40
    )
    max_prompts: int = setting(LIMITS, 2048, "Prompts in one request's list.", minimum=1, maximum=1_000_000)
    max_messages: int = setting(LIMITS, 10_000, "Messages in one chat request.", minimum=1, maximum=1_000_000)
    max_tools: int = setting(LIMITS, 1024, "Tools in one chat request.", minimum=0, maximum=1_000_000)
    max_stop_strings: int = setting(LIMITS, 16, "Stop strings in one request.", minimum=0, maximum=10_000)
    max_tokenizers: int = setting(LIMITS, 16, "Tokenizers loaded at a time.", minimum=1, maximum=10_000)
    metrics_namespace: str = setting(
        OBSERVABILITY,
        "foreword",
        "First word of every metric's name.",
        metavar="NAME",
        pattern=r"[a-zA-Z_][a-zA-Z0-9_]*",
    )
    log_level: str = setting(
        OBSERVABILITY, "info", "Least severe log line written.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        OBSERVABILITY,
        "auto",
        "How log lines look; auto is console on a terminal and json elsewhere.",
        choices=("auto", "console", "json"),
    )
    seam_history: int = setting(
        OBSERVABILITY,
        8,
        "Earlier requests of its lane that each request's prefix is compared with; 0 gives no verdicts.",
        minimum=0,
        maximum=256,
    )
    seam_headers: bool = setting(
        OBSERVABILITY, False, "Say x-foreword-shared-tokens, x-foreword-seam and x-foreword-cause in responses."
    )
    log_prompts: bool = setting(OBSERVABILITY, False, "Write prompt text to the log.")

    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def source(self, name: str) -> str:
        """Where a setting's value came from: "default", the file's path, the variable's name or the flag."""
        return self.sources.get(name, "default")


@functools.cache
def settings() -> tuple[Setting, ...]:
    """The table, in the order of the fields."""
    hints = get_type_hints(Config)
    return tuple(
        Setting(name=row.name, kind=_kind(hints[row.name]), default=row.default, **row.metadata)
        for row in fields(Config)
        if row.metadata
    )


def _kind(hint: Any) -> type:
    """The kind behind an annotation: ``int | None`` is an int, ``tuple[str, ...]`` a tuple."""
    plain = next((arg for arg in get_args(hint) if type(None) in get_args(hint) and arg is not type(None)), hint)
    kind: type = getattr(plain, "__origin__", plain)
    return kind
