"""Headless vLLM engines over ZMQ: the gateway is the engine's front.

    vllm serve MODEL --headless --data-parallel-size 1 --data-parallel-size-local 1
        --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550

The engine finds the front at the handshake address, is told the two sockets, and serves until either leaves. A new engine
that says HELLO takes the place of the one before: what that one still owed ends in WorkerUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from foreword.errors import ConfigError, ContextOverflow, WorkerError, WorkerUnavailable
from foreword.gateway.worker_url import WorkerConnection
from foreword.gateway.zmq_wire import ABORT, ADD, ENGINE_CORE_DEAD, pack_add, read_output, unpack_outputs
from foreword.generation import GenerateOutput, GenerateRequest, WorkerStatistics

log = structlog.get_logger()

MAX_QUEUED = 65_536
"""Steps of one request that may wait for a slow reader."""

Step = GenerateOutput | WorkerError


@dataclass(slots=True)
class _Request:
    """A request the engine owes answers to. Cached tokens are reported once, with the first output."""

    num_prompt_tokens: int
    steps: asyncio.Queue[Step] = field(default_factory=lambda: asyncio.Queue(MAX_QUEUED))
    num_cached_tokens: int = 0

    def add(self, step: Step) -> None:
        """Queue a step; one that nobody has read 65,536 steps after is given up."""
        with contextlib.suppress(asyncio.QueueFull):
            self.steps.put_nowait(step)


@dataclass(slots=True)
class _Engine:
    """One life of the engine, from its HELLO on."""

    identity: bytes
    ready: dict[str, Any] = field(default_factory=dict)


class ZmqWorker:
    """A headless vLLM engine. ``start`` binds the sockets and does not wait for the engine, which may come later.

    Implements :class:`foreword.gateway.workers.Worker`.

    Args:
        connection: where the sockets are; their folder must be its owner's alone.
        eos_token_ids: the model's end-of-sequence tokens, its own first: stopping at them is the front's to ask for.
    """

    def __init__(self, connection: WorkerConnection, *, eos_token_ids: Sequence[int] = (), model: str = "") -> None:
        self.connection = connection
        self.name = connection.name
        self.model = connection.model or model
        self.max_model_len = 0
        self.block_size = 0
        self.kv_events_config: dict[str, Any] = {}
        self.eos_token_ids = tuple(eos_token_ids)
        self._engine: _Engine | None = None
        self._requests: dict[str, _Request] = {}
        self._statistics = WorkerStatistics()
        self._sockets: list[zmq.asyncio.Socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived = asyncio.Event()

    async def start(self) -> None:
        """Bind the sockets and listen for the engine; raises ConfigError when they cannot be bound safely."""
        check_private(Path(self.connection.address).parent)
        context = zmq.asyncio.Context.instance()
        self._handshake, self._input, self._output = (
            context.socket(kind) for kind in (zmq.ROUTER, zmq.ROUTER, zmq.PULL)
        )
        self._sockets = [self._handshake, self._input, self._output]
        addresses = (self.connection.handshake, self._address("in"), self._address("out"))
        for socket, address in zip(self._sockets, addresses, strict=True):
            socket.setsockopt(zmq.LINGER, 0)
            bind(socket, address)
        self._input.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._monitor = self._input.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        loops = (self._shake_hands(), self._greet(), self._receive(), self._watch(self._monitor))
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def _address(self, end: str) -> str:
        return f"ipc://{self.connection.address}-{end}.sock"

    async def stop(self) -> None:
        """Abort what still runs and let go of the sockets."""
        if self._engine is not None and self._requests:
            await self._send(ABORT, msgspec.msgpack.encode(list(self._requests)))
        self._lose_engine("was stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._sockets:
            self._input.disable_monitor()
            self._monitor.close(0)
        for socket in self._sockets:
            socket.close(linger=0)
        self._tasks, self._sockets = [], []

    async def wait_ready(self, seconds: float) -> None:
        """Return when an engine has come; raises WorkerUnavailable when none does in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            raise self._unavailable("has no engine yet") from None

    async def _shake_hands(self) -> None:
        while True:
            identity, payload, *_ = await self._handshake.recv_multipart()
            try:
                status = msgspec.msgpack.decode(payload)["status"]
            except (msgspec.DecodeError, KeyError, TypeError):
                log.warning("zmq_worker.handshake_unreadable", worker=self.name)
                continue
            if status == "HELLO":
                self._lose_engine("restarted")
                await self._handshake.send_multipart([identity, msgspec.msgpack.encode(self._introduction())])

    def _introduction(self) -> dict[str, Any]:
        return {
            "addresses": {
                "inputs": [self._address("in")],
                "outputs": [self._address("out")],
                "coordinator_input": None,
                "coordinator_output": None,
                "frontend_stats_publish_address": None,
            },
            "parallel_config": {},
        }

    async def _greet(self) -> None:
        """The engine's first message on the input socket: what it is. It is ready then."""
        while True:
            identity, *frames = await self._input.recv_multipart()
            ready = _decode_map(frames[-1]) if frames else {}
            self._engine = _Engine(identity, ready)
            self.max_model_len = int(ready.get("max_model_len") or self.max_model_len)
            self.block_size = int(ready.get("block_size") or self.block_size)
            self.kv_events_config = ready.get("kv_events_config") or {}
            self._arrived.set()
            log.info("zmq_worker.ready", worker=self.name, version=ready.get("vllm_version"))

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        """A killed engine says nothing: its connection closes."""
        while True:
            await recv_monitor_message(monitor)
            self._lose_engine("died")

    async def _receive(self) -> None:
        while True:
            frames = await self._output.recv_multipart()
            if frames[0] == ENGINE_CORE_DEAD:
                self._lose_engine("died")
                continue
            try:
                message = unpack_outputs(frames)
            except WorkerError as error:
                log.warning("zmq_worker.output_unreadable", worker=self.name, error=str(error))
                continue
            if (stats := message.statistics) is not None:
                self._statistics = WorkerStatistics(stats.running, stats.waiting, stats.kv_usage)
            for raw in message.outputs:
                self._deliver(raw, frames)

    def _deliver(self, raw: Sequence[Any], frames: Sequence[bytes]) -> None:
        request = self._requests.get(raw[0])
        if request is None:
            return  # aborted meanwhile
        try:
            step = read_output(raw, frames, request.num_prompt_tokens, request.num_cached_tokens)
        except WorkerError as error:
            request.add(error)
        except (TypeError, ValueError, IndexError) as error:
            request.add(WorkerError(f"The engine's output is unreadable: {error}."))
        else:
            request.num_cached_tokens = step.num_cached_tokens
            request.add(step)

    def _lose_engine(self, how: str) -> None:
        """End every request the engine still owes."""
        self._engine = None
        self._arrived.clear()
        self._statistics = WorkerStatistics()
        for request in self._requests.values():
            request.add(self._unavailable(how))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput]:
        """Yield the request's tokens as they come; raises ContextOverflow or WorkerError."""
        if self._engine is None:
            raise self._unavailable("has no engine yet")
        self._check_length(request)
        owed = self._requests[request.request_id] = _Request(len(request.token_ids))
        finished = False
        try:
            await self._send(ADD, pack_add(request, self.eos_token_ids, self.max_model_len))
            while not finished:
                step = await owed.steps.get()
                if isinstance(step, WorkerError):
                    finished = True
                    raise step
                finished = step.finish_reason is not None
                yield step
        finally:
            del self._requests[request.request_id]
            if not finished:
                await self._abort(request.request_id)

    def _check_length(self, request: GenerateRequest) -> None:
        """The engine takes a prompt that is too long and never answers: it is the front's to refuse."""
        if self.max_model_len and len(request.token_ids) >= self.max_model_len:
            raise ContextOverflow(
                f"The prompt has {len(request.token_ids)} tokens; the model's context is {self.max_model_len}.",
                hint="Shorten the prompt.",
                prompt_tokens=len(request.token_ids),
                max_model_len=self.max_model_len,
            )

    async def _abort(self, request_id: str) -> None:
        with contextlib.suppress(WorkerError):
            await self._send(ABORT, msgspec.msgpack.encode([request_id]))

    async def _send(self, kind: bytes, payload: bytes) -> None:
        if self._engine is None:
            raise self._unavailable("is gone")
        try:
            await self._input.send_multipart([self._engine.identity, kind, payload])
        except zmq.ZMQError as error:
            self._lose_engine("is gone")
            raise self._unavailable("is gone") from error

    def _unavailable(self, how: str) -> WorkerUnavailable:
        return WorkerUnavailable(
            f"The engine at {self.name} {how}.", hint="Another may take the request.", retry_after=1
        )

    async def check_health(self) -> bool:
        """Whether an engine is there."""
        return self._engine is not None

    def statistics(self) -> WorkerStatistics:
        """How busy the engine said it was after its last step."""
        return self._statistics


def _decode_map(payload: bytes) -> dict[str, Any]:
    try:
        value = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def check_private(folder: Path) -> None:
    """Raise ConfigError unless only the folder's owner can enter it: whoever can connect can read every prompt."""
    if not folder.is_dir():
        raise ConfigError(
            f"The folder {folder} of a ZMQ worker's sockets does not exist.", hint=f"mkdir -m 700 {folder}"
        )
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"The folder {folder} of a ZMQ worker's sockets is open to others.", hint=f"chmod 700 {folder}"
        )


def bind(socket: zmq.asyncio.Socket, address: str) -> None:
    """Bind a socket; raises ConfigError."""
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(f"The socket {address} cannot be bound: {error}.", address=address) from error
