"""The table of causes (causes.toml), and what a detector is given and gives back."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from foreword.diagnose.changes import Change
from foreword.errors import ConfigError

Fix = Literal["move", "align", "none"]
Scope = Literal["seam", "outside", "expected"]


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table: what it is, where the seam lands, who owns it, and the least edit that ends it."""

    code: str
    name: str
    scope: Scope
    where: str
    why: str
    owner: str
    fix: Fix
    edit: str
    example: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a detector found: a cause, and what it saw that makes it so."""

    cause: Cause
    evidence: str = ""
    fix: Fix = "align"
    is_small: bool = False

    @classmethod
    def of(cls, code: str, evidence: str = "", *, fix: Fix | None = None, is_small: bool = False) -> Verdict:
        """The verdict for a code, with the cause's own fix unless another fits this change.

        ``is_small`` says that in the newest turn it costs that turn alone and is no fault.
        """
        cause = all_causes()[code]
        return cls(cause, evidence, fix or cause.fix, is_small)


@dataclass(frozen=True, slots=True)
class Context:
    """The pair a change was found in.

    Attributes:
        a: request A, a body or a text.
        b: request B.
        changes: every change between them.
        same_session: whether both are of one session; None where the log does not say.
    """

    a: Any
    b: Any
    changes: Sequence[Change] = ()
    same_session: bool | None = None

    def role(self, change: Change) -> str:
        """The role of the message a change lies in: "system", "user", "assistant", "tool", or "" outside messages."""
        if len(change.path) < 2 or not isinstance(change.path[1], int):
            return ""
        body = self.a if change.op == "delete" else self.b
        turns = body.get(str(change.path[0])) if isinstance(body, dict) else None
        if isinstance(turns, list) and change.path[1] < len(turns) and isinstance(turns[change.path[1]], dict):
            return str(turns[change.path[1]].get("role") or turns[change.path[1]].get("type") or "")
        return ""

    def layer(self, change: Change) -> str:
        """tools, system, history, parameters or prompt; a system message counts as system."""
        from foreword.diagnose.layout import layer_of  # noqa: PLC0415 - layout and causes know each other's words only here

        layer = layer_of(change.path)
        is_system = layer == "history" and len(change.path) > 2 and self.role(change) in {"system", "developer"}
        return "system" if is_system else layer


@functools.cache
def all_causes() -> Mapping[str, Cause]:
    """Every cause by code, in the table's order."""
    rows = tomllib.loads(files(__package__).joinpath("causes.toml").read_text("utf-8"))
    return MappingProxyType({code: Cause(code=code, **row) for code, row in rows.items()})


def explain(code: str) -> Cause:
    """The cause behind a code, in any case; raises ConfigError with the nearest codes."""
    causes = all_causes()
    cause = causes.get(code.strip().upper())
    if cause is None:
        near = difflib.get_close_matches(code.upper(), causes, n=3, cutoff=0.4) or list(causes)[:3]
        raise ConfigError(f"There is no cause {code!r}.", hint=f"Did you mean {' or '.join(near)}?", codes=list(causes))
    return cause
