"""A vLLM worker's KV events over ZMQ: a subscription, and replays where batches are missing."""

from __future__ import annotations

import asyncio
import contextlib

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from foreword.errors import WorkerError
from foreword.gateway.kv_events import END, EventBatch, EventFollower, EventSink, decode_batch

log = structlog.get_logger()

REPLAY_TIMEOUT = 5.0
"""Seconds for a worker to send what a replay asked for."""
MAX_REPLAYS = 4
"""Replays in a row that may leave a gap (more was lost meanwhile) before the worker's blocks are forgotten."""
MAX_FRAME = 256 << 20


class KvSubscriber:
    """Keeps a sink equal to what one worker has cached. ``run`` works until cancelled; it survives the worker's restarts.

    Args:
        endpoint: where the worker publishes, ``tcp://HOST:PORT`` or ``ipc://PATH``.
        replay_endpoint: where it replays; without one, every gap and every reconnection forgets its blocks.
        sink: what to keep.
        dp_rank: the only data-parallel rank whose batches are taken; None takes all.
    """

    def __init__(
        self, endpoint: str, replay_endpoint: str | None, sink: EventSink, *, dp_rank: int | None = None
    ) -> None:
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.dp_rank = dp_rank
        self.follower = EventFollower(sink)
        self.synchronised = asyncio.Event()
        self._context = zmq.asyncio.Context.instance()

    async def run(self) -> None:
        """Follow the worker until cancelled."""
        with self._context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 100_000)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            socket.subscribe(b"")
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            try:
                socket.connect(self.endpoint)
                await self._follow(socket, monitor)
            finally:
                socket.disable_monitor()
                monitor.close(0)

    async def _follow(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        poller = zmq.asyncio.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        while True:
            ready = dict(await poller.poll())
            if monitor in ready:
                if (await recv_monitor_message(monitor))["event"] == zmq.EVENT_DISCONNECTED:
                    await self._forget(socket)
                else:  # connected, perhaps to the worker's next life
                    await self._synchronise()
            elif socket in ready and self._take(await socket.recv_multipart()):
                await self._synchronise()

    async def _forget(self, socket: zmq.asyncio.Socket) -> None:
        """Believe nothing of a worker that is away, and nothing more that it had said: its next life holds none of it."""
        self.synchronised.clear()
        with contextlib.suppress(zmq.Again):
            while True:
                await socket.recv_multipart(zmq.NOBLOCK)
        self.follower.reset()

    def _take(self, frames: list[bytes]) -> bool:
        """Apply one message; a batch that cannot be read is as good as lost."""
        try:
            batch = parse_message(frames)
            return self._is_ours(batch) and self.follower.receive(batch)
        except WorkerError as error:
            log.warning("kv_events.unreadable", endpoint=self.endpoint, error=str(error))
            return False

    def _is_ours(self, batch: EventBatch) -> bool:
        """Whether it is of the rank that is followed: ranks number their batches each by itself."""
        return self.dp_rank is None or batch.dp_rank in (None, self.dp_rank)

    async def _synchronise(self) -> None:
        """Close the gap by replay, or forget the worker's blocks."""
        self.synchronised.clear()
        if not await self._replay_until_whole():
            log.warning("kv_events.lost", endpoint=self.endpoint, replay_endpoint=self.replay_endpoint)
            self.follower.give_up()
        self.synchronised.set()

    async def _replay_until_whole(self) -> bool:
        if self.replay_endpoint is None:
            return False
        for _ in range(MAX_REPLAYS):
            try:
                batches = await request_replay(self._context, self.replay_endpoint, self.follower.replay_from)
            except (WorkerError, TimeoutError, zmq.ZMQError) as error:
                log.warning(
                    "kv_events.replay_failed", endpoint=self.replay_endpoint, error=str(error) or type(error).__name__
                )
                return False
            if not self.follower.replayed(batches):
                return True
        return False


def parse_message(frames: list[bytes]) -> EventBatch:
    """A published message [topic, sequence, payload]; raises WorkerError."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        sizes = ", ".join(str(len(frame)) for frame in frames[:8])
        raise WorkerError(
            f"A KV event message has frames of {sizes} bytes, not a topic, 8 bytes of sequence and a payload."
        )
    return decode_batch(int.from_bytes(frames[-2], "big"), frames[-1])


async def request_replay(context: zmq.asyncio.Context, endpoint: str, start: int) -> list[EventBatch]:
    """Ask a worker for its batches from ``start`` on; raises TimeoutError or WorkerError."""
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
        socket.connect(endpoint)
        async with asyncio.timeout(REPLAY_TIMEOUT):
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            batches = []
            while (frames := await socket.recv_multipart())[-2:-1] != [END]:
                batches.append(parse_message(frames))
    return batches
