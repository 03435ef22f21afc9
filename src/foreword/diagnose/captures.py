"""Requests as logs keep them, in one shape: text, JSON bodies, JSONL and HAR entries (``log.har#12``).

A capture keeps the body with its keys in the order they came, and beside it what a verdict on causes outside the prompt
needs: time, usage, lane, route, what the provider said. Authorization headers are dropped as they are read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from foreword.billing.usage import Usage, read_usage
from foreword.diagnose.shared_json import SharedJson
from foreword.errors import ConfigError, InputTooLarge, RequestError

MAX_BYTES = 1 << 30
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Capture:
    """One request as it was seen.

    Attributes:
        document: the body (dict) or the text (str).
        source: where it was read from.
        time: seconds since the epoch, or None.
        duration: seconds until the answer's end, or None.
        usage: what the response reported, or None where there was no response.
        raw_usage: the usage object as it came.
        session: the conversation it belongs to, or "".
        lane: requests of one kind: the key, model and system text's owner; requests are compared within a lane.
        route: the provider, replica or deployment that served it.
        token_ids: the prompt's ids where the log kept them.
        fingerprints: ``*_fp`` fields of the log line.
        provider_reason: the provider's own word on a miss.
        notes: log lines and events that came with it.
    """

    document: Any
    source: str = ""
    time: float | None = None
    duration: float | None = None
    usage: Usage | None = None
    raw_usage: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""
    lane: str = ""
    route: str = ""
    token_ids: tuple[int, ...] = ()
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    provider_reason: str = ""
    notes: tuple[str, ...] = ()
    hop: str = ""
    model: str = ""


def load_capture(reference: str) -> Capture:
    """The capture a reference names: a path, ``-``, or ``path#n`` for entry n of a log, counted from 0."""
    path, mark, entry = reference.rpartition("#")
    if not (mark and entry.isdigit() and Path(path).exists()):
        path, entry = reference, ""
    captures = list(read_captures(path, limit=int(entry) + 1 if entry else 2))
    if entry and int(entry) >= len(captures):
        raise ConfigError(
            f"{path} has {len(captures)} entries; there is no #{entry}.", hint="Entries are counted from 0."
        )
    if not captures:
        raise ConfigError(f"{path} holds no request.")
    if not entry and len(captures) > 1:
        raise ConfigError(f"{path} is a log.", hint=f"Say which entry: {path}#0, {path}#1, ...")
    return captures[int(entry or 0)]


def read_captures(path: str, *, limit: int | None = None) -> Iterator[Capture]:
    """Every request in a file, by what the file holds: HAR, JSONL, one JSON body, or plain text."""
    text = _read(path)
    kind = "har" if path.lower().endswith(".har") else "jsonl" if path.lower().endswith((".jsonl", ".ndjson")) else ""
    values = _values(text, kind, path, SharedJson(_MAX_DEPTH))
    for count, value in enumerate(values):
        if limit is not None and count >= limit:
            return
        yield capture_of(value, f"{path}#{count}")


def _read(path: str) -> str:
    if path == "-":
        import sys  # noqa: PLC0415 - only when asked for

        return sys.stdin.read()
    file = Path(path)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise InputTooLarge(f"{path} is larger than {MAX_BYTES} bytes.", limit=MAX_BYTES, size=file.stat().st_size)
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 (byte {error.start}).", hint="Convert it first: the ids are those of UTF-8 text."
        ) from None


def _values(text: str, kind: str, path: str, parts: SharedJson) -> Iterator[Any]:
    if kind == "har":
        yield from _har_entries(_json(text, path, parts), parts)
    elif kind == "jsonl":
        lines = enumerate(text.split("\n"), 1)
        yield from (_json(line, f"{path} line {n}", parts) for n, line in lines if line.strip())
    elif text.lstrip()[:1] == "{":
        try:
            value = _json(text, path, parts)
        except RequestError:
            lines_of_json = [line for line in text.split("\n") if line.strip()]
            if len(lines_of_json) < 2 or not all(line.startswith("{") for line in lines_of_json):
                yield text
                return
            yield from (_json(line, path, parts) for line in lines_of_json)
            return
        yield from _har_entries(value, parts) if "entries" in _object(value.get("log")) else [value]
    else:
        yield text


def _json(text: str, where: str, parts: SharedJson) -> Any:
    try:
        return parts.loads(text)
    except OverflowError:
        raise RequestError(f"{where} is nested deeper than {_MAX_DEPTH}.") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} is not JSON: {error}.") from None


def _har_entries(har: Any, parts: SharedJson) -> Iterator[dict[str, Any]]:
    """POSTed JSON bodies of a HAR 1.2 log, in the order they were sent, with the answers' usage."""
    entries = _object(_object(har).get("log")).get("entries")
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    for entry in sorted(known, key=lambda e: str(e.get("startedDateTime", ""))):
        request = _object(entry.get("request"))
        text = _object(request.get("postData")).get("text")
        if not isinstance(text, str) or request.get("method", "POST") != "POST" or text.lstrip()[:1] != "{":
            continue
        yield {
            "body": _json(text, "a HAR entry", parts),
            "response": _response(_object(_object(entry.get("response")).get("content"))),
            "time": entry.get("startedDateTime"),
            "duration_ms": entry.get("time"),
            "route": entry.get("serverIPAddress", ""),
        }


def _object(value: Any) -> dict[str, Any]:
    """An object, or an empty one in place of whatever a broken log has there."""
    return value if isinstance(value, dict) else {}


def _response(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON answer, or the last event of a stream that carries usage."""
    text = str(content.get("text") or "")
    if content.get("encoding") == "base64":
        text = _from_base64(text)
    lines = (
        [text]
        if text.lstrip()[:1] == "{"
        else [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    )
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        event = event.get("response", event) if isinstance(event, dict) else {}
        if isinstance(event, dict) and event.get("usage"):
            return event
    return {}


def _from_base64(text: str) -> str:
    try:
        return base64.b64decode(text).decode("utf-8", "replace")
    except ValueError:
        return ""


_BODY_KEYS = ("body", "request", "request_body", "proxy_server_request", "payload", "json")


def capture_of(value: Any, source: str = "") -> Capture:
    """A capture from a text, a bare body, or a log line with the body inside it."""
    if isinstance(value, str):
        return Capture(value, source)
    if not isinstance(value, dict):
        raise RequestError(f"{source} is neither a text nor a JSON object.")
    body = next((found for key in _BODY_KEYS if (found := _as_body(value.get(key))) is not None), None)
    is_bare = body is None and any(key in value for key in ("messages", "input", "prompt"))
    document = value if is_bare else body if body is not None else value.get("text", {})
    usage = _usage_of(value)
    return Capture(
        document=document,
        source=source,
        time=_time(value.get("time", value.get("timestamp", value.get("startTime", value.get("created"))))),
        duration=_seconds(value),
        usage=read_usage(usage) if usage is not None else None,
        raw_usage=usage or {},
        session=_session(value, document),
        lane=str(value.get("lane") or value.get("label") or value.get("agent") or ""),
        route=_route(value),
        token_ids=_token_ids(value, source),
        fingerprints={k: str(v) for k, v in value.items() if k.endswith(("_fp", "_hash", "fingerprint"))},
        provider_reason=_reason(value),
        notes=_notes(value),
        hop=str(value.get("hop") or ""),
        model=str((document.get("model") if isinstance(document, dict) else "") or value.get("model") or ""),
    )


def _token_ids(value: Mapping[str, Any], source: str) -> tuple[int, ...]:
    ids = value.get("prompt_token_ids") or value.get("token_ids") or []
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 32 for i in ids):
        raise RequestError(f"{source} has token ids that are not whole numbers from 0 to 2**32 - 1.")
    return tuple(ids)


def _notes(value: Mapping[str, Any]) -> tuple[str, ...]:
    notes = value.get("notes") or value.get("log")
    return tuple(map(str, notes)) if isinstance(notes, list) else (notes,) if isinstance(notes, str) else ()


def _as_body(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, dict):
        inner = value.get("body")
        return inner if isinstance(inner, dict) else value
    return value if isinstance(value, str) else None


def _usage_of(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    response = value.get("response")
    response = response.get("body", response) if isinstance(response, dict) else {}
    holders = (value, response if isinstance(response, dict) else {})
    for holder in holders:
        for key in ("usage", "usageMetadata", "usage_metadata"):
            if isinstance(holder.get(key), dict):
                return {**holder[key], **{k: v for k, v in value.items() if k == "cached_tokens"}}
    if "cached_tokens" in value or "cache_read_tokens" in value:
        return {"cached_tokens": value.get("cached_tokens", value.get("cache_read_tokens")), **value}
    return {} if value.get("response") else None


def _time(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value / 1000 if value > 1e11 else float(value)
    try:
        return datetime.fromisoformat(str(value)).timestamp() if value else None
    except ValueError:
        return None


def _seconds(value: Mapping[str, Any]) -> float | None:
    for key, unit in (("duration", 1), ("duration_ms", 1000), ("latency_ms", 1000)):
        if isinstance(value.get(key), int | float):
            return float(value[key]) / unit
    return None


def _session(value: Mapping[str, Any], document: Any) -> str:
    found = value.get("session") or value.get("session_id") or value.get("conversation_id")
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return str(found or (metadata.get("session_id") if isinstance(metadata, dict) else "") or "")


def _route(value: Mapping[str, Any]) -> str:
    keys = ("route", "provider", "worker", "replica", "deployment", "upstream", "shard")
    return "/".join(str(value[key]) for key in keys if value.get(key))


def _reason(value: Mapping[str, Any]) -> str:
    """Anthropic's cache_miss_reason or OpenAI's prompt_cache_diagnostics, as it came."""
    response = value.get("response") if isinstance(value.get("response"), dict) else {}
    for holder in (value, response, value.get("usage") or {}):
        for key in ("diagnostics", "prompt_cache_diagnostics", "cache_miss_reason"):
            found = holder.get(key) if isinstance(holder, dict) else None
            if found:
                found = found.get("cache_miss_reason", found) if isinstance(found, dict) else found
                return json.dumps(found) if isinstance(found, dict | list) else str(found)
    return ""
