"""What a linter finds: a place, a code, a message, perhaps an edit of the text; and the baseline of known ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foreword.diagnose.causes import all_causes
from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``text[start:end]``; safe edits keep what the program means."""

    start: int
    end: int
    replacement: str
    is_safe: bool = True


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding; lines and columns count from 1."""

    code: str
    message: str
    file: str
    line: int = 0
    column: int = 0
    edits: tuple[Edit, ...] = ()
    snippet: str = ""

    @property
    def fingerprint(self) -> str:
        """What stays the same when lines above come or go."""
        return hashlib.sha256(f"{self.file}|{self.code}|{self.snippet or self.message}".encode()).hexdigest()[:16]


def check_codes(codes: Iterable[str]) -> tuple[str, ...]:
    """Codes, or their beginnings, in capitals; raises ConfigError for one with which no cause begins."""
    given = tuple(code.upper() for code in codes)
    for code in given:
        if not code or not any(known.startswith(code) for known in all_causes()):
            raise ConfigError(f"No cause's code begins with {code!r}.", hint="`foreword explain` lists them.")
    return given


def select(findings: Iterable[LintFinding], chosen: Sequence[str], ignored: Sequence[str]) -> list[LintFinding]:
    """Those whose code begins with a chosen one (all where none is) and with no ignored one."""
    return [
        finding
        for finding in findings
        if (not chosen or finding.code.startswith(tuple(chosen)))
        and not (ignored and finding.code.startswith(tuple(ignored)))
    ]


def read_baseline(path: Path) -> set[str]:
    """The fingerprints of a baseline file; raises ConfigError for a file that is none."""
    try:
        return set(json.loads(path.read_text("utf-8"))["findings"])
    except FileNotFoundError:
        raise ConfigError(f"There is no baseline {path}.", hint="Write one with --write-baseline.") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is no baseline.", hint="Write one with --write-baseline.") from None


def write_baseline(path: Path, findings: Iterable[LintFinding]) -> None:
    """Write down what is known, so that only what is new is reported."""
    known = sorted({finding.fingerprint for finding in findings})
    path.write_text(json.dumps({"findings": known}, indent=2) + "\n", "utf-8")


def apply_edits(text: str, findings: Iterable[LintFinding], *, unsafe: bool = False) -> str:
    """The text with the findings' edits made; of edits that overlap, the first."""
    edits = sorted(
        {edit for finding in findings for edit in finding.edits if edit.is_safe or unsafe},
        key=lambda e: (e.start, e.end),
    )
    parts: list[str] = []
    at = 0
    for edit in edits:
        if edit.start >= at:
            parts += [text[at : edit.start], edit.replacement]
            at = edit.end
    return "".join([*parts, text[at:]])
