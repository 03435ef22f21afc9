"""What kind of value a short changed text is: a clock, a date, a nonce, a path, an invisible character."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

Kind = Literal[
    "clock", "date", "uuid", "nonce", "url", "path", "identity", "counter", "number", "whitespace", "unicode"
]

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_ZONE = r"(?:\s*(?:utc|gmt|z|[ap]\.?m\.?|cest|cet|est|edt|pst|pdt|[+-]\d\d:?\d\d))?"
_TIME = rf"\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?{_ZONE}"
_DATE = rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}|{_MONTH}|{_DAY}|\d{{1,2}}(?:st|nd|rd|th)?|\d{{4}})"
_CLOCK = re.compile(rf"(?:{_DATE}[\s,T]*|at\s+|of\s+)*{_TIME}(?:[\s,]*{_DATE})*", re.IGNORECASE)
_ISO = re.compile(rf"\d{{4}}-?\d\d-?\d\d[T ]?{_TIME}|\d{{8}}T\d{{6}}Z?", re.IGNORECASE)
_EPOCH = re.compile(r"1[4-9]\d{8}(?:\d{3}|\d{6}|\.\d+)?")
_DATES = re.compile(rf"(?:{_DATE}[\s,]*(?:of\s+)?)+", re.IGNORECASE)
_NAMED_DATE = re.compile(rf"{_MONTH}|{_DAY}|\d{{4}}[-/.]|\d[-/.]\d", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_HEX = re.compile(r"[0-9a-f]{4,}", re.IGNORECASE)
_OPAQUE = re.compile(r"(?=\w*\d)(?=\w*[a-z])[\w-]{8,}", re.IGNORECASE)
_PREFIXED = re.compile(r"(?:session|sess|req|run|trace|conv|thread|msg|user|usr)[_-]\w{4,}", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PATH = re.compile(r"(?:~|\.{0,2}|[a-z]:)?[/\\][\w.@+-]+(?:[/\\][\w.@+-]*)*|[\w.@-]+(?:/[\w.@+-]+){2,}", re.IGNORECASE)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*", re.IGNORECASE)
_COUNTER = re.compile(r"\d{1,7}")
_NUMBER = re.compile(r"[-+]?\d[\d.,_ '\u00a0\u202f]*%?")

INVISIBLE = {
    "\u00a0": "NBSP",
    "\u00ad": "SHY",
    "\u200b": "ZWSP",
    "\u200c": "ZWNJ",
    "\u200d": "ZWJ",
    "\u2009": "THIN SPACE",
    "\u202f": "NNBSP",
    "\u2028": "LINE SEPARATOR",
    "\u2060": "WORD JOINER",
    "\u3000": "IDEOGRAPHIC SPACE",
    "\ufeff": "U+FEFF",
    "\r": "CR",
    "\t": "TAB",
    "\n": "LF",
}
"""Characters a terminal does not show, by the name they are reported under."""

_ZERO_WIDTH = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff\r"))


def squash(text: str) -> str:
    """The text without what the eye cannot see: one form of Unicode, one kind of space, none at line ends."""
    text = unicodedata.normalize("NFC", text).translate(_ZERO_WIDTH)
    return re.sub(r"\s+", "", text)


def is_look_alike(a: str, b: str) -> bool:
    """Whether two different texts look the same in a terminal: spaces, line ends, invisible characters, NFC and NFD."""
    return a != b and squash(a) == squash(b)


def is_clock(text: str) -> bool:
    """A time of day, with or without a date, or seconds since the epoch."""
    text = text.strip(" .,;()[]\"'")
    return bool(_ISO.fullmatch(text) or _CLOCK.fullmatch(text) or _EPOCH.fullmatch(text))


def is_date(text: str) -> bool:
    """A calendar date or a part of one that names it: ``2026-11-30``, ``Monday, 30 November``."""
    text = text.strip(" .,;()[]\"'")
    return bool(_DATES.fullmatch(text) and _NAMED_DATE.search(text))


def granularity(text: str) -> str:
    """How fine a clock or date is: seconds, minutes or days."""
    if re.search(r"\d:\d\d:\d\d|\dT\d{6}", text) or _EPOCH.fullmatch(text.strip()):
        return "seconds"
    return "minutes" if re.search(r"\d:\d\d", text) else "days"


def kind_of(text: str) -> Kind | None:  # noqa: PLR0911 - one return a kind is the clearest table
    """The kind of one value, most particular first, or None for prose."""
    value = text.strip(" \t\r\n,;()[]{}<>\"'`").rstrip(".:")
    if is_clock(value):
        return "clock"
    if is_date(value):
        return "date"
    if _URL.match(value):
        return "url"
    if _UUID.search(value):
        return "uuid"
    if _PATH.fullmatch(value):
        return "path"
    if _EMAIL.fullmatch(value) or _PREFIXED.fullmatch(value):
        return "identity"
    if _COUNTER.fullmatch(value):
        return "counter"
    if _HEX.fullmatch(value) or _OPAQUE.fullmatch(value):
        return "nonce"
    return "number" if _NUMBER.fullmatch(value) else None


def kind_of_change(a: str, b: str) -> Kind | None:
    """The kind two sides of a change share; a look-alike pair first, since nothing else explains it."""
    if is_look_alike(a, b):
        same_form = unicodedata.normalize("NFC", a) == unicodedata.normalize("NFC", b)
        return "unicode" if same_form else "whitespace"
    kinds = {kind_of(side) for side in (a, b) if side.strip()}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds <= {"clock", "date", "counter"} and kinds & {"clock", "date"}:
        return "clock" if "clock" in kinds else "date"
    return "nonce" if kinds and kinds <= {"nonce", "counter"} else None
