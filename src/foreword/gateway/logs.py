"""The log: one JSON object a line on stderr, or coloured lines on a terminal."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from typing import Any, BinaryIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from foreword.config import Config

_ENCODER = msgspec.json.Encoder(enc_hook=str)


def configure_logging(config: Config) -> None:
    """Send every log line of the process to stderr in the configured form."""
    console = config.log_format == "console" or (config.log_format == "auto" and sys.stderr.isatty())
    level: int = getattr(logging, config.log_level.upper())
    global _direct  # noqa: PLW0603 - the log is the process's, as structlog's own configuration is
    _direct = None if console else level
    common: list[Processor] = [structlog.processors.add_log_level, _add_time]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[*common, *(_console() if console else [structlog.processors.format_exc_info, _to_json])],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr)
        if console
        else structlog.BytesLoggerFactory(cast("BinaryIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING), format="%(message)s", force=True)


class _Stderr:
    """stderr as it is at each write: loggers are kept for good, and whoever captures stderr replaces it."""

    def write(self, line: bytes) -> int:
        """Write one line."""
        return sys.stderr.buffer.write(line)

    def flush(self) -> None:
        """Pass it on."""
        sys.stderr.buffer.flush()


class RequestLog:
    """The line of each request. Under load it is half of all the log's work, so as JSON it takes a shorter way."""

    def __init__(self) -> None:
        self._log = structlog.get_logger()
        self._lines: list[bytes] = []

    def write(self, event: str, fields: dict[str, Any], *, quiet: bool = False) -> None:
        """Write one line; quiet ones are for debugging."""
        if _direct is None:
            (self._log.debug if quiet else self._log.info)(event, **fields)
        elif _direct <= (logging.DEBUG if quiet else logging.INFO):
            line = {"event": event, **fields, "level": "debug" if quiet else "info", "time": _now()}
            self._lines.append(_ENCODER.encode(line))
            if len(self._lines) == 1:
                asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what the requests of this turn of the event loop have to say, in one go."""
        lines, self._lines = self._lines, []
        if lines:
            sys.stderr.buffer.write(b"\n".join(lines) + b"\n")
            sys.stderr.buffer.flush()


_direct: int | None = None
"""The level from which on request lines are written as JSON; None when structlog writes them."""


def _console() -> list[Processor]:
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]


def _add_time(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    event["time"] = _now()
    return event


def _now() -> str:
    now = time.time()
    return f"{_whole_second(int(now))}.{int(now * 1000) % 1000:03d}Z"


@functools.lru_cache(maxsize=2)
def _whole_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _to_json(_logger: WrappedLogger, _name: str, event: EventDict) -> Any:
    return _ENCODER.encode(event)
