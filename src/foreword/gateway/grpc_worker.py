"""Workers that speak gRPC: token ids in, token deltas out, with their tokenizer, load and KV events.

Neither protocol has a field for a request's cache salt (smg-grpc-proto 0.4.28 names one in KV events alone), so requests
with one are refused here rather than mixed with others, and organisations are refused when the worker is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog
from smg_grpc_proto.generated import common_pb2

from foreword.errors import ContextOverflow, RequestError, WorkerError, WorkerUnavailable
from foreword.gateway.grpc_dialects import SglangDialect, VllmDialect, join, read_response
from foreword.gateway.grpc_events import read_batch
from foreword.gateway.kv_events import EventFollower, EventSink
from foreword.gateway.worker_url import WorkerConnection
from foreword.generation import (
    GenerateOutput,
    GenerateRequest,
    WorkerStatistics,
)

log = structlog.get_logger()

RESUBSCRIBE_SECONDS = 1.0
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
MAX_TOKENIZER_BYTES = 512 << 20
CALL_TIMEOUT = 10.0


class GrpcWorker:
    """A vLLM or SGLang engine behind gRPC; which of the two is asked at ``start``.

    Implements :class:`foreword.gateway.workers.Worker`.
    """

    def __init__(self, connection: WorkerConnection) -> None:
        self.connection = connection
        self.name = connection.name
        self.model = ""
        self.max_model_len = 0
        self.block_size = 0
        self.eos_token_ids: tuple[int, ...] = ()
        self.tokenizer_path = ""
        self._statistics = WorkerStatistics()
        self._channel: Any = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._dialect: VllmDialect | SglangDialect | None = None

    async def start(self) -> None:
        """Connect and learn the model's name and limits; raises WorkerUnavailable."""
        if self._channel is None:
            self._channel = self._make_channel()
        for dialect in (VllmDialect(self._channel), SglangDialect(self._channel)):
            try:
                info = await dialect.stub.GetModelInfo(dialect.pb.GetModelInfoRequest(), **self._call())
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    continue
                raise self._failure(error) from error
            self._learn(dialect, info)
            await self._learn_block_size(dialect)
            return
        raise WorkerUnavailable(
            f"The worker {self.name} speaks neither vLLM's nor SGLang's gRPC protocol.",
            hint="Start it with --grpc and smg-grpc-servicer.",
        )

    def _learn(self, dialect: VllmDialect | SglangDialect, info: Any) -> None:
        self._dialect = dialect
        self.model = self.connection.model or info.served_model_name or info.model_path
        self.max_model_len = info.max_context_length
        self.eos_token_ids = tuple(info.eos_token_ids)
        self.tokenizer_path = info.tokenizer_path or info.model_path

    async def _learn_block_size(self, dialect: VllmDialect | SglangDialect) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            info = await dialect.stub.GetServerInfo(dialect.pb.GetServerInfoRequest(), **self._call())
            self.block_size = getattr(info, "block_size", 0)

    def _make_channel(self) -> Any:
        target = self.connection.address
        if self.connection.tls is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        tls = self.connection.tls
        tls.context()  # reads the files as gRPC will, which tells of wrong ones in its own log alone
        credentials = grpc.ssl_channel_credentials(tls.read_ca(), *tls.read_client_pair())
        return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)

    def _call(self, timeout: float | None = CALL_TIMEOUT) -> dict[str, Any]:
        key = self.connection.api_key
        return {"timeout": timeout, "metadata": [("authorization", f"Bearer {key}")] if key else None}

    async def stop(self) -> None:
        """Close the connection; the server aborts what still runs."""
        await asyncio.gather(*self._aborts, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(grace=None)
            self._channel = self._dialect = None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput]:
        """Yield the request's tokens as they come; raises RequestError, ContextOverflow or WorkerError."""
        dialect = self._ready()
        if request.cache_salt is not None:
            raise RequestError(
                "Workers over gRPC take no cache_salt.", hint="Use HTTP or ZMQ workers to separate tenants' caches."
            )
        call = dialect.stub.Generate(dialect.request(request, self.connection.dp_rank), **self._call(timeout=None))
        enders = {*self.eos_token_ids, *request.sampling.stop_token_ids}
        held: GenerateOutput | None = None
        owed, sent = True, 0
        try:
            async for message in call:
                output = read_response(request, message, sent)
                owed, sent = output.finish_reason is None, sent + len(output.token_ids)
                output = join(held, output)
                held = output if owed and output.token_ids[-1:] and output.token_ids[-1] in enders else None
                if held is None:
                    yield output
                if not owed:
                    return
            raise WorkerError(f"The worker {self.name} ended the stream before the answer was complete.")
        except grpc.aio.AioRpcError as error:
            owed = False
            raise self._failure(error) from error
        finally:
            if owed:
                call.cancel()
                self._abort_soon(dialect, request.request_id)

    def _abort_soon(self, dialect: VllmDialect | SglangDialect, request_id: str) -> None:
        """Tell the engine without keeping whoever leaves."""
        task = asyncio.create_task(self._abort(dialect, request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, dialect: VllmDialect | SglangDialect, request_id: str) -> None:
        """Cancelling a call frees what it held in servicers that watch for it; the explicit abort does in all."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await dialect.stub.Abort(dialect.abort(request_id), **self._call(timeout=2.0))

    def _ready(self) -> VllmDialect | SglangDialect:
        if self._dialect is None:
            raise WorkerUnavailable(f"The worker {self.name} is not connected.", retry_after=1)
        return self._dialect

    def _failure(self, error: Any) -> WorkerError | RequestError:
        code, details = error.code(), (error.details() or "").strip()[:500]
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            if "maximum context length" in details or "longer than the maximum" in details:
                return ContextOverflow(f"The worker {self.name} refused the prompt: {details}")
            return RequestError(f"The worker {self.name} refused the request: {details}")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED):
            return WorkerUnavailable(f"The worker {self.name} cannot be reached: {details}", retry_after=1)
        return WorkerError(f"The worker {self.name} failed ({code.name}): {details}")

    async def check_health(self) -> bool:
        """Whether a request would be taken now; asks for the load on the way."""
        try:
            if self._dialect is None:
                await self.start()
            dialect = self._ready()
            health = await dialect.stub.HealthCheck(dialect.pb.HealthCheckRequest(), **self._call())
            if health.healthy:
                await self._refresh_load(dialect)
            return bool(health.healthy)
        except (grpc.aio.AioRpcError, WorkerError, RequestError):
            return False

    async def _refresh_load(self, dialect: VllmDialect | SglangDialect) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await dialect.stub.GetLoads(dialect.pb.GetLoadsRequest(), **self._call())
            rank = self.connection.dp_rank
            loads = [load for load in answer.loads if rank is None or load.dp_rank == rank]
            self._statistics = WorkerStatistics(
                sum(load.num_running_reqs for load in loads),
                sum(load.num_waiting_reqs for load in loads),
                max((load.token_usage for load in loads), default=0.0),
            )

    def statistics(self) -> WorkerStatistics:
        """How busy the worker said it was when last asked."""
        return self._statistics

    async def fetch_tokenizer(self, folder: Path) -> Path:
        """Write the worker's tokenizer files into an empty folder; raises WorkerError when they are not whole."""
        dialect = self._ready()
        data, digest = bytearray(), ""
        try:
            async for chunk in dialect.stub.GetTokenizer(common_pb2.GetTokenizerRequest(), **self._call(timeout=60.0)):
                data += chunk.data
                digest = chunk.sha256 or digest
                if len(data) > MAX_TOKENIZER_BYTES:
                    raise WorkerError(f"The tokenizer of {self.name} is over {MAX_TOKENIZER_BYTES} bytes.")
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise WorkerError(f"The tokenizer of {self.name} does not have the digest it was announced with.")
        unpack_tokenizer(bytes(data), folder)
        return folder

    async def follow_kv_events(self, sink: EventSink) -> None:
        """Keep a sink equal to what the worker has cached, until cancelled; ends when the worker publishes nothing."""
        follower = EventFollower(sink)
        while True:
            try:
                await self._follow_once(follower)
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION):
                    log.info("kv_events.none", worker=self.name, details=error.details())
                    return
            except WorkerError:
                pass  # not connected: the health check connects again
            follower.reset()  # whatever comes next may be another life of the worker
            await asyncio.sleep(RESUBSCRIBE_SECONDS)

    async def _follow_once(self, follower: EventFollower) -> None:
        """One subscription, from the worker's first batch or, if that is gone, from a snapshot or what it still has."""
        dialect = self._ready()
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=0)
        first = True
        async for message in dialect.stub.SubscribeKvEvents(request, **self._call(timeout=None)):
            if self._is_of_another_rank(message):
                continue  # each rank numbers its batches by itself
            if message.HasField("load"):
                self._learn_load(message.load)
                if message.load.load_only:
                    continue
            batch = read_batch(message)
            snapshot = message.HasField("snapshot") and not message.snapshot.index
            if first or snapshot:
                follower.replayed([batch])
                first = False
            elif follower.receive(batch):
                return  # a gap: subscribe anew

    def _is_of_another_rank(self, message: Any) -> bool:
        rank = self.connection.dp_rank
        return rank is not None and message.HasField("dp_rank") and message.dp_rank != rank

    def _learn_load(self, load: Any) -> None:
        self._statistics = WorkerStatistics(load.running_requests, load.waiting_requests, load.token_usage)


def unpack_tokenizer(data: bytes, folder: Path) -> None:
    """Unzip tokenizer files, plain names only and bounded in size; raises WorkerError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if sum(entry.file_size for entry in entries) > MAX_TOKENIZER_BYTES:
                raise WorkerError(f"A worker's tokenizer unpacks to over {MAX_TOKENIZER_BYTES} bytes.")
            for entry in entries:
                (folder / Path(entry.filename).name).write_bytes(archive.read(entry))
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise WorkerError(f"A worker's tokenizer is not a readable zip file: {error}.") from error
