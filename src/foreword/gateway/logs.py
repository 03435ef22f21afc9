"""The log: one JSON object a line on stderr, or coloured lines on a terminal."""

from __future__ import annotations

import functools
import logging
import sys
import time
from typing import Any

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from foreword.config import Config

_ENCODER = msgspec.json.Encoder(enc_hook=str)


def configure_logging(config: Config) -> None:
    """Send every log line of the process to stderr in the configured form."""
    console = config.log_format == "console" or (config.log_format == "auto" and sys.stderr.isatty())
    level = getattr(logging, config.log_level.upper())
    common: list[Processor] = [structlog.processors.add_log_level, _add_time]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[*common, *(_console() if console else [structlog.processors.format_exc_info, _to_json])],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr)
        if console
        else structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING), format="%(message)s", force=True)


def _console() -> list[Processor]:
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]


def _add_time(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    now = time.time()
    event["time"] = f"{_whole_second(int(now))}.{int(now * 1000) % 1000:03d}Z"
    return event


@functools.lru_cache(maxsize=2)
def _whole_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _to_json(_logger: WrappedLogger, _name: str, event: EventDict) -> Any:
    return _ENCODER.encode(event)
