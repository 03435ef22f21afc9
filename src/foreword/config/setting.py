"""One setting: its names, its kind, its range, and how a value given as text or TOML is read."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreword.errors import ConfigError

PREFIX = "FOREWORD_"


def setting(
    section: str,
    default: Any,
    help: str,  # noqa: A002 - click's word
    *,
    metavar: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
) -> Any:
    """One setting as a dataclass field; a numeric range is inclusive, a pattern matches the whole value.

    With both choices and a pattern a value is one of the choices or matches.
    """
    row = {
        "section": section,
        "help": help,
        "metavar": metavar,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "pattern": pattern,
    }
    return field(default=default, metadata=row)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a field of ``Config`` and all its names.

    ``kind`` is bool, int, float, str, Path or tuple (of str). A setting whose default is None is optional.
    """

    name: str
    kind: type
    default: Any
    section: str
    help: str
    metavar: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    pattern: str

    @property
    def key(self) -> str:
        """The TOML key."""
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        """The command line's name."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    def parse(self, value: Any, source: str) -> Any:
        """The value as ``kind``, inside its range; raises ConfigError that names ``source``."""
        try:
            parsed = _CONVERTERS[self.kind](value)
        except (TypeError, ValueError, OverflowError):
            raise self._error(value, source, f"is not {_KIND_NAMES[self.kind]}") from None
        if problem := self._problem(parsed):
            raise self._error(value, source, problem)
        return parsed

    def _problem(self, value: Any) -> str:
        if self.choices and value not in self.choices and not (self.pattern and re.fullmatch(self.pattern, value)):
            return f"is not one of {', '.join(self.choices)}{did_you_mean(value, self.choices)}"
        if self.pattern and not self.choices and not re.fullmatch(self.pattern, value):
            return f"does not match {self.pattern}"
        if self.minimum is not None and self.maximum is not None and not self.minimum <= value <= self.maximum:
            return f"is not from {self.minimum:.15g} to {self.maximum:.15g}"
        return ""

    def _error(self, value: Any, source: str, problem: str) -> ConfigError:
        shown = value if isinstance(value, str) else repr(value)
        return ConfigError(f"{source}: {shown!r:.200} {problem}." if shown else f"{source}: the value is empty.")


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}[
        value.lower()
    ]


def _to_int(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not math.isfinite(number := float(value)):
        raise TypeError
    return number


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value or "\0" in value:
        raise ValueError
    return value


def _to_path(value: Any) -> Path:
    try:
        return Path(_to_str(value)).expanduser()
    except RuntimeError:  # ``~name`` of nobody here
        raise ValueError from None


def _to_tuple(value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else [value]
    return tuple(item for part in parts for item in re.split(r"[\s,]+", _to_str(part)) if item)


def _bool_or_value_error(value: Any) -> bool:
    try:
        return _to_bool(value)
    except (KeyError, AttributeError):
        raise ValueError from None


_CONVERTERS: dict[type, Any] = {
    bool: _bool_or_value_error,
    int: _to_int,
    float: _to_float,
    str: _to_str,
    Path: _to_path,
    tuple: _to_tuple,
}
_KIND_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    tuple: "a list of texts",
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``", did you mean 'x'?"`` for the closest known word, or nothing."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""
