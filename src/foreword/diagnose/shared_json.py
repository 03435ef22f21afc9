"""Read the lines of a log, each distinct part of them once.

Requests of a log repeat one another: the tools, the system text and the history are there again and again. Parts of equal
bytes become one object, so that a long log is small in memory and equal parts are found equal without being compared.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

_Raw = msgspec.Raw
_fields = msgspec.json.Decoder(dict[str, _Raw]).decode
_elements = msgspec.json.Decoder(list[_Raw]).decode
_decode = msgspec.json.Decoder().decode
_FLAT = b'"{['
_LEVELS = 4
"""Levels at most around a part that is shared."""


class SharedJson:
    """Decodes as ``json.loads`` does; nobody may change what it gives. For one log, by one thread.

    Args:
        max_depth: levels of lists and objects at most.
    """

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._known: dict[bytes, Any] = {}

    def loads(self, text: str) -> Any:
        """The value; raises ValueError or RecursionError where it is not JSON, and OverflowError where it is too deep.

        What ``msgspec`` refuses and ``json`` does not (NaN, lone surrogates, numbers past the float's range) is left to ``json``.
        """
        try:
            return self._object(_fields(text), _LEVELS)
        except (msgspec.MsgspecError, RecursionError, OverflowError):
            value = json.loads(text)
        if is_deep(value, self._max_depth):
            raise OverflowError(f"nested deeper than {self._max_depth}")
        return value

    def _object(self, fields: dict[str, _Raw], levels: int) -> dict[str, Any]:
        return {key: self._value(bytes(raw), levels - 1) for key, raw in fields.items()}

    def _value(self, raw: bytes, levels: int) -> Any:
        head = raw[0]
        if head == 0x7B and levels > 2:  # an object: the body, perhaps
            return self._object(_fields(raw), levels)
        if head == 0x5B:
            return [self._shared(bytes(element)) for element in _elements(raw)]
        return self._shared(raw)

    def _shared(self, raw: bytes) -> Any:
        if raw[0] not in _FLAT:
            return _decode(raw)
        value = self._known.get(raw)
        if value is None:
            value = self._known[raw] = _decode(raw)
            if is_deep(value, self._max_depth - _LEVELS):
                raise OverflowError
        return value


def is_deep(value: Any, levels: int) -> bool:
    """Whether a value has more levels of lists and objects than these."""
    level = [value]
    for _ in range(levels):
        level = [
            v
            for item in level
            for v in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        ]
        if not level:
            return False
    return True
