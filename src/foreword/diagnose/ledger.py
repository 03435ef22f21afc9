"""How many distinct fingerprints there are, by five-minute window and lane, and which segment began to move when.

Counts are exact up to a bound and a HyperLogLog above it, so memory is bounded whatever arrives.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

WINDOW = 300
"""Seconds a window is long."""
EXACT = 10_000
"""Distinct values counted exactly."""
_PRECISION = 14
_REGISTERS = 1 << _PRECISION
_JUMP = 3
"""A window's count this many times the usual one is an onset."""


class DistinctCounter:
    """Distinct strings: a set up to ``exact``, 16 KiB of HyperLogLog registers above (standard error 0.8 %)."""

    __slots__ = ("_exact", "_registers", "_values")

    def __init__(self, exact: int = EXACT) -> None:
        self._exact = exact
        self._values: set[bytes] | None = set()
        self._registers = bytearray()

    def add(self, value: str) -> None:
        """Count a value."""
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if self._values is None:
            self._register(digest)
            return
        self._values.add(digest)
        if len(self._values) > self._exact:
            self._registers = bytearray(_REGISTERS)
            for known in self._values:
                self._register(known)
            self._values = None

    def _register(self, digest: bytes) -> None:
        number = int.from_bytes(digest, "big")
        index = number >> (64 - _PRECISION)
        rest = number & ((1 << (64 - _PRECISION)) - 1)
        rank = (64 - _PRECISION) - rest.bit_length() + 1
        self._registers[index] = max(self._registers[index], rank)

    def count(self) -> int:
        """How many distinct values were added."""
        if self._values is not None:
            return len(self._values)
        return round(_estimate(self._registers))

    @property
    def is_exact(self) -> bool:
        """Whether ``count`` is exact."""
        return self._values is not None


def _estimate(registers: bytearray) -> float:
    """Ertl's improved estimator ("New cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6)."""
    m, q = _REGISTERS, 64 - _PRECISION
    histogram = [0] * (q + 2)
    for register in registers:
        histogram[register] += 1
    z = m * _tau(1 - histogram[q + 1] / m)
    for k in range(q, 0, -1):
        z = 0.5 * (z + histogram[k])
    z += m * _sigma(histogram[0] / m)
    return m * m / (2 * math.log(2)) / z if z else 0.0


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, last = 1.0, x, -1.0
    while z != last:
        x, last = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in {0.0, 1.0}:
        return 0.0
    y, z, last = 1.0, 1 - x, -1.0
    while z != last:
        x, last = math.sqrt(x), z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3


@dataclass(frozen=True, slots=True)
class Onset:
    """When a segment of a lane began to move: from ``before`` distinct values a window to ``after``."""

    lane: str
    segment: str
    window: int
    before: int
    after: int
    steady: tuple[str, ...] = ()

    def __str__(self) -> str:
        from datetime import UTC, datetime  # noqa: PLC0415 - only for people

        at = datetime.fromtimestamp(self.window, UTC).strftime("%H:%M")
        text = f"{self.segment} went from {self.before} to {self.after} at {at}"
        return text + (f"; {', '.join(f'{name} stayed' for name in self.steady)}" if self.steady else "")


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """What a ledger holds."""

    lanes: int
    windows: int
    counters: int


class FingerprintLedger:
    """Distinct counts by lane, segment and window. Time is given with each request; lanes and windows are bounded."""

    def __init__(
        self, *, window: int = WINDOW, max_windows: int = 288, max_lanes: int = 256, exact: int = EXACT
    ) -> None:
        self.window = window
        self._max_windows = max_windows
        self._max_lanes = max_lanes
        self._exact = exact
        self._lanes: OrderedDict[str, OrderedDict[int, dict[str, DistinctCounter]]] = OrderedDict()

    def record(self, lane: str, fingerprints: Mapping[str, str | None], time: float) -> None:
        """Count one request's fingerprints, by segment name."""
        windows = self._lanes.setdefault(lane, OrderedDict())
        self._lanes.move_to_end(lane)
        if len(self._lanes) > self._max_lanes:
            self._lanes.popitem(last=False)
        counters = windows.setdefault(int(time // self.window) * self.window, {})
        while len(windows) > self._max_windows:
            del windows[min(windows)]
        for segment, value in fingerprints.items():
            if value is not None:
                counters.setdefault(segment, DistinctCounter(self._exact)).add(value)

    def counts(self, lane: str) -> dict[int, dict[str, int]]:
        """Distinct values by window start and segment."""
        windows = self._lanes.get(lane) or OrderedDict[int, dict[str, DistinctCounter]]()
        return {start: {name: c.count() for name, c in sorted(windows[start].items())} for start in sorted(windows)}

    def lanes(self) -> list[str]:
        """Lanes known, the one used last at the end."""
        return list(self._lanes)

    def onsets(self, lane: str) -> Iterator[Onset]:
        """Windows in which a segment's count rose to several times what it was, with the segments that stayed."""
        counts = self.counts(lane)
        starts = list(counts)
        for segment in sorted({name for window in counts.values() for name in window}):
            series = [(start, counts[start].get(segment, 0)) for start in starts]
            found = _first_jump(series)
            if found:
                window, before, after = found
                steady = tuple(
                    sorted(
                        name
                        for name in counts[window]
                        if name != segment and not _first_jump([(s, counts[s].get(name, 0)) for s in starts])
                    )
                )
                yield Onset(lane, segment, window, before, after, steady)

    def statistics(self) -> LedgerStatistics:
        """How much is held."""
        windows = [window for lane in self._lanes.values() for window in lane.values()]
        return LedgerStatistics(len(self._lanes), len(windows), sum(map(len, windows)))

    def check_integrity(self) -> None:
        """Raise where a bound is broken."""
        held = [len(windows) for windows in self._lanes.values()]
        if len(held) > self._max_lanes or any(count > self._max_windows for count in held):
            raise RuntimeError("The ledger holds more than its bounds.")


def _first_jump(series: list[tuple[int, int]]) -> tuple[int, int, int] | None:
    """The first window whose count is several times the largest before it."""
    usual = 0
    for start, count in series:
        if usual and count >= usual * _JUMP and count - usual >= _JUMP:
            return start, usual, count
        usual = max(usual, count)
    return None
