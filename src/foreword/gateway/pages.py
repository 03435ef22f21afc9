"""What says how the server is: models, health, metrics, and a page for browsers."""

from __future__ import annotations

from html import escape

from foreword import __version__
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import Exchange
from foreword.gateway.fleet import Fleet
from foreword.gateway.metrics import Metrics
from foreword.gateway.middleware import Limit
from foreword.gateway.routing import Route
from foreword.gateway.tokenizers import TokenizerRegistry

EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"
HTML = b"text/html; charset=utf-8"


class PageEndpoints:
    """Read-only endpoints that cost next to nothing and do not wait for a turn."""

    def __init__(self, tokenizers: TokenizerRegistry, pool: Fleet, metrics: Metrics, limit: Limit) -> None:
        self._tokenizers = tokenizers
        self._pool = pool
        self._metrics = metrics
        self._limit = limit
        self.routes: tuple[Route, ...] = ()

    async def models(self, exchange: Exchange) -> None:
        """The models that can be asked, as OpenAI lists them."""
        data = [self._model(name) for name in self._pool.models]
        await exchange.respond_json({"object": "list", "data": data})

    def _model(self, name: str) -> dict[str, object]:
        created = next((loaded.created for loaded in self._tokenizers if loaded.name == name), 0)
        limit = self._pool.find_model(name).max_model_len
        return {"id": name, "object": "model", "created": created, "owned_by": "foreword", "max_model_len": limit}

    async def model(self, exchange: Exchange) -> None:
        """One model."""
        await exchange.respond_json(self._model(exchange.path_tail))

    async def liveness(self, exchange: Exchange) -> None:
        """The process runs."""
        await exchange.respond_json({"status": "alive", "version": __version__})

    async def readiness(self, exchange: Exchange) -> None:
        """New requests are taken: every model has a healthy worker, and the server is not stopping."""
        if self._limit.draining:
            raise Refusal("The server is stopping.", status=503, code="draining")
        if not self._pool.ready:
            raise Refusal("A model has no healthy worker.", status=503, code="worker_unavailable")
        await exchange.respond_json({"status": "ready", "models": self._pool.models})

    async def metrics(self, exchange: Exchange) -> None:
        """Every metric in Prometheus's text format."""
        await exchange.respond(self._metrics.exposition(), content_type=EXPOSITION)

    async def page(self, exchange: Exchange) -> None:
        """What runs here, for a person with a browser."""
        await exchange.respond(self._html(exchange).encode(), content_type=HTML)

    def _html(self, exchange: Exchange) -> str:
        host = exchange.headers.get(b"host", b"localhost").decode("latin-1")
        models = self._pool.models
        example = _example(host, models[0], "chat") if models else self._tokenize_example(host)
        return _PAGE.format(
            version=escape(__version__),
            state="stopping" if self._limit.draining else "ready" if self._pool.ready else "waiting for workers",
            models=_items(models) or "<li>none: this server only tokenizes</li>",
            tokenizers=_items([loaded.name for loaded in self._tokenizers]) or "<li>none</li>",
            rows="".join(map(_row, self.routes)),
            example=escape(example),
        )

    def _tokenize_example(self, host: str) -> str:
        name = next((loaded.name for loaded in self._tokenizers), "NAME")
        return _example(host, name, "tokenize")


def _example(host: str, model: str, kind: str) -> str:
    if kind == "chat":
        path, rest = "chat/completions", '"messages": [{"role": "user", "content": "What is the capital of France?"}]'
    else:
        path, rest = "tokenize", '"prompt": "What is the capital of France?"'
    body = f'{{"model": "{model}", {rest}}}'
    return f"curl http://{host}/v1/{path} \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"


def _items(names: list[str]) -> str:
    return "".join(f"<li><code>{escape(name)}</code></li>" for name in names)


def _row(route: Route) -> str:
    path = escape(route.path)
    shown = f'<a href="{path}">{path}</a>' if route.method == "GET" and "{" not in path else path
    return f"<tr><td>{route.method}</td><td><code>{shown}</code></td><td>{escape(route.summary)}</td></tr>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Foreword</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 3rem auto; padding: 0 1.25rem; }}
  h1 {{ margin-bottom: 0; }}
  h2 {{ margin-top: 2.25rem; font-size: 1.1rem; }}
  .state {{ margin-top: .25rem; opacity: .75; }}
  code, pre {{ font: .9em ui-monospace, monospace; }}
  pre {{ overflow-x: auto; white-space: pre-wrap; padding: 1rem; border: 1px solid #8886; border-radius: 6px; }}
  table {{ border-collapse: collapse; width: 100%; }}
  td {{ padding: .3rem .75rem .3rem 0; border-bottom: 1px solid #8884; vertical-align: top; }}
</style>
</head>
<body>
<h1>Foreword</h1>
<p class="state">{version}, {state}</p>
<h2>Models</h2>
<ul>{models}</ul>
<h2>Tokenizers</h2>
<ul>{tokenizers}</ul>
<h2>Try it</h2>
<pre>{example}</pre>
<h2>Endpoints</h2>
<table>{rows}</table>
</body>
</html>
"""
