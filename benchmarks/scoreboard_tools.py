"""Runs in the scoreboard's own environment: asks each tool about each pair on stdin, writes what it said to stdout.

Imported by ``scoreboard`` for the words only; nothing of Foreword is imported here.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VOLATILE = ("volatile", "time", "date", "clock", "dynamic", "per-request", "changes every")
WORDS: dict[str, tuple[str, ...]] = {
    "A1": ("time", "date", "clock"),
    "A2": ("nonce", "hex", "uuid", "random", "checksum", "per-request", "hash"),
    "A3": (*_VOLATILE, "state", "snapshot", "memory", "git"),
    "A4": ("uuid", "session", "identity", "path", "user", "machine"),
    "A5": ("tool description", "description", "url", "session"),
    "B1": ("order", "permut", "shuffl", "sort"),
    "B2": ("key order", "key_order", "serializ", "serialis", "sorted keys", "json key", "property order"),
    "B3": ("serializ", "serialis", "json", "separator", "key order"),
    "B5": ("empty", "absent", "shape", "missing field"),
    "C1": ("inject", "hoist", "insert", "preamble", "prepend"),
    "C2": ("reminder", "breakpoint", "marker"),
    "C3": ("retriev", "document", "memory", "moved", "rag", "placement"),
    "C4": ("image",),
    "D1": ("window", "trunc", "trim", "drop"),
    "D2": ("compact", "summar"),
    "D3": ("reasoning", "thinking"),
    "D4": ("prun", "rewrit", "mutat", "edited", "histor"),
}
"""By cause: words of which one in a tool's message counts as naming it."""


def prefixguard(a: Any, b: Any, _: str) -> str:
    """The second observation's explanation."""
    guard = importlib.import_module("prefixguard").PrefixGuard()
    report = None
    for body in (a, b):
        report = guard.observe(body["messages"], system=body.get("system"), tools=body.get("tools"), session="s")
    return str(report.explain()) if report is not None and report.broken else ""


def promptcachelint(a: Any, b: Any, _: str) -> str:
    """The report on two recorded requests of one session."""
    module = importlib.import_module("promptcachelint")
    recorder = module.Recorder()
    for body in (a, b):
        recorder.record(_provider(body), body, response={}, session_id="s")
    text = str(module.analyze(recorder.records).to_text())
    return text if "prefix broken" in text else ""


def cachelint(a: Any, b: Any, _: str) -> str:
    """The diff command's text, where it says diverged and not merely that something was inserted, as every new turn is."""
    cli = importlib.import_module("cachelint.cli")
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder) / name for name in ("a.json", "b.json")]
        for name, body in zip(names, (a, b), strict=True):
            name.write_text(json.dumps(body))
        text = _captured(lambda: cli.main(["diff", "--provider", _provider(a), *map(str, names)]))
    return text if "diverged" in text and "(inserted)" not in text else ""


def kvlint(a: Any, b: Any, tokenizer: str) -> str:
    """The lint command's findings but the one on block boundaries, which says nothing of a cause."""
    app = importlib.import_module("kvlint.cli").app
    with tempfile.TemporaryDirectory() as folder:
        log, report = Path(folder) / "log.jsonl", Path(folder) / "report.json"
        log.write_text("\n".join(json.dumps(_as_chat(body)) for body in (a, b)))
        _captured(lambda: app(["lint", str(log), "--model", tokenizer, "--json", str(report)], standalone_mode=False))
        findings = json.loads(report.read_text())["findings"] if report.exists() else []
    return " ".join(f"{f['rule_id']} {f['evidence']}" for f in findings if f["rule_id"] != "block_straddle")


def _as_chat(body: Any) -> Any:
    """Kvlint reads chat bodies only."""
    if "system" not in body:
        return body
    return {
        **{k: v for k, v in body.items() if k != "system"},
        "messages": [{"role": "system", "content": body["system"]}, *body["messages"]],
    }


def _provider(body: Any) -> str:
    return "anthropic" if "system" in body else "openai"


def _captured(call: Callable[[], Any]) -> str:
    """What a command prints; its exit and its errors are part of the answer."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit, Exception):
        call()
    return out.getvalue()


TOOLS: dict[str, Callable[[Any, Any, str], str]] = {
    "kvlint 0.1.1": kvlint,
    "promptcachelint 0.1.0": promptcachelint,
    "cachelint 0.1.0a2": cachelint,
    "prefixguard 0.2.1": prefixguard,
}


def main() -> None:
    """Ask every tool about every pair; a tool that fails on a pair has said nothing."""
    given = json.load(sys.stdin)
    answers: dict[str, list[str]] = {}
    for name, ask in TOOLS.items():
        answers[name] = []
        for a, b in given["pairs"]:
            try:
                answers[name].append(ask(a, b, given["tokenizer"]))
            except Exception as error:  # noqa: BLE001 - whatever a tool does with odd input
                sys.stderr.write(f"{name}: {error!r}\n")
                answers[name].append("")
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
