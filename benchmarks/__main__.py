"""``make bench``: run every comparison and print one table. Name modules to run only those.

``--publish`` also writes the table into docs/benchmarks.md and draws docs/benchmarks.svg.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import benchmarks
from benchmarks.chart import draw
from benchmarks.table import Row, render

DOCS = Path(__file__).parents[1] / "docs"
PLACE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- /table -->)", re.DOTALL)


def measure(names: Sequence[str]) -> list[Row]:
    """The rows of every ``bench_*`` module, or of those named."""
    found: list[Row] = []
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name.startswith("bench_") and (not names or module.name.removeprefix("bench_") in names):
            print(f"running {module.name} ...", file=sys.stderr, flush=True)
            found += importlib.import_module(f"benchmarks.{module.name}").rows()
    return found


def publish(rows: Sequence[Row]) -> None:
    """Write what was measured into the documentation."""
    page = DOCS / "benchmarks.md"
    page.write_text(PLACE.sub(lambda _: render(rows) + "\n", page.read_text()))
    (DOCS / "benchmarks.svg").write_text(draw(rows))


def main(arguments: Sequence[str]) -> int:
    """Exit 1 when a promised ratio was missed."""
    rows = measure([name for name in arguments if name != "--publish"])
    print(render(rows))
    if "--publish" in arguments:
        publish(rows)
    return int(any(row.ratio < row.target for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
