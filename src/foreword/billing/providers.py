"""Prompt-cache rules by provider, from the dated table beside this file."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.resources import files
from typing import Any

from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """One provider's rules; multipliers are of the input price, lives in seconds, 0 for none promised.

    Attributes:
        of: the provider, where the row is for some of its models or days only.
        models: a pattern that names of the models it is for begin with; "" for all.
        since: the first day it holds; None for ever before.
        until: the first day it no longer holds; None while it does.
        checked: the day its source was read.
    """

    name: str
    minimum: int
    step: int
    life: int
    read: Decimal
    write: Decimal
    markers: bool
    checked: str
    source: str
    lookback: int = 0
    long_life: int = 0
    long_write: Decimal = Decimal(0)
    by_model: Mapping[str, int] = field(default_factory=dict)
    of: str = ""
    models: str = ""
    since: date | None = None
    until: date | None = None

    def holds_on(self, day: date) -> bool:
        """Whether a request of that day was served under this row."""
        return (self.since is None or self.since <= day) and (self.until is None or day < self.until)

    def minimum_for(self, model: str) -> int:
        """The least number of tokens this model caches."""
        name = model.rpartition("/")[2].lower()
        return next((least for start, least in self.by_model.items() if start in name), self.minimum)

    def cacheable(self, tokens: int, model: str = "") -> int:
        """Of a shared prefix, what can be read from the cache: nothing under the minimum, else whole steps."""
        return tokens // self.step * self.step if tokens >= self.minimum_for(model) else 0


@functools.cache
def all_providers() -> Mapping[str, ProviderRules]:
    """Every provider's rules by name."""
    rows = tomllib.loads(files(__package__).joinpath("providers.toml").read_text("utf-8"))
    return {name: _rules(name, row) for name, row in rows.items()}


def _rules(name: str, row: dict[str, Any]) -> ProviderRules:
    decimals = ("read", "write", "long_write")
    fields: dict[str, Any] = {key: Decimal(value) if key in decimals else value for key, value in row.items()}
    return ProviderRules(name=name, **fields)


def provider(name: str) -> ProviderRules:
    """The row of that name, whatever day it held on; raises ConfigError with the nearest names."""
    rules = all_providers().get(name.lower())
    if rules is None:
        near = difflib.get_close_matches(name.lower(), all_providers(), n=2, cutoff=0.4) or list(all_providers())
        raise ConfigError(f"There are no rules for provider {name!r}.", hint=f"Did you mean {' or '.join(near)}?")
    return rules


_STARTS = {
    "claude": "anthropic", "anthropic.": "bedrock", "amazon.": "bedrock", "us.": "bedrock", "gpt": "openai", "o1": "openai", "o3": "openai",
    "o4": "openai", "gemini": "gemini", "deepseek": "deepseek", "grok": "xai",
}  # fmt: skip


def rules_for(model: str = "", provider: str = "", day: date | None = None) -> ProviderRules | None:
    """The rules a request was served under, or None where neither name says whose they are.

    Args:
        model: as the request names it; with a provider in front (``openai/gpt-5.2``) that provider is meant.
        provider: the provider, where it is known; wins over the model's name.
        day: when the request was made. Without it the rules of today are meant.
    """
    return _row_for(model, provider, day or datetime.now(UTC).date())


@functools.lru_cache(maxsize=1024)  # a log asks the same of every request
def _row_for(model: str, provider: str, day: date) -> ProviderRules | None:
    prefix, _, name = model.lower().rpartition("/")
    known = all_providers()
    owner = next((one for one in (provider.lower(), prefix) if one in known), "") or next(
        (one for start, one in _STARTS.items() if name.startswith(start)), ""
    )
    if not owner:
        return None
    rows = [row for row in known.values() if owner in {row.name, row.of} and row.holds_on(day)]
    meant = (row for row in rows if row.models and re.match(row.models, name))
    return next(meant, None) or next((row for row in rows if row.name == owner or not row.models), None)
