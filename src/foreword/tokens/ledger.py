"""The budget of one cache level: what its items weigh, who holds them, and which goes first when room is needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Weighed(Protocol):
    """What a ledger keeps count of: anything with a size in bytes that belongs to a tenant."""

    size: int
    tenant: str


Item = TypeVar("Item", bound=Weighed)


class Ledger(Generic[Item]):
    """Items in order of use with their sizes, under a bound in bytes and one in items.

    Without a quota all tenants share one order, and the least recently used item goes first. With a quota each tenant
    has an order of its own: a tenant over its quota gives way to itself, and when the whole is full the tenant that
    holds most does.
    """

    def __init__(
        self, max_memory: int, *, max_entries: int | None = None, tenant_max_memory: int | None = None
    ) -> None:
        self.max_memory = max_memory
        self.max_entries = max_entries
        self.tenant_max_memory = tenant_max_memory
        self.bytes = 0
        self.entries = 0
        self._limit = max_memory if tenant_max_memory is None else min(max_memory, tenant_max_memory)
        self._orders: dict[str, OrderedDict[Item, None]] = {}
        self._held: dict[str, int] = {}

    @property
    def largest_item(self) -> int:
        """The most one item may weigh: a quarter of what its tenant may hold."""
        return self._limit // 4

    def admits(self, size: int) -> bool:
        """Whether ``size`` bytes fit when all that may go has gone."""
        return size <= self._limit

    def add(self, item: Item) -> None:
        """Take on an item as the most recently used."""
        account = self._account(item.tenant)
        order = self._orders.get(account)
        if order is None:
            order = self._orders[account] = OrderedDict()
        order[item] = None
        self._held[account] = self._held.get(account, 0) + item.size
        self.bytes += item.size
        self.entries += 1

    def remove(self, item: Item) -> None:
        """Give up an item."""
        account = self._account(item.tenant)
        del self._orders[account][item]
        self._held[account] -= item.size
        self.bytes -= item.size
        self.entries -= 1
        if not self._orders[account]:
            del self._orders[account], self._held[account]

    def touch(self, items: Iterable[Item]) -> None:
        """Make a tenant's items the most recently used, the last one most."""
        order: OrderedDict[Item, None] | None = None
        for item in items:
            if order is None:
                order = self._orders[self._account(item.tenant)]
            order.move_to_end(item)

    def resize(self, item: Item, size: int) -> None:
        """Note that an item weighs ``size`` now."""
        self._held[self._account(item.tenant)] += size - item.size
        self.bytes += size - item.size
        item.size = size

    def fits(self, tenant: str, size: int) -> bool:
        """Whether ``tenant`` can add ``size`` bytes and nothing has to go."""
        if self.bytes + size > self.max_memory:
            return False
        return self.tenant_max_memory is None or self._held.get(tenant, 0) + size <= self.tenant_max_memory

    def victim(self, tenant: str, size: int, *, entries: int = 1) -> Item | None:
        """The item that has to go before ``tenant`` can add ``size`` bytes; None when they fit."""
        account = self._account(tenant)
        if self.tenant_max_memory is not None and self._held.get(account, 0) + size > self.tenant_max_memory:
            return self._oldest(account)
        full = self.bytes + size > self.max_memory
        if full or (self.max_entries is not None and self.entries + entries > self.max_entries):
            return self._oldest(max(self._held, key=self._held.__getitem__, default=account))
        return None

    def check_integrity(self) -> None:
        """Raise RuntimeError unless the sums are those of the items and within the bounds."""
        sizes = {account: sum(item.size for item in order) for account, order in self._orders.items()}
        if sizes != self._held or sum(sizes.values()) != self.bytes:
            raise RuntimeError(f"the ledger says {self._held}, {self.bytes} bytes; its items weigh {sizes}")
        if sum(map(len, self._orders.values())) != self.entries:
            raise RuntimeError(f"the ledger says {self.entries} items and has {sum(map(len, self._orders.values()))}")
        if self.bytes > self.max_memory or (self.max_entries is not None and self.entries > self.max_entries):
            raise RuntimeError(f"{self.entries} items of {self.bytes} bytes are over the bound")

    def _account(self, tenant: str) -> str:
        return "" if self.tenant_max_memory is None else tenant

    def _oldest(self, account: str) -> Item | None:
        return next(iter(self._orders.get(account, ())), None)
