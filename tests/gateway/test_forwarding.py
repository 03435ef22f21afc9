"""A gateway in front of HTTP workers: bytes through, over real sockets."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from foreword.core.events import BlockStored
from foreword.gateway import chat
from foreword.gateway.body_salt import worker_salt
from foreword.testing.chat import ByteTokenizer, ChatMLTemplate
from foreword.testing.server import Running, serve

CHAT = "/v1/chat/completions"
KEYS = "acme key-a\nacme key-a2\nglobex key-g admin\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}


class Upstream:
    """An OpenAI-compatible server on its own thread, for the model ``up``."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.aborted = threading.Event()
        self.status = 200
        self.url = ""

    async def models(self, _: web.Request) -> web.Response:
        """One model."""
        rows = [{"id": "up", "max_model_len": 4096, "parent": None}, {"id": "ada", "parent": "up"}]
        return web.json_response({"data": rows})

    async def health(self, _: web.Request) -> web.Response:
        """Well."""
        return web.Response()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Whole or streamed; ``hang`` streams until the client leaves, ``break`` cuts the connection."""
        body = await request.read()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            return web.json_response({"error": {"message": "as told"}}, status=self.status)
        if b"elsewhere" in body:
            return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})
        if b'"stream": true' not in body:
            return web.json_response({"choices": [], "usage": USAGE}, headers={"X-Worker": "7"})
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})  # uvicorn's case
        await response.prepare(request)
        await response.write(b'data: {"n": 1}\n\n')
        if b"break" in body:
            assert request.transport is not None
            request.transport.abort()
        if b"half" in body:
            await response.write(b'data: {"n":')
            return response
        try:
            while b"hang" in body:
                await asyncio.sleep(0.02)
                await response.write(b'data: {"n": 0}\n\n')
        except (asyncio.CancelledError, ConnectionError):
            self.aborted.set()
            raise
        await response.write(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"usage": USAGE}).encode())
        return response


@contextmanager
def upstream() -> Iterator[Upstream]:
    """A running upstream."""
    made, started, stop = Upstream(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", made.models)
        app.router.add_get("/health", made.health)
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages"):
            app.router.add_post(path, made.chat)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        made.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(5)
    yield made
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


@pytest.fixture
def up() -> Iterator[Upstream]:
    """One upstream."""
    with upstream() as made:
        yield made


@pytest.fixture
def gateway(up: Upstream) -> Iterator[Running]:
    """A gateway in front of it, beside its own fake worker."""
    with serve(worker_urls=(up.url,)) as running:
        yield running


def body(**fields: Any) -> bytes:
    """A chat body, oddly spaced so that a rewrite would show."""
    return json.dumps(
        {"model": "up", "messages": [{"role": "user", "content": "hé \u0001"}], **fields}, indent=3
    ).encode()


def post(running: Running, data: bytes, path: str = CHAT, **headers: str) -> httpx.Response:
    """One request."""
    return httpx.post(
        running.url + path, content=data, headers={"content-type": "application/json", **headers}, timeout=10
    )


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
def test_bodies_and_answers_pass_byte_for_byte(up: Upstream, gateway: Running, path: str) -> None:
    """The worker reads what the client wrote, and the client what the worker answered, with fields nobody here knows."""
    sent = body(own_field={"a": [1, None]})
    response = post(gateway, sent, path, **{"X-Trace": "t1"})
    assert up.bodies == [sent]
    assert up.headers[0]["x-trace"] == "t1"
    assert (response.status_code, response.json()["usage"], response.headers["x-worker"]) == (200, USAGE, "7")
    assert response.headers["x-request-id"]


def test_streams_pass_as_they_come(up: Upstream, gateway: Running) -> None:
    """Events of the worker, unchanged and in order."""
    response = post(gateway, body(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert 'time_to_first_token_seconds_count{model="up"} 1.0' in httpx.get(gateway.url + "/metrics").text
    assert response.content == b'data: {"n": 1}\n\ndata: %b\n\ndata: [DONE]\n\n' % json.dumps({"usage": USAGE}).encode()


def test_a_client_that_leaves_aborts_at_the_worker(up: Upstream, gateway: Running) -> None:
    """The connection to the worker is dropped and nothing stays in flight."""
    headers = {"content-type": "application/json"}
    with httpx.stream("POST", gateway.url + CHAT, content=body(stream=True, x="hang"), headers=headers) as response:
        next(response.iter_raw())
    assert up.aborted.wait(5)
    wait_until(lambda: worker_of(gateway, up.url)["requests"] == 0)


def test_a_stream_that_breaks_ends_in_an_error_event(gateway: Running) -> None:
    """What came before stays; the last event says what happened."""
    response = post(gateway, body(stream=True, x="break"))
    first, *_, error, done = response.text.strip().split("\n\n")
    assert (first, done) == ('data: {"n": 1}', "data: [DONE]")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "worker_error"


def test_a_stream_that_ends_too_soon_ends_in_an_error_event(gateway: Running) -> None:
    """A connection closed as it should be makes half an answer no whole one."""
    for path in (CHAT, "/v1/messages", "/v1/responses"):
        first, half, error, *_ = post(gateway, body(stream=True, x="half"), path).text.split("\n\n")
        assert (first, half, "before it was whole" in error) == ('data: {"n": 1}', 'data: {"n":', True)


def test_a_redirect_does_not_lead_past_the_gateway(gateway: Running) -> None:
    """It would take the client, its key and its prompt to wherever the worker says."""
    response = post(gateway, body(x="elsewhere"))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_unavailable")
    assert "redirect (status 307)" in response.json()["error"]["message"]
    assert "location" not in response.headers


def test_a_stream_breaks_in_the_words_of_its_api(gateway: Running) -> None:
    """Anthropic's and OpenAI's SDKs each raise the last event as an error."""
    for path, last in (("/v1/messages", "event: error"), ("/v1/responses", "event: error")):
        event, data = post(gateway, body(stream=True, x="break"), path).text.strip().split("\n\n")[-1].split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert (event, told["type"]) == (last, "error")
        assert "broke off" in (told["error"]["message"] if path == "/v1/messages" else told["message"])


def test_a_client_error_is_the_workers_own(up: Upstream, gateway: Running) -> None:
    """A 400 passes through as it is."""
    up.status = 400
    response = post(gateway, body())
    assert (response.status_code, response.json()) == (400, {"error": {"message": "as told"}})


def test_our_own_models_are_still_answered_here(up: Upstream, gateway: Running) -> None:
    """Only requests for the worker's models are passed on."""
    response = post(
        gateway, json.dumps({"model": "fake-model", "messages": [{"role": "user", "content": "?"}]}).encode()
    )
    assert response.json()["choices"][0]["message"]["content"] == "Paris, of course."
    assert up.bodies == []
    models = httpx.get(gateway.url + "/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["fake-model", "up", "ada"]
    assert httpx.get(gateway.url + "/v1/models/up").json()["max_model_len"] == 4096


@pytest.mark.parametrize("data", [b"{", b'{"model": "nobody", "messages": []}', b'{"model": 7}', b"[]"])
def test_what_is_wrong_is_said_here(up: Upstream, gateway: Running, data: bytes) -> None:
    """Bodies without a model of a worker never leave the gateway."""
    assert post(gateway, data).status_code in (400, 404)
    assert up.bodies == []


def test_a_worker_that_is_down_is_503_and_another_takes_over(up: Upstream, gateway: Running) -> None:
    """Two workers of one model: the first turns requests away, the second answers; without the second it is 503."""
    up.status = 503
    response = post(gateway, body())
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_unavailable")
    with upstream() as second:
        added = httpx.post(gateway.url + "/v1/workers", json={"url": second.url})
        assert (added.status_code, added.json()["state"]) == (201, "healthy")
        assert [post(gateway, body()).status_code for _ in range(5)] == [200] * 5
        assert httpx.delete(f"{gateway.url}/v1/workers/{second.url.replace('/', '%2F')}").status_code == 200
    assert post(gateway, body()).status_code == 503


def salt_of(up: Upstream) -> str:
    """The salt of the last body that arrived."""
    salt: str = json.loads(up.bodies[-1])["cache_salt"]
    return salt


def test_organisations_never_share_a_workers_cache(up: Upstream, tmp_path: Path) -> None:
    """Each organisation's bodies carry a salt of its own, one for all its keys and gateways, and are untouched beside it."""
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    salts: dict[str, set[str]] = {}
    for _ in range(2):  # another gateway, or the same after a restart
        with serve(worker_urls=(up.url,), api_keys=keys) as running:
            for key in ("key-a", "key-a2", "key-g"):
                for own in ({}, {"cache_salt": "mine"}, {"cache_salt": None}):
                    sent = body(**own, more=[1])
                    assert post(running, sent, authorization=f"Bearer {key}").status_code == 200
                    salt = salt_of(up)
                    assert json.loads(up.bodies[-1]) == {**json.loads(sent), "cache_salt": salt}
                    salts.setdefault(f"{key} {own.get('cache_salt')}", set()).add(salt)
                    assert not {"acme", "globex", key} & set(up.bodies[-1].decode().split('"'))
    assert {len(found) for found in salts.values()} == {1}
    assert salts["key-a None"] == salts["key-a2 None"]
    assert salts["key-a mine"] == salts["key-a2 mine"]
    assert len({*salts["key-a None"], *salts["key-a mine"], *salts["key-g None"], *salts["key-g mine"]}) == 4


def test_a_client_cannot_choose_another_organisations_salt(up: Upstream, tmp_path: Path) -> None:
    """Named twice, or by escapes, or with the very salt of another: what arrives is the organisation's own."""
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    stolen = worker_salt("globex", None)
    with serve(worker_urls=(up.url,), api_keys=keys) as running:
        for name in ("cache_salt", "cache\\u005fsalt"):
            sent = b'{"cache_salt":"%b","model":"up","messages":[],"%b" : "%b"}' % (
                stolen.encode(), name.encode(), stolen.encode(),
            )  # fmt: skip
            assert post(running, sent, authorization="Bearer key-a").status_code == 200
            assert stolen.encode() not in up.bodies[-1]
            assert salt_of(up) == worker_salt("acme", stolen)


def test_predictions_go_by_the_salt_that_was_sent(up: Upstream, tmp_path: Path) -> None:
    """What a worker stored for one organisation is foretold to that organisation alone."""
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    prompt = list(range(40))
    with serve(worker_urls=(up.url,), api_keys=keys) as running:
        sink = running.gateway.pool.view.follow(up.url)
        sink.apply(BlockStored([1, 2], None, prompt[:32], 16, None, [(worker_salt("acme", None),), None]))
        sent = json.dumps({"model": "up", "prompt": prompt}).encode()
        for key, predicted in (("key-g", 0), ("key-a", 32)):
            assert post(running, sent, "/v1/completions", authorization=f"Bearer {key}").status_code == 200
            assert running.gateway.pool.statistics()[1].predicted_tokens == predicted


def conversation(*said: str, system: str = "Be kind.") -> bytes:
    """A chat body of one user turn after the other."""
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in said)]
    return json.dumps({"model": "up", "messages": messages}).encode()


def test_with_the_workers_tokenizer_chat_is_foretold_exactly(up: Upstream) -> None:
    """The ids that the worker will make are made here: what its events say of them is the prediction, in the metric too."""
    sent = conversation("What is the capital of France?")
    with serve(worker_urls=(up.url,), tokenizer_path="the-workers-own") as running:
        post(running, sent)
        assert worker_of(running, up.url)["guessed_reported_tokens"] == 4  # no events yet: no more than a guess
        prompt = ChatMLTemplate().render(json.loads(sent)["messages"], add_generation_prompt=True)
        ids = list(ByteTokenizer("up").encode(prompt))
        running.gateway.pool.view.follow(up.url).apply(BlockStored([1], None, ids[:4], 4))
        post(running, sent)
        worker = worker_of(running, up.url)
        assert [worker[name] for name in ("predicted_tokens", "reported_tokens", "mispredicted")] == [4, 4, 0]
        text = httpx.get(running.url + "/metrics").text
        for basis in ("exact", "approximate"):
            assert f'prefix_cache_reported_tokens_total{{basis="{basis}",worker="{up.url}"}} 4.0' in text
        assert f'foreword_prefix_cache_queries_total{{worker="{up.url}"}} 18.0' in text
    assert up.bodies == [sent, sent]


def test_forwarded_requests_are_judged_like_others(up: Upstream) -> None:
    """Verdict in headers and at /v1/seams, fingerprints by window: all of what the worker's tokenizer makes of them."""
    with serve(worker_urls=(up.url,), tokenizer_path="the-workers-own", seam_headers=True) as running:
        post(running, conversation("one", "two", system="It is 10:00:01. Be kind."))
        answer = post(running, conversation("one", "two", "three", system="It is 10:00:02. Be kind."))
        rows = httpx.get(running.url + "/v1/seams").json()["data"]
        lanes = httpx.get(running.url + "/v1/fingerprints").json()["data"]
    assert answer.headers["x-foreword-cause"] == rows[1]["code"] != ""
    assert int(answer.headers["x-foreword-seam"]) == rows[1]["seam"] > 0
    assert [lane["lane"] for lane in lanes] == ["up"]


def test_what_cannot_be_read_here_is_the_workers_business(up: Upstream) -> None:
    """A request that this gateway could not answer itself passes all the same, untouched."""
    with serve(worker_urls=(up.url,), tokenizer_path="the-workers-own") as running:
        for fields in ({"tool_choice": "required"}, {"messages": [{"role": "user", "content": [{"type": "odd"}]}]}):
            assert post(running, body(**fields)).status_code == 200
    assert len(up.bodies) == 2


def test_a_fault_in_reading_along_costs_no_request(up: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks while ids and verdict are made here, the worker answers."""

    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(chat, "prepare_chat", broken)
    with serve(worker_urls=(up.url,), tokenizer_path="the-workers-own") as running:
        assert post(running, body()).status_code == 200
    assert up.bodies == [body()]


def test_an_adapters_prompts_are_its_own(up: Upstream) -> None:
    """A LoRA adapter is served under its own name: only blocks computed with it are foretold to its requests."""
    prompt = list(range(40))
    with serve(worker_urls=(up.url,)) as running:
        sink = running.gateway.pool.view.follow(up.url)
        sink.apply(BlockStored([1, 2], None, prompt[:32], 16, "ada", [("ada",), ("ada",)]))
        for model, predicted in (("up", 0), ("ada", 32)):
            sent = json.dumps({"model": model, "prompt": prompt}).encode()
            assert post(running, sent, "/v1/completions").status_code == 200
            assert running.gateway.pool.statistics()[1].predicted_tokens == predicted


def test_a_request_goes_to_the_rank_that_holds_its_prompt(up: Upstream) -> None:
    """Ranks of one server have an index each; the server is told which of them to run the request on."""
    prompt = list(range(70))
    sent = json.dumps({"model": "up", "prompt": prompt}).encode()
    with serve(worker_urls=(f"{up.url}?dp-size=2",)) as running:
        view = running.gateway.pool.view
        for rank, start in ((0, 1000), (1, 0)):
            view.follow(f"{up.url}@{rank}").apply(BlockStored([1], None, [*range(start, start + 64)], 64))
        assert [post(running, sent, "/v1/completions").status_code for _ in range(3)] == [200] * 3
        assert worker_of(running, f"{up.url}@1")["predicted_tokens"] == 3 * 64
        added = httpx.post(running.url + "/v1/workers", json={"url": "http://127.0.0.1:9?dp-size=2"}).json()
        assert [worker["name"] for worker in added["workers"]] == ["http://127.0.0.1:9@0", "http://127.0.0.1:9@1"]
    assert [headers["X-data-parallel-rank"] for headers in up.headers] == ["1"] * 3


def worker_of(running: Running, name: str) -> dict[str, Any]:
    """One worker as the admin sees it."""
    workers = httpx.get(running.url + "/v1/workers").json()["workers"]
    found: dict[str, Any] = next(worker for worker in workers if worker["name"] == name)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds; the test fails after five seconds."""
    waiting = threading.Event()
    for _ in range(500):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not come true")
