"""What says how the server is: models, health, metrics, and a page for browsers."""

from __future__ import annotations

import contextlib
import json
from html import escape
from typing import Any

from foreword import __version__
from foreword.errors import TemplateError
from foreword.gateway.errors import Refusal
from foreword.gateway.exchange import Exchange
from foreword.gateway.fleet import Fleet
from foreword.gateway.metrics import Metrics
from foreword.gateway.middleware import Limit
from foreword.gateway.routing import Route
from foreword.gateway.tokenizers import LoadedTokenizer, TokenizerRegistry

QUESTION = "What is the capital of France?"
BEGINNING = "The capital of France is"
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
        example = self._example(host, models[0]) if models else self._tokenize_example(host)
        return _PAGE.format(
            version=escape(__version__),
            state="stopping" if self._limit.draining else "ready" if self._pool.ready else "waiting for workers",
            models=_items(models) or "<li>none: this server only tokenizes</li>",
            tokenizers=_items([loaded.name for loaded in self._tokenizers]) or "<li>none</li>",
            rows="".join(map(_row, self.routes)),
            example=escape(example),
        )

    def _example(self, host: str, model: str) -> str:
        loaded = next((loaded for loaded in self._tokenizers if loaded.name == model), None)
        path, body = example_body(loaded, self._pool.find_model(model).max_model_len)
        return _curl(host, path, {"model": model, **body})

    def _tokenize_example(self, host: str) -> str:
        name = next((loaded.name for loaded in self._tokenizers), "NAME")
        return _curl(host, "/v1/tokenize", {"model": name, "prompt": QUESTION})


def example_body(loaded: LoadedTokenizer | None, max_model_len: int) -> tuple[str, dict[str, Any]]:
    """Path and body, but for the model, of a request that answers alike each time and fits the context (0: unknown)."""
    path, text = "/v1/chat/completions", ""
    messages = [{"role": "user", "content": QUESTION}]
    body: dict[str, Any] = {"messages": messages}
    if loaded is not None and loaded.template is None:
        path, body, text = "/v1/completions", {"prompt": BEGINNING}, BEGINNING
    elif loaded is not None and loaded.template is not None:
        with contextlib.suppress(TemplateError):
            text = loaded.template.render(messages, add_generation_prompt=True)
    prompt_tokens = len(loaded.tokenizer.tokenizer.encode(text)) if loaded is not None else 0
    room = max_model_len - prompt_tokens - 1 if max_model_len else 64  # one for a token put in front
    return path, {**body, "max_tokens": max(1, min(64, room)), "temperature": 0}


def _curl(host: str, path: str, body: dict[str, Any]) -> str:
    content = json.dumps(body, ensure_ascii=False).replace("'", "\\u0027")
    return f"curl http://{host}{path} \\\n  -H 'Content-Type: application/json' \\\n  -d '{content}'"


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
