"""``make bench``: run every comparison and print one table. Name modules to run only those."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.table import Row, render


def main(names: list[str]) -> int:
    """Run each module of this package that has ``rows()``; exit 1 when a promised ratio was missed."""
    found: list[Row] = []
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name.startswith("bench_") and (not names or module.name.removeprefix("bench_") in names):
            print(f"running {module.name} ...", file=sys.stderr, flush=True)
            found += importlib.import_module(f"benchmarks.{module.name}").rows()
    print(render(found))
    return int(any(row.ratio < row.target for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
