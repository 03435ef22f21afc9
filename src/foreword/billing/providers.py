"""Prompt-cache rules by provider, from the dated table beside this file."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.resources import files
from typing import Any

from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """One provider's rules; multipliers are of the input price, lives in seconds, 0 for none promised."""

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
    """The rules of a provider; raises ConfigError with the nearest names."""
    rules = all_providers().get(name.lower())
    if rules is None:
        near = difflib.get_close_matches(name.lower(), all_providers(), n=2, cutoff=0.4) or list(all_providers())
        raise ConfigError(f"There are no rules for provider {name!r}.", hint=f"Did you mean {' or '.join(near)}?")
    return rules


_STARTS = {
    "claude": "anthropic", "anthropic.": "bedrock", "amazon.": "bedrock", "us.": "bedrock", "gpt": "openai", "o1": "openai", "o3": "openai",
    "o4": "openai", "gemini": "gemini", "deepseek": "deepseek", "grok": "xai",
}  # fmt: skip


_OPENAI_WITH_BREAKPOINTS = re.compile(r"gpt-(?:5\.(?:[6-9]|\d\d)|[6-9]|\d\d)")


def provider_of(model: str) -> ProviderRules | None:
    """The provider a model's name points to, or None."""
    prefix, _, name = model.lower().rpartition("/")
    if prefix in {"", "openai"} and _OPENAI_WITH_BREAKPOINTS.match(name):
        return all_providers()["openai-5.6"]
    if prefix in all_providers():
        return all_providers()[prefix]
    return next((all_providers()[owner] for start, owner in _STARTS.items() if name.startswith(start)), None)
