"""``pytest --prompt-stability`` and the fixture ``assert_prefix_stable``: the same request, rendered under other weather.

The function under test is called in fresh processes with other PYTHONHASHSEEDs, time zones, locales and clocks, and with
dictionaries and tools shuffled; where two renderings differ, the test fails with the seam.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CONDITIONS: tuple[dict[str, str], ...] = (
    {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8", "FOREWORD_CLOCK_SHIFT": "0"},
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8", "FOREWORD_CLOCK_SHIFT": "0"},
    {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "FOREWORD_CLOCK_SHIFT": "0"},
    {"PYTHONHASHSEED": "0", "TZ": "America/New_York", "LC_ALL": "de_DE.UTF-8", "FOREWORD_CLOCK_SHIFT": "0"},
    {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8", "FOREWORD_CLOCK_SHIFT": "93784"},
)
"""The first is the reference; each other changes one thing or more."""

_RUNNER = textwrap.dedent(
    """
    import importlib.util, json, os, sys, time
    shift = float(os.environ["FOREWORD_CLOCK_SHIFT"])
    if shift:
        import datetime as real
        plain = time.time
        time.time = lambda: plain() + shift
        class Later(real.datetime):
            @classmethod
            def now(cls, tz=None):
                return super().now(tz) + real.timedelta(seconds=shift)
            @classmethod
            def utcnow(cls):
                return cls.now(real.timezone.utc).replace(tzinfo=None)
            @classmethod
            def today(cls):
                return cls.now()
        class LaterDate(real.date):
            @classmethod
            def today(cls):
                return Later.now().date()
        real.datetime, real.date = Later, LaterDate
    sys.path[:0] = json.loads(os.environ["FOREWORD_PATH"])
    spec = importlib.util.spec_from_file_location("prompt_under_test", os.environ["FOREWORD_FILE"])
    module = importlib.util.module_from_spec(spec)
    sys.modules["prompt_under_test"] = module
    spec.loader.exec_module(module)
    target = module
    for name in os.environ["FOREWORD_NAME"].split("."):
        target = getattr(target, name)
    arguments = json.loads(sys.stdin.read())
    json.dump(target(*arguments["args"], **arguments["kwargs"]), sys.stdout)
    """
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --prompt-stability."""
    group = parser.getgroup("foreword")
    group.addoption("--prompt-stability", action="store_true", help="Run only the tests that use assert_prefix_stable.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --prompt-stability keep the tests that ask for the fixture."""
    if not config.getoption("--prompt-stability"):
        return
    kept = [item for item in items if "assert_prefix_stable" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture
def assert_prefix_stable() -> Callable[..., None]:
    """Call a module-level function with JSON arguments under every condition and compare what it returns.

    ``assert_prefix_stable(build_request, tools=[...])`` passes where every rendering has the same token ids. The function
    must be importable from its file and return a text or a request body.
    """
    return check_prefix_stable


def check_prefix_stable(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """The fixture's function: fails the test with the seam of the first rendering that differs."""
    __tracebackhide__ = True
    reference = _render(function, CONDITIONS[0], args, kwargs)
    for condition, arguments in _variations(args, kwargs):
        other = _render(function, condition, *arguments)
        if other != reference or json.dumps(other) != json.dumps(reference):
            _compare(reference, other, condition)


def _variations(args: Any, kwargs: Any) -> Iterator[tuple[dict[str, str], tuple[Any, Any]]]:
    for condition in CONDITIONS[1:]:
        yield condition, (args, kwargs)
    shuffled = _shuffled([list(args), kwargs], random.Random(7))  # noqa: S311 - repeatable, nothing secret
    yield {**CONDITIONS[0], "ARGUMENTS": "dict keys and tools shuffled"}, (shuffled[0], shuffled[1])


def _shuffled(value: Any, chance: random.Random) -> Any:
    """The same JSON with dictionary keys and lists of tools in another order; other lists keep theirs."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: _shuffled(value[key], chance) for key in keys}
    if isinstance(value, list):
        items = [_shuffled(item, chance) for item in value]
        if items and all(
            isinstance(item, dict) and ("name" in item or "function" in item) and "role" not in item for item in items
        ):
            items.reverse()
        return items
    return value


def _render(function: Callable[..., Any], condition: dict[str, str], args: Any, kwargs: Any) -> Any:
    code = function.__code__
    environment = {
        **os.environ, **condition, "FOREWORD_FILE": code.co_filename, "FOREWORD_NAME": function.__qualname__,
        "FOREWORD_PATH": json.dumps(sys.path),
    }  # fmt: skip
    done = subprocess.run(  # noqa: S603 - our own interpreter on the function under test
        [sys.executable, "-c", _RUNNER], input=json.dumps({"args": list(args), "kwargs": kwargs}), env=environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(f"{function.__qualname__} failed under {condition}:\n{done.stderr.strip()[-2000:]}", pytrace=False)
    return json.loads(done.stdout)


def _compare(reference: Any, other: Any, condition: dict[str, str]) -> None:
    from foreword.diagnose.describe import describe_diff  # noqa: PLC0415
    from foreword.diagnose.diff import diff_prompts  # noqa: PLC0415 - only when it fails
    from foreword.testing.words import WordTokenizer  # noqa: PLC0415 - ids by words are enough to tell same from other

    diff = diff_prompts(reference, other, WordTokenizer())
    if diff.relation == "identical" and not diff.outside_causes:
        return
    changed = ", ".join(f"{k}={v}" for k, v in condition.items() if CONDITIONS[0].get(k) != v) or "another hash seed"
    pytest.fail(f"The prompt is not the same under {changed}.\n\n{describe_diff(diff)}", pytrace=False)
