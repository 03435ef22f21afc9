"""Trace files, one reader a format; each yields records in the file's order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from foreword.errors import ConfigError
from foreword.trace.records import TraceRequest

MOONCAKE_BLOCK_SIZE = 512
"""Tokens in a block of the Mooncake traces (FAST'25)."""

MAX_LINE_BYTES = 16 << 20


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...]


def read_mooncake(path: Path) -> Iterator[TraceRequest]:
    """Yield the requests of a Mooncake JSONL trace: {timestamp ms, input_length, output_length, hash_ids}.

    Raises ConfigError naming the line that is not of this form, or earlier than the one before.
    """
    latest = -math.inf
    decoder = msgspec.json.Decoder(_MooncakeLine)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
                if line.strip():
                    request = _decode_mooncake(decoder, line, number, path)
                    if request.time < latest:
                        raise ConfigError(
                            f"Line {number} of {path} is earlier than the one before.",
                            hint="Sort the trace by its timestamps.",
                            path=str(path),
                            line=number,
                        )
                    latest = request.time
                    yield request
    except OSError as error:
        raise ConfigError(f"The trace {path} cannot be read: {error.strerror}.", path=str(path)) from error


def _decode_mooncake(
    decoder: msgspec.json.Decoder[_MooncakeLine], line: bytes, number: int, path: Path
) -> TraceRequest:
    try:
        row = decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"Line {number} of {path} is not a Mooncake record: {error}.",
            hint='Each line is {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}.',
            path=str(path),
            line=number,
        ) from error
    if row.input_length < 1 or len(row.hash_ids) > row.input_length:
        raise ConfigError(
            f"Line {number} of {path} names {len(row.hash_ids)} blocks for a prompt of {row.input_length} tokens.",
            path=str(path),
            line=number,
        )
    return TraceRequest(row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids)
