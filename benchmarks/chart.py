"""The README's chart: how many times faster than the named peer, one bar a row, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.table import Row

WIDTH, LABEL, BAR, GAP, TOP = 860, 330, 22, 12, 34
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.n{font-weight:600}.s{fill:#6e7781;font-size:11px}"
    ".bar{fill:#2f6f4f}.one{stroke:#8c959f;stroke-dasharray:3 3}.goal{stroke:#d4a72c;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#8d96a0}.bar{fill:#57ab7a}}"
)


def draw(rows: Sequence[Row]) -> str:
    """SVG text; a dashed line marks 1 (as fast as the peer), a yellow tick what was promised."""
    most = max(max(row.ratio, row.target) for row in rows)
    room = WIDTH - LABEL - 80

    def at(ratio: float) -> float:
        return LABEL + room * math.log10(max(ratio, 1)) / math.log10(max(most, 10))

    height = TOP + len(rows) * (BAR + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Times faster than the peer">',
        f"<style>{STYLE}</style>",
        f'<text class="s" x="{LABEL}" y="16">times faster than the peer (logarithmic; yellow: promised)</text>',
        f'<line class="one" x1="{LABEL}" x2="{LABEL}" y1="{TOP - 8}" y2="{height}"/>',
    ]
    for number, row in enumerate(rows):
        y = TOP + number * (BAR + GAP)
        middle = y + BAR / 2
        lines += [
            f'<text x="{LABEL - 10}" y="{middle - 1}" text-anchor="end">{escape(row.name)}</text>',
            f'<text class="s" x="{LABEL - 10}" y="{middle + 11}" text-anchor="end">{escape(row.peer_name)}</text>',
            f'<rect class="bar" x="{LABEL}" y="{y}" width="{max(at(row.ratio) - LABEL, 1):.1f}" height="{BAR}" rx="2"/>',
            f'<line class="goal" x1="{at(row.target):.1f}" x2="{at(row.target):.1f}" y1="{y - 2}" y2="{y + BAR + 2}"/>',
            f'<text class="n" x="{at(max(row.ratio, row.target)) + 8:.1f}" y="{middle + 5}">{row.ratio:,.{1 if row.ratio < 100 else 0}f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
