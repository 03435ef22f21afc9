"""``foreword dive`` as one HTML file: layers left, content right. No script is loaded; text is left out unless asked for."""

from __future__ import annotations

import html
from collections.abc import Sequence

from foreword.diagnose.describe import headline
from foreword.report.layers import Dive, Layer

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--reused:#2e9d5b;--lost:#d97706;--new:#6b7280}
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}
h1{font-size:1.3rem}h2{font-size:1rem;margin:2rem 0 .3rem;overflow-wrap:anywhere}
.bar{display:flex;height:14px;border-radius:4px;overflow:hidden;margin:.4rem 0 1rem}
.bar i{display:block;min-width:1px;border-right:1px solid #fff6}
.reused{background:var(--reused)}.lost{background:var(--lost)}.new{background:var(--new)}.unread{display:none}
details{border-left:5px solid;margin:2px 0;padding:2px 8px}summary{cursor:pointer;display:flex;gap:1rem}
details.reused{border-color:var(--reused);background:none}details.lost{border-color:var(--lost);background:none}
details.new{border-color:var(--new);background:none}details.unread{border-color:var(--line);background:none;display:block}
summary b{min-width:11rem}summary span{font-variant-numeric:tabular-nums;min-width:6rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border-top:1px solid var(--line);padding-top:.4rem}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:top}
"""


def page(dives: Sequence[Dive], *, redact: bool = True) -> str:
    """The whole page; with ``redact`` no prompt text is in it."""
    body = "".join(_request(one, redact=redact) for one in dives)
    note = "Prompt text is left out (--no-redact puts it in)." if redact else "This page holds prompt text."
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Foreword dive</title><style>{_STYLE}</style><h1>Prompt layers</h1>"
        f"<p>Reused layers are green, identical ones out of reach orange, new ones grey; unread ones the template leaves out. {note}</p>{body}</html>\n"
    )


def _request(one: Dive, *, redact: bool) -> str:
    total = max(one.tokens, 1)
    bar = "".join(
        f'<i class="{layer.state}" style="flex:{layer.tokens}" title="{html.escape(layer.name)}"></i>'
        for layer in one.layers
    )
    head = f"{html.escape(one.source)}: {one.tokens:,} tokens, {one.efficiency:.0%} of what could be reused was"
    rows = "".join(_layer(layer, total, redact=redact) for layer in one.layers)
    return f'<h2>{head}</h2><div class="bar">{bar}</div>{_seams(one, redact=redact)}{rows}'


def _seams(one: Dive, *, redact: bool) -> str:
    if one.diff is None:
        return ""
    if not one.diff.seams:
        return f"<p>{html.escape(headline(one.diff))}</p>"
    rows = "".join(
        f"<tr><td>{seam.code}</td><td>{html.escape(seam.name)}</td><td>{html.escape(seam.path)} char {seam.char}</td>"
        f"<td>{seam.index:,}</td><td>{seam.lost_tokens:,}</td><td>{'' if redact else html.escape(seam.evidence)}</td><td>{html.escape(seam.edit)}</td></tr>"
        for seam in one.diff.seams
    )
    names = "".join(f"<th>{name}</th>" for name in ("code", "cause", "place", "token", "lost", "seen", "edit"))
    return f"<table><tr>{names}</tr>{rows}</table>"


def _layer(layer: Layer, total: int, *, redact: bool) -> str:
    text = "" if redact else f"<pre>{html.escape(layer.text)}</pre>"
    name = html.escape(layer.name)
    return (
        f'<details class="{layer.state}"><summary><b>{name}</b><span>{layer.tokens:,} tokens</span>'
        f"<span>{layer.tokens / total:.1%}</span><span>{layer.state}</span></summary>{text or html.escape(layer.path)}</details>"
    )
