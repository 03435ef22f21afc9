"""API keys: the file, who is let in, and what is kept of a key."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import structlog

from foreword.errors import ConfigError
from foreword.gateway.authentication import Account, ApiKeys
from foreword.testing.server import MODEL, serve

KEYS = "# organisation key [admin]\nacme sk-acme\nother sk-other # the other one\nops sk-ops admin\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A file of three keys, readable by its owner only."""
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    return path


def test_file(key_file: Path) -> None:
    """Comments and blank lines are skipped; keys are known by their digests only."""
    keys = ApiKeys.load(key_file)
    assert len(keys) == 3
    assert keys.find(b"sk-acme") == Account("acme")
    assert keys.find(b"sk-ops") == Account("ops", admin=True)
    assert keys.find(b"sk-nobody") is None
    assert "sk-acme" not in repr(vars(keys))


def test_a_key_may_have_a_hash_sign(tmp_path: Path) -> None:
    """A comment begins at the start of a line or after a space, not inside a key."""
    path = tmp_path / "keys"
    path.write_text("# all keys\nacme ab#cd # theirs\n  # more\n")
    path.chmod(0o600)
    keys = ApiKeys.load(path)
    assert keys.find(b"ab#cd") == Account("acme")
    assert (len(keys), keys.find(b"ab")) == (1, None)


@pytest.mark.parametrize(
    "text,message",
    [
        ("", "no API key"),
        ("acme", "line 1"),
        ("\nacme sk root", "line 2"),
        ("acme sk admin more", "line 1"),
        ("a sk\nb sk", "line 2"),
    ],
)
def test_wrong_file(tmp_path: Path, text: str, message: str) -> None:
    """A wrong line is named by its number, never by its content."""
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        ApiKeys.load(path)
    assert "sk" not in str(caught.value).replace(str(path), "")


def test_missing_file(tmp_path: Path) -> None:
    """A file that cannot be read is an error at the start."""
    with pytest.raises(ConfigError, match="Cannot read"):
        ApiKeys.load(tmp_path / "none")


def test_file_readable_by_others(key_file: Path) -> None:
    """It is used, with a warning that says how to mend it."""
    key_file.chmod(0o644)
    with structlog.testing.capture_logs() as logs:
        ApiKeys.load(key_file)
    assert logs[0]["event"] == "api_keys.readable_by_others"
    assert logs[0]["remedy"] == f"chmod 600 {key_file}"


def test_who_is_let_in(key_file: Path) -> None:
    """A known key in either header passes, anything else is 401; admin routes need an admin's key."""
    with serve(api_keys=key_file) as running, httpx.Client(base_url=running.url) as client:
        body = {"model": MODEL, "prompt": "a"}

        def status(**headers: str) -> int:
            return client.post("/v1/tokenize", json=body, headers=headers).status_code

        assert status() == 401
        assert status(authorization="Bearer sk-wrong") == 401
        assert status(authorization="Basic sk-acme") == 401
        assert status(authorization="Bearer sk-acme") == 200
        assert status(**{"x-api-key": "sk-other"}) == 200
        for path, acme, ops in (("/metrics", 403, 200), ("/v1/models", 200, 200)):
            assert client.get(path, headers={"authorization": "Bearer sk-acme"}).status_code == acme
            assert client.get(path, headers={"authorization": "Bearer sk-ops"}).status_code == ops
        load = {"name": "second", "source": "x"}
        assert client.post("/v1/tokenizers", json=load, headers={"x-api-key": "sk-acme"}).status_code == 403
        assert client.post("/v1/tokenizers", json=load, headers={"x-api-key": "sk-ops"}).status_code == 201
        for path in ("/", "/health", "/liveness", "/readiness"):
            assert client.get(path).status_code == 200


def test_refusal_says_how(key_file: Path) -> None:
    """401 says how a key is sent, and the body is not read for it."""
    with serve(api_keys=key_file) as running:
        response = httpx.post(f"{running.url}/v1/tokenize", json={})
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert "Bearer" in error["message"]


def test_organisations_do_not_share_caches(key_file: Path) -> None:
    """One organisation's prompts are no hits of another's, at the worker or in the tokenizer cache."""
    with serve(api_keys=key_file) as running, httpx.Client(base_url=running.url) as client:

        def cached(key: str, **fields: str) -> int:
            body = {"model": MODEL, "prompt": "the same long prompt " * 9, **fields}
            answer = client.post("/v1/completions", json=body, headers={"x-api-key": key}).json()
            tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            return tokens

        assert [cached("sk-acme"), cached("sk-acme"), cached("sk-other"), cached("sk-other")] == [0, 176, 0, 176]
        assert [cached("sk-acme", cache_salt="s"), cached("sk-acme", cache_salt="s")] == [0, 176]
        statistics = running.gateway.tokenizers.find(MODEL).tokenizer.statistics()
        assert (statistics.l0.hits, statistics.l0.misses) == (4, 2)
        body = {"model": MODEL, "prompt": "identical"}
        for key in ("sk-acme", "sk-other"):
            client.post("/v1/tokenize", json=body, headers={"x-api-key": key})
        assert running.gateway.tokenizers.find(MODEL).tokenizer.statistics().l0.misses == 4
