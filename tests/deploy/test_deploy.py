"""The deployment files and the gateway agree; ``deploy/check.py`` lints, renders and validates them with the real tools."""

import json
import re
from pathlib import Path

import pytest

from foreword.config.load import OTHER_VARIABLES, load_config
from foreword.config.table import settings
from foreword.gateway.discovery import KubernetesSource, parse_source
from foreword.gateway.worker_url import parse_worker_url

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.suffix not in (".py", ".json")]
VARIABLE = re.compile(r"\bFOREWORD_[A-Z0-9_]+\b")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_variable_is_a_setting(path: Path) -> None:
    """A misspelt variable would stop the gateway at its start."""
    known = {row.variable for row in settings()} | set(OTHER_VARIABLES)
    assert set(VARIABLE.findall(path.read_text())) <= known


def test_the_compose_files_workers_are_read(tmp_path: Path) -> None:
    """Both URLs, with where each worker publishes and replays what it has cached."""
    text = (DEPLOY / "compose.yaml").read_text()
    urls = re.findall(r"^\s+(http://vllm\S+)$", text, re.MULTILINE)
    config = load_config(environ={"FOREWORD_WORKER_URLS": " ".join(urls)}, folder=tmp_path)
    connections = [parse_worker_url(url) for url in config.worker_urls]
    assert [connection.kv_replay for connection in connections] == ["tcp://vllm-0:5558", "tcp://vllm-1:5558"]
    (events,) = set(re.findall(r"--kv-events-config=(\{.*\})", text))
    assert json.loads(events)["replay_endpoint"] == "tcp://*:5558"


def test_the_charts_discovery_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form the template prints is the form the gateway takes."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    template = (DEPLOY / "helm" / "foreword" / "templates" / "deployment.yaml").read_text()
    form = re.findall(r'printf "(kubernetes://[^"]*)"', template)
    assert form == ["kubernetes://%s/%s:%v?scheme=%s"]
    assert isinstance(parse_source(form[0].replace("%v", "%s") % ("llm", "vllm", 8000, "grpc")), KubernetesSource)


def test_the_drain_time_fits_the_time_to_stop() -> None:
    """The gateway drains for 30 seconds; whoever stops it waits longer."""
    config = load_config(environ={}, folder=DEPLOY)
    assert config.drain_timeout < 40
    assert "TimeoutStopSec=40" in (DEPLOY / "systemd" / "foreword.service").read_text()
    assert "stop_grace_period: 40s" in (DEPLOY / "compose.yaml").read_text()
