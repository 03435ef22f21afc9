"""Prices a model, from the genai-prices package. Never kept by hand."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from foreword.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars a million prompt tokens; None where the model has no such price."""

    model: str
    provider: str
    input: Decimal
    read: Decimal | None
    write: Decimal | None

    def lost(self, tokens: int) -> Decimal:
        """What tokens cost when they are billed in full instead of as a cache read."""
        return (self.input - (self.read if self.read is not None else self.input)) * tokens / 1_000_000


def price_of(model: str, provider: str | None = None) -> Price:
    """The price of a model at the lowest tier; raises ConfigError for one that has none."""
    try:
        from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - 2,330 models take a moment to import
    except ImportError:
        raise ConfigError("Prices need the extra `prices`.", hint="pip install 'foreword[prices]'") from None
    try:
        found, info = get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        raise ConfigError(
            f"There is no price for model {model!r}{f' at {provider}' if provider else ''}.",
            hint="Name it as the provider does, or leave it out.",
        ) from None
    from datetime import UTC, datetime  # noqa: PLC0415 - beside its only use

    price = info.get_prices(datetime.now(UTC))
    rates = [_rate(price.input_mtok), _rate(price.cache_read_mtok), _rate(price.cache_write_mtok)]
    if rates[0] is None:
        raise ConfigError(f"Model {info.id!r} has no price for input tokens.")
    return Price(info.id, found.id, rates[0], rates[1], rates[2])


def _rate(value: object) -> Decimal | None:
    base = getattr(value, "base", value)
    return None if base is None else Decimal(str(base))
