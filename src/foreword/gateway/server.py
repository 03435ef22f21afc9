"""The HTTP server around the gateway: uvicorn, and what SIGTERM means."""

from __future__ import annotations

import gc
import socket
import time
from types import FrameType

import structlog
import uvicorn

from foreword.gateway.app import Gateway
from foreword.gateway.connection import Connection

log = structlog.get_logger()

ABORT_GRACE = 2.0
"""Seconds that aborted requests have to tell their clients."""


class Server(uvicorn.Server):
    """Drains on SIGTERM or SIGINT: takes no new requests, lets those in work end, aborts them when the time is up.

    A second signal stops at once.
    """

    def __init__(self, gateway: Gateway) -> None:
        config = gateway.config
        super().__init__(
            uvicorn.Config(
                gateway,
                host=config.host,
                port=config.port,
                loop="uvloop",
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=2,
                backlog=2048,
            )
        )
        self._gateway = gateway
        self._drain_timeout = config.drain_timeout
        self._deadline: float | None = None
        self._aborted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the gateway first, so that what it cannot do is raised as it is; raises ForewordError.

        Then let the garbage collector leave alone what was made until now, and come by more rarely.
        """
        await self._gateway.start()
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections, then stop the gateway."""
        await super().shutdown(sockets)
        await self._gateway.stop()

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; at the second signal, stop."""
        if self._deadline is not None:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        self.begin_draining()

    def begin_draining(self) -> None:
        """Take no new requests and stop when those in work are done."""
        self._deadline = time.monotonic() + self._drain_timeout
        self._gateway.drain()

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second: see whether draining is over."""
        if self._deadline is not None:
            self._continue_draining(time.monotonic() - self._deadline)
        return await super().on_tick(counter)

    def _continue_draining(self, overtime: float) -> None:
        left = len(self._gateway.in_flight)
        if overtime > 0 and left and not self._aborted:
            self._aborted = True
            log.warning("server.aborting", requests=left)
            self._gateway.abort()
        elif not left or overtime > ABORT_GRACE:
            self.should_exit = True
