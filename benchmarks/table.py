"""One row a comparison: what was measured, ours against the peer's, and the ratio that was promised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was measured.
        ours: our median, in ``unit``.
        peer: the peer's median, in ``unit``.
        peer_name: who that is, with its version.
        unit: of both figures.
        ratio: how many times better we are; taken pair by pair, then the median.
        spread: least and greatest ratio seen.
        target: the ratio promised; 0 where none is.
    """

    name: str
    ours: float
    peer: float
    peer_name: str
    unit: str
    ratio: float
    spread: tuple[float, float]
    target: float


def interleave(
    ours: Callable[[], object], peer: Callable[[], object], *, rounds: int = 7, inner: int = 1
) -> tuple[list[float], list[float]]:
    """Time both in turn, ours first and peer first alternately; seconds a call, ``rounds`` of each after one warm-up."""
    ours(), peer()
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        pair = ((0, ours), (1, peer)) if number % 2 == 0 else ((1, peer), (0, ours))
        for side, function in pair:
            start = time.perf_counter()
            for _ in range(inner):
                function()
            times[side].append((time.perf_counter() - start) / inner)
    return times


def compare(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    peer_name: str,
    target: float,
    unit: str = "s",
    scale: float = 1,
) -> Row:
    """A row from paired timings (lower is better), each multiplied by ``scale`` for display."""
    ratios = [b / a for a, b in zip(ours, peer, strict=True)]
    return Row(
        name=name,
        ours=statistics.median(ours) * scale,
        peer=statistics.median(peer) * scale,
        peer_name=peer_name,
        unit=unit,
        ratio=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        target=target,
    )


def compare_rates(
    name: str, ours: Sequence[float], peer: Sequence[float], *, peer_name: str, target: float, unit: str = "/s"
) -> Row:
    """A row from paired rates (higher is better)."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return Row(
        name, statistics.median(ours), statistics.median(peer), peer_name, unit, statistics.median(ratios),
        (min(ratios), max(ratios)), target,
    )  # fmt: skip


def render(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    lines = [
        "| measured | Foreword | peer | | ratio | least-greatest | promised |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r.name} | {r.ours:,.4g} {r.unit} | {r.peer:,.4g} {r.unit} | {r.peer_name} | **{r.ratio:.2f}** "
        f"| {r.spread[0]:.2f}-{r.spread[1]:.2f} | {f'{r.target:g}' if r.target else 'as near as can be'} |"
        for r in rows
    ]
    return "\n".join(lines)
