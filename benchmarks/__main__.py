"""``make bench``: run every comparison and print one table. Name modules to run only those.

``--publish`` also writes the table into docs/benchmarks.md and draws docs/benchmarks.svg.
"""

from __future__ import annotations

import argparse
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


def known() -> list[str]:
    """The names of the ``bench_*`` modules."""
    modules = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return [name.removeprefix("bench_") for name in modules if name.startswith("bench_")]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What to run; exits with one sentence on a name that is unknown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare, and print one table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known())}; without any, all")
    parser.add_argument(
        "--publish", action="store_true", help="write the table into docs/benchmarks.md, draw its chart"
    )
    parsed = parser.parse_args(arguments)
    if unknown := [name for name in parsed.names if name not in known()]:
        parser.error(f"There is no benchmark {unknown[0]!r}; there are {', '.join(known())}.")
    return parsed


def measure(names: Sequence[str]) -> list[Row]:
    """The rows of every benchmark, or of those named."""
    found: list[Row] = []
    for name in names or known():
        print(f"running bench_{name} ...", file=sys.stderr, flush=True)
        found += importlib.import_module(f"benchmarks.bench_{name}").rows()
    return found


def publish(rows: Sequence[Row]) -> None:
    """Write what was measured into the documentation."""
    page = DOCS / "benchmarks.md"
    page.write_text(PLACE.sub(lambda _: render(rows) + "\n", page.read_text()))
    (DOCS / "benchmarks.svg").write_text(draw(rows))


def main(arguments: Sequence[str]) -> int:
    """Exit 1 when a promised ratio was missed."""
    parsed = parse(arguments)
    rows = measure(parsed.names)
    print(render(rows))
    if parsed.publish:
        publish(rows)
    return int(any(row.ratio < row.target for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
