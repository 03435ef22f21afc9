"""``foreword serve``: configuration, tokenizers and worker, handed to the gateway and the server."""

from __future__ import annotations

import errno
import json
import socket
import sys
from typing import TYPE_CHECKING

import click

from foreword import __version__
from foreword.cli.options import settings_command
from foreword.config import Config
from foreword.errors import ConfigError

if TYPE_CHECKING:
    from foreword.cli.assembly import Assembly


@settings_command("serve", short_help="Serve the gateway.")
def command(config: Config) -> None:
    """Serve OpenAI's API in front of the embedded engine, with tokenizer caches, limits and metrics.

    Without any option it fetches a small model and answers with it on this machine's CPU. The first line of its output
    says where it listens, the last is a request to paste.
    """
    listener = bind(config)
    from foreword.cli.assembly import assemble
    from foreword.gateway.app import create_app
    from foreword.gateway.logs import configure_logging
    from foreword.gateway.server import Server
    from foreword.models import ModelStore

    configure_logging(config)
    assembly = assemble(config, ModelStore())
    workers = [assembly.worker] if assembly.worker is not None else []

    class AnnouncingServer(Server):
        """Says what runs once it does."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                click.echo(announcement(config, assembly, port=listener.getsockname()[1]))

    server = AnnouncingServer(create_app(config, assembly.registry, workers))
    server.run(sockets=[listener])
    if assembly.publisher is not None:
        assembly.publisher.close()
    if not server.started:
        sys.exit(2)


def bind(config: Config) -> socket.socket:
    """The socket to listen on, taken before anything is loaded; raises ConfigError when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError) as error:  # UnicodeError for what is no host name
        raise _bind_error(config, error) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _bind_error(config, error) from error
    return listener


def _bind_error(config: Config, error: OSError | ValueError) -> ConfigError:
    place = f"{config.host[:100]}:{config.port}"
    if not isinstance(error, OSError):
        return ConfigError(f"{place} is no address to listen on.", hint="Check --host.")
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{place} is in use by another process.", hint="Choose another port with --port.")
    if error.errno == errno.EACCES:
        return ConfigError(f"This user may not listen on {place}.", hint="Choose a port above 1023 with --port.")
    return ConfigError(f"Cannot listen on {place}: {error.strerror or error}.", hint="Check --host and --port.")


def announcement(config: Config, assembly: Assembly, *, port: int) -> str:
    """What runs, and a request to paste."""
    url = base_url(config.host, port)
    lines = [f"Foreword {__version__} serves {assembly.name} at {url}"]
    lines += [f"  {name:<10} {text}" for name, text in _facts(config, assembly)]
    return "\n".join([*lines, "", "Try:", "", example_request(config, assembly, url), ""])


def base_url(host: str, port: int) -> str:
    """Where a client on this machine reaches the server."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{reachable}:{port}"


def _facts(config: Config, assembly: Assembly) -> list[tuple[str, str]]:
    worker = assembly.worker
    l0 = f"{config.tokenizer_cache_l0_max_entries:,} entries, {_megabytes(config.tokenizer_cache_l0_max_memory)}"
    l1 = _megabytes(config.tokenizer_cache_l1_max_memory)
    behind = _workers(config)
    return [
        ("workers", f"{behind}, routed by {config.policy}")
        if behind
        else (
            "engine",
            f"embedded, context of {worker.max_model_len:,} tokens" if worker else "none: it only tokenizes",
        ),
        ("L0 cache", l0 if config.tokenizer_cache_enable_l0 else "off (--tokenizer-cache-enable-l0)"),
        ("L1 cache", l1 if config.tokenizer_cache_enable_l1 else "off (--tokenizer-cache-enable-l1)"),
        *([("24h cache", _day(config))] if worker else []),
        ("API keys", str(config.api_keys) if config.api_keys else "none: every request is let in (--api-keys)"),
    ]


def _day(config: Config) -> str:
    """Where prompts are kept for a day."""
    from foreword.cli.assembly import prompt_cache_disk

    folder = prompt_cache_disk(config)
    if folder is None:
        return "in memory while there is room (--prompt-cache-disk-max-bytes)"
    return f"in {folder}, {_megabytes(config.prompt_cache_disk_max_bytes)} at most"


def _workers(config: Config) -> str:
    """The workers behind this gateway, without the options of their URLs; empty when it has none."""
    found = [url.partition("?")[0] for url in config.worker_urls]
    return ", ".join([*found, *filter(None, [config.worker_discovery])])


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):,.6g} MiB"


def example_request(config: Config, assembly: Assembly, url: str) -> str:
    """A curl command that works as it stands, but for the key where one is needed."""
    from foreword.gateway.pages import QUESTION, example_body

    if assembly.worker is not None:
        path, body = example_body(next(iter(assembly.registry)), assembly.worker.max_model_len)
    else:
        path, body = "/v1/tokenize", {"prompt": QUESTION}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.api_keys else ""
    if _workers(config):
        return f"curl {url}/v1/models{key}"
    content = json.dumps({"model": assembly.name, **body}, ensure_ascii=False).replace("'", "\\u0027")
    return f"curl {url}{path} -H 'Content-Type: application/json'{key} \\\n  -d '{content}'"
