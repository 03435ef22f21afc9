"""The budget of a cache level: sums, bounds, and who goes first."""

from dataclasses import dataclass

import pytest

from foreword.tokens.ledger import Ledger


@dataclass(eq=False)
class Parcel:
    """Something with a size that belongs to somebody."""

    size: int
    tenant: str = ""


def _ledger(*parcels: Parcel, max_memory: int = 100, **bounds: int) -> Ledger[Parcel]:
    ledger: Ledger[Parcel] = Ledger(max_memory, **bounds)
    for parcel in parcels:
        ledger.add(parcel)
    ledger.check_integrity()
    return ledger


def test_what_was_used_longest_ago_goes_first() -> None:
    """A touch makes an item the last to go."""
    first, second = Parcel(40), Parcel(40)
    ledger = _ledger(first, second)
    assert ledger.victim("", 30) is first
    ledger.touch((first,))
    assert ledger.victim("", 30) is second
    assert ledger.victim("", 20) is None


def test_a_bound_in_items_holds_as_well() -> None:
    """Small items fill it before the bytes do; something kept beside an item is none."""
    first = Parcel(1)
    ledger = _ledger(first, Parcel(1), max_entries=2)
    assert ledger.victim("", 1) is first
    assert ledger.victim("", 1, entries=0) is None


def test_a_tenant_over_its_quota_gives_way_to_itself() -> None:
    """Nobody else's item goes for it, older ones neither."""
    others, own = Parcel(30, "a"), Parcel(30, "b")
    ledger = _ledger(others, own, tenant_max_memory=50)
    assert ledger.victim("b", 30) is own
    assert not ledger.fits("b", 30)
    assert ledger.fits("b", 20)


def test_when_the_whole_is_full_the_largest_holder_gives_way() -> None:
    """A flood from one tenant is paid by that tenant."""
    large, small = Parcel(60, "a"), Parcel(30, "b")
    ledger = _ledger(small, large, tenant_max_memory=80)
    assert ledger.victim("c", 20) is large


def test_sizes_follow_what_items_become() -> None:
    """Resized and removed items leave sums that are right."""
    parcel = Parcel(10, "a")
    ledger = _ledger(parcel, Parcel(5, "b"), tenant_max_memory=50)
    ledger.resize(parcel, 25)
    assert (ledger.bytes, ledger.entries) == (30, 2)
    ledger.remove(parcel)
    ledger.check_integrity()
    assert (ledger.bytes, ledger.entries) == (5, 1)


def test_one_item_takes_a_quarter_at_most() -> None:
    """Of what its tenant may hold, if that is less than the whole."""
    assert _ledger(max_memory=100).largest_item == 25
    assert _ledger(max_memory=100, tenant_max_memory=40).largest_item == 10
    assert not _ledger(max_memory=100, tenant_max_memory=40).admits(41)


def test_a_size_changed_behind_its_back_is_noticed() -> None:
    """check_integrity weighs every item again."""
    parcel = Parcel(10)
    ledger = _ledger(parcel)
    parcel.size = 11
    with pytest.raises(RuntimeError, match="items weigh"):
        ledger.check_integrity()
