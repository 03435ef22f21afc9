"""The words around a change that tell live state from retrieved text, a nonce from an identity."""

from __future__ import annotations

import re

STATE = re.compile(
    r"git|branch|modified|untracked|changed files|open (?:files|tabs)|tabs?\b|workspace|memor(?:y|ies)|recall|snapshot|state|status|"
    r"battery|temperature|devices?|:\s*(?:on|off)\b|remaining|uptime|balance|inventory|currently",
    re.IGNORECASE,
)
RETRIEVED = re.compile(
    r"<doc|document|retriev|passage|chunk|excerpt|search result|source[s:]|context[s:>]|knowledge|memor(?:y|ies)|article",
    re.IGNORECASE,
)
REMINDER = re.compile(r"remind|tokens? left|remaining|<system-|budget|turns? left|status line", re.IGNORECASE)
IDENTITY = re.compile(
    r"session|scratchpad|user|home|cwd|director|workspace|host|machine|account|tenant|path|e-?mail|name\b|device.?id|locale",
    re.IGNORECASE,
)
NONCE = re.compile(
    r"chk|cch|checksum|nonce|request|trace|span|hash|salt|random|seed|sig\b|build|correlation", re.IGNORECASE
)
SUMMARY = re.compile(
    r"summar|compact|condensed|earlier conversation|conversation so far|previous conversation", re.IGNORECASE
)
PLACEHOLDER = re.compile(r"prun|trimmed|omitted|elided|cleared|removed|truncat|\[\.\.\.\]|snipped", re.IGNORECASE)
THINK = re.compile(r"<think|</think|<reasoning|<\|channel\|>analysis")


ON_OFF = frozenset(
    [
        "on",
        "off",
        "true",
        "false",
        "open",
        "closed",
        "locked",
        "unlocked",
        "online",
        "offline",
        "idle",
        "busy",
        "up",
        "down",
        "home",
        "away",
    ]
)
_FAR = 600


def heading_above(text: str, at: int) -> str:
    """The nearest line above that heads what stands at ``at``: one that ends in a colon, or a heading or tag."""
    lines = text[max(0, at - _FAR) : at].split("\n")[:-1]
    return next(
        (line for line in reversed(lines) if line.rstrip().endswith(":") or line.lstrip()[:1] in {"#", "<"}), ""
    )


def line_around(text: str, at: int, end: int) -> str:
    """The whole lines that hold ``text[at:end]``, and the one above, at most 240 characters either side."""
    above = text.rfind("\n", 0, max(0, text.rfind("\n", 0, at))) + 1
    below = text.find("\n", end)
    return text[max(above, at - 240) : min(below if below >= 0 else len(text), end + 240)]
