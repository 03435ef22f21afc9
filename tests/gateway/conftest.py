"""A running gateway for the tests of a module, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from foreword.testing.server import Running, serve


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """One server for tests that leave it as it was."""
    with serve() as running:
        yield running


@pytest.fixture
def client(shared: Running) -> Iterator[httpx.Client]:
    """A client of the shared server."""
    with httpx.Client(base_url=shared.url, timeout=10) as found:
        yield found
