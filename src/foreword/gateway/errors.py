"""Every error of ours as the API's own: an HTTP status and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from foreword.errors import (
    ContextOverflow,
    ForewordError,
    InputTooLarge,
    ModelError,
    ModelFetchError,
    ModelNotFound,
    RequestError,
    SpecialTokenNotAllowed,
    TemplateError,
    TokenizerError,
    TokenizerNotFound,
    WorkerError,
    WorkerUnavailable,
)

Headers = tuple[tuple[bytes, bytes], ...]


class Refusal(RequestError):
    """A request the gateway turns down: the status, the field at fault (``param``) and a code to switch on."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        hint: str = "",
        headers: Headers = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers


class Interrupted(ForewordError):
    """A request ended from outside: its client left (499), its time was up (504), or the server stops (503)."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ApiError:
    """What the client is told."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Headers = ()

    def as_dict(self) -> dict[str, Any]:
        """The ``error`` object of OpenAI's API."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        """The whole JSON body."""
        return msgspec.json.encode({"error": self.as_dict()})


ErrorBody = Callable[[ApiError, str], bytes]
"""An error as a whole response body, given the request's id."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def openai_body(error: ApiError, _request_id: str) -> bytes:
    """The body of OpenAI's API."""
    return error.body()


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """The error object of Anthropic's API."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def anthropic_body(error: ApiError, request_id: str) -> bytes:
    """The body of Anthropic's API."""
    return msgspec.json.encode({**anthropic_error(error), "request_id": request_id})


_KINDS: tuple[tuple[type[ForewordError], int, str | None, str | None], ...] = (
    (TokenizerNotFound, 404, "model", "model_not_found"),
    (ModelNotFound, 404, "model", "model_not_found"),
    (ContextOverflow, 400, None, "context_length_exceeded"),
    (InputTooLarge, 413, None, "input_too_large"),
    (SpecialTokenNotAllowed, 400, "prompt", "special_token_not_allowed"),
    (TokenizerError, 400, None, "tokenizer_error"),
    (TemplateError, 400, "messages", "template_error"),
    (ModelFetchError, 502, None, "model_fetch_failed"),
    (ModelError, 400, None, "model_error"),
    (RequestError, 400, None, None),
    (WorkerUnavailable, 503, None, "worker_unavailable"),
    (WorkerError, 502, None, "worker_error"),
)
"""The first kind that fits gives status, field and code."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def api_error(error: BaseException) -> ApiError:
    """The API's view of any exception. One that is not ours is a fault of the server: 500, and no detail leaks out."""
    if isinstance(error, Refusal):
        return ApiError(error.status, str(error), _type_of(error.status), error.param, error.code, error.headers)
    if isinstance(error, Interrupted):
        headers = retry_after(1) if error.status == 503 else ()
        return ApiError(error.status, str(error), _type_of(error.status), None, error.code, headers)
    for kind, status, param, code in _KINDS:
        if isinstance(error, kind):
            seconds = error.evidence.get("retry_after", 1)
            headers = retry_after(seconds) if status == 503 else ()
            return ApiError(status, str(error), _type_of(status), param, code, headers)
    return ApiError(
        500, "The server failed to answer this request. Its log says why.", "server_error", None, "internal"
    )


def _type_of(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def retry_after(seconds: float) -> Headers:
    """The Retry-After header, in whole seconds, at least one."""
    return ((b"retry-after", str(max(1, math.ceil(seconds))).encode()),)


def unsupported(field: str, why: str, *, hint: str = "") -> Refusal:
    """A field that is understood but not offered here."""
    return Refusal(f"{field!r}: {why}", param=field, code="unsupported_value", hint=hint)


_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")
_PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def decoding_refusal(error: Exception, body: bytes) -> Refusal:
    """What was wrong with a JSON body, naming the field where there is one."""
    if isinstance(error, msgspec.ValidationError):
        return _field_refusal(str(error))
    if isinstance(error, RecursionError):
        return Refusal("The body's JSON is nested too deeply.", code="invalid_json")
    reason = str(error).rstrip(".")
    if _LONE_SURROGATE.search(body):
        reason += "; it has a \\ud800-\\udfff escape, which is only valid as half of a pair"
    return Refusal(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _field_refusal(text: str) -> Refusal:
    place = _PLACE.search(text)
    path = place["path"] if place else ""
    if missing := _MISSING.search(text):
        field = f"{path}.{missing['field']}".lstrip(".")
        return Refusal(f"The field {field!r} is required.", param=field, code="missing_required_parameter")
    problem = _PLACE.sub("", text).replace("`", "")
    where = f"The field {path!r}" if path else "The body"
    return Refusal(f"{where} is wrong: {problem}.", param=path or None, code="invalid_value")
