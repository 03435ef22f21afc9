"""Which endpoint answers: a table, looked up by path and method."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from foreword.gateway.errors import ErrorBody, Refusal, openai_body
from foreword.gateway.exchange import Exchange, Handler

Access = Literal["open", "key", "admin"]
"""``open``: anyone; ``key``: any API key; ``admin``: an admin's key. Without an API key file all are open."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. A path ending in ``{name}`` takes one segment more, handed over as ``path_tail``."""

    method: str
    path: str
    endpoint: Handler
    summary: str
    access: Access = "key"
    error_body: ErrorBody = openai_body

    @property
    def reads_body(self) -> bool:
        """Whether a JSON body is expected."""
        return self.method == "POST"


class Router:
    """Finds the route of a request. HEAD is answered as GET, whose body the server leaves out."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact = {(route.method, route.path): route for route in self.routes if "{" not in route.path}
        self._prefixes = [(route.path.partition("{")[0], route) for route in self.routes if "{" in route.path]

    def find(self, exchange: Exchange) -> Route:
        """The route; raises Refusal: 404 for a path that is not there, 405 for another method."""
        method = "GET" if exchange.method == "HEAD" else exchange.method
        route = self._exact.get((method, exchange.path)) or self._find_prefix(method, exchange)
        if route is not None:
            exchange.route = route.path
            exchange.error_body = route.error_body
            return route
        covering = [known for known in self.routes if _covers(known, exchange.path)]
        allowed = sorted({known.method for known in covering})
        if not allowed:
            raise Refusal(f"There is no {exchange.path[:200]!r} here.", status=404, code="not_found", hint="See / .")
        exchange.error_body = covering[0].error_body
        header = ((b"allow", ", ".join(allowed).encode()),)
        message = f"{exchange.path[:200]} does not take {exchange.method}, only {' and '.join(allowed)}."
        raise Refusal(message, status=405, code="method_not_allowed", headers=header)

    def _find_prefix(self, method: str, exchange: Exchange) -> Route | None:
        for prefix, route in self._prefixes:
            if route.method == method and _covers(route, exchange.path):
                raw = exchange.scope.get("raw_path", exchange.path.encode()).decode("latin-1")
                exchange.path_tail = unquote(raw[len(prefix) :])
                return route
        return None


def _covers(route: Route, path: str) -> bool:
    prefix, brace, _ = route.path.partition("{")
    return path.startswith(prefix) and len(path) > len(prefix) if brace else path == route.path
